#include "router/http/answer_format.h"

#include <algorithm>
#include <utility>

#include "common/json.h"
#include "common/str_cat.h"
#include "router/json_writer.h"

namespace baton::router {
namespace {

const char* MessagesErrorType(int status) {
  switch (status) {
    case 400: return "invalid_request_error";
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default: return status < 500 ? "invalid_request_error" : "api_error";
  }
}

}  // namespace

std::string JsonOrEmptyObject(const std::string& text) { return nlohmann::json::accept(text) ? text : "{}"; }

std::string ErrorText(const ApiError& error, Api api, std::string_view request_id) {
  std::string out;
  JsonWriter w(out);
  if (api == Api::kMessages) {
    w.BeginObject().Field("type", "error").Key("error").BeginObject();
    w.Field("type", MessagesErrorType(error.http_status)).Field("message", error.message).EndObject();
    if (!request_id.empty()) w.Field("request_id", request_id);
    w.EndObject();
  } else if (api == Api::kOllamaChat || api == Api::kOllamaGenerate) {
    w.BeginObject().Field("error", error.message).EndObject();
  } else {
    return ErrorJson(error);
  }
  return out;
}

HttpResponse ErrorResponse(const ApiError& error, HttpHeaders headers, Api api) {
  HttpResponse response;
  response.status = error.http_status;
  response.headers = std::move(headers);
  if (error.retry_after_ms > 0) {
    response.headers.emplace_back("Retry-After", std::to_string((error.retry_after_ms + 999) / 1000));
    response.headers.emplace_back("retry-after-ms", std::to_string(error.retry_after_ms));
  }
  if (error.http_status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  const auto id = std::ranges::find(response.headers, kMessagesIdHeader, &HttpHeaders::value_type::first);
  response.body = ErrorText(error, api, id == response.headers.end() ? std::string_view() : id->second);
  return response;
}

}  // namespace baton::router
