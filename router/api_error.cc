#include "router/api_error.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/foreign_text.h"
#include "common/str_cat.h"
#include "router/json_writer.h"

namespace baton::router {

ApiError BadRequest(std::string message, std::string param, std::string code) {
  ApiError e{400, "invalid_request_error", std::move(code), std::move(param), std::move(message)};
  e.grpc_code = absl::StatusCode::kInvalidArgument;
  return e;
}

ApiError NotBuilt(const std::string& field, const std::string& what) {
  ApiError e = BadRequest(StrCat("`", field, "`: ", what,
                                 " is not supported by this server; it would change the answer, so "
                                 "the request is refused instead of ignoring it."),
                          field, "unsupported_parameter");
  e.grpc_code = absl::StatusCode::kUnimplemented;
  return e;
}

ApiError ModelNotFound(const std::string& model, const std::vector<std::string>& served) {
  ApiError e{404, "invalid_request_error", "model_not_found", "model",
             StrCat("The model `", Printable(model, 256), "` does not exist. This server has `",
                    absl::StrJoin(served, "`, `"), "`.")};
  e.grpc_code = absl::StatusCode::kNotFound;
  return e;
}

ApiError Unauthorized() {
  ApiError e{401, "authentication_error", "invalid_api_key", "",
             "Incorrect or missing API key. Send it as \"Authorization: Bearer KEY\"."};
  e.grpc_code = absl::StatusCode::kUnauthenticated;
  return e;
}

ApiError Overloaded(const std::string& what, Overload overload) {
  ApiError e{429, "rate_limit_error", "overloaded", ""};
  e.message = StrCat("The server is overloaded: ", what, ". Predicted wait ", overload.predicted_wait_ms,
                     " ms. The limit is set by ", overload.flag, ".");
  e.retry_after_ms = std::max<int64_t>(1000, overload.predicted_wait_ms);
  e.overload = std::move(overload);
  e.grpc_code = absl::StatusCode::kResourceExhausted;
  return e;
}

ApiError Draining() {
  ApiError e{503, "service_unavailable", "draining", "", "The server is shutting down and takes no new requests."};
  e.retry_after_ms = 1000;
  e.grpc_code = absl::StatusCode::kUnavailable;
  return e;
}

ApiError FromStatus(const absl::Status& status, int64_t retry_after_ms, int64_t queue_ms) {
  ApiError e;
  e.message = std::string(status.message());
  e.retry_after_ms = retry_after_ms;
  e.grpc_code = status.code();
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument: return BadRequest(e.message);
    case absl::StatusCode::kResourceExhausted:
      e = Overloaded(e.message,
                     Overload{0, queue_ms, "--max-waiting-requests and --max-waiting-tokens of the workers"});
      e.retry_after_ms = std::max(e.retry_after_ms, retry_after_ms);
      return e;
    case absl::StatusCode::kUnavailable:
      e.http_status = 503, e.type = "service_unavailable", e.code = "unavailable";
      e.retry_after_ms = std::max<int64_t>(1000, retry_after_ms);
      break;
    case absl::StatusCode::kDeadlineExceeded:
      e.http_status = 504, e.type = "timeout_error", e.code = "deadline_exceeded";
      break;
    case absl::StatusCode::kUnimplemented:
      e.http_status = 501, e.type = "not_implemented_error", e.code = "not_implemented";
      break;
    default:
      e.http_status = 500;
      e.type = "server_error";
      e.code = "internal_error";
  }
  return e;
}

std::string ErrorJson(const ApiError& error) {
  std::string out;
  JsonWriter w(out);
  w.BeginObject().Key("error").BeginObject();
  w.Field("message", error.message).Field("type", error.type);
  w.NullIfEmpty("param", error.param).NullIfEmpty("code", error.code);
  if (error.overload) {
    w.Field("queue_length", error.overload->queue_length);
    w.Field("predicted_wait_ms", error.overload->predicted_wait_ms);
    w.Field("flag", error.overload->flag);
  }
  w.EndObject().EndObject();
  return out;
}

}  // namespace baton::router
