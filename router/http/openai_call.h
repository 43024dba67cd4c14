// OpenAiApp::Call, for the files that answer. Include only from .cc files.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "router/http/answer_format.h"
#include "router/http/openai_app.h"

namespace baton::router {

// A request and what every answer to it needs. Counts itself in the metrics when it is answered.
struct OpenAiApp::Call {
  std::shared_ptr<HttpExchange> exchange;
  HttpRequest request;
  std::string id;
  HttpHeaders headers;  // of every answer
  const char* route = "other";
  bool counted = true;
  bool admin = false;  // came to the admin port
  TimePoint arrived;
  RouterMetrics* metrics = nullptr;
  const Clock* clock = nullptr;
  Api api = Api::kChat;  // whose shape errors have

  // A client may write any word there; a metric has as many series as its labels have values.
  std::string MethodLabel() const {
    for (const char* known : {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}) {
      if (request.method == known) return request.method;
    }
    return "other";
  }
  void Answered(int status) const {
    if (counted) metrics->HttpDone(route, MethodLabel(), status, Seconds(clock->Now() - arrived));
  }
  void Respond(HttpResponse response) {
    response.headers.insert(response.headers.end(), headers.begin(), headers.end());
    Answered(response.status);
    exchange->Respond(std::move(response));
  }
  void RespondJson(std::string body, int status = 200) {
    Respond(HttpResponse{status, {}, "application/json", std::move(body)});
  }
  void Fail(const ApiError& error) {
    Answered(error.http_status);
    exchange->Respond(ErrorResponse(error, headers, api));
  }
  JsonLimits Limits(const RouterConfig& c) const {
    return JsonLimits{static_cast<size_t>(c.max_body_bytes), static_cast<size_t>(c.max_json_depth),
                      static_cast<size_t>(c.max_choices), request.body.capacity() - request.body.size()};
  }
};

}  // namespace baton::router
