// AdminApp: what operators see and steer, on a port of its own: health, metrics, the workers, what a route would cost,
// which workers take no new requests, what happens as it happens, and the console that shows it.
// Thread-safe; each request is handled on its exchange's loop.
#pragma once

#include <memory>

#include "router/http/openai_app.h"

namespace baton::router {

class AdminApp {
 public:
  /// Everything given outlives the app. `app` answers the routes that both ports have.
  AdminApp(RequestService& service, const ApiKeys& keys, OpenAiApp& app, EventStream& events)
      : service_(service), keys_(keys), app_(app), events_(events) {}

  void Handle(std::shared_ptr<HttpExchange> exchange, HttpRequest request);
  /// As OpenAiApp's.
  bool TakesBody(const HttpRequest& head) const;

 private:
  void Workers(HttpExchange& exchange);
  /// Server-sent events until the client leaves (router/events/).
  void Events(const std::shared_ptr<HttpExchange>& exchange);
  /// Body: {"worker": NAME, "force": false}. Answers with the worker as /workers has it.
  void Drain(const std::shared_ptr<HttpExchange>& exchange, const HttpRequest& request, bool undo);
  void Flip(const std::shared_ptr<HttpExchange>& exchange, const HttpRequest& request);
  /// The cost of every worker for a prompt of the key that asks, without sending it anywhere. Body: as /tokenize takes
  /// it.
  void Explain(const std::shared_ptr<HttpExchange>& exchange, const HttpRequest& request);

  RequestService& service_;
  const ApiKeys& keys_;
  OpenAiApp& app_;
  EventStream& events_;
};

}  // namespace baton::router
