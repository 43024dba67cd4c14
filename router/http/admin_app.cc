#include "router/http/admin_app.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "common/str_cat.h"
#include "router/events/flip_json.h"
#include "router/http/console_page.h"
#include "router/http/event_feed.h"
#include "router/http/openai_json.h"
#include "router/json_writer.h"

namespace baton::router {
namespace {

enum class Act : uint8_t { kConsole, kEvents, kWorkers, kExplain, kDrain, kResume, kFlip };
/// What only this port has.
struct Route {
  std::string_view path, method;
  Act act;
};
constexpr Route kOwn[] = {{"/", "GET", Act::kConsole},
                          {"/console", "GET", Act::kConsole},
                          {"/events", "GET", Act::kEvents},
                          {"/workers", "GET", Act::kWorkers},
                          {"/workers/drain", "POST", Act::kDrain},
                          {"/workers/resume", "POST", Act::kResume},
                          {"/workers/flip", "POST", Act::kFlip},
                          {"/debug/route", "POST", Act::kExplain}};

/// What both ports have; the last two for the console's playground, which asks its own origin only.
constexpr std::string_view kShared[] = {"/health",  "/live", "/ready",     "/metrics",
                                        "/version", "/load", "/v1/models", "/v1/chat/completions"};

bool IsShared(std::string_view path) { return std::ranges::find(kShared, path) != std::end(kShared); }

void WriteWorker(const LinkView& v, JsonWriter& w) {
  w.BeginObject()
      .Field("index", v.id.index)
      .Field("name", v.name())
      .Field("address", v.address)
      .Field("state", LinkStateName(v.shown_state()))
      .NullIfEmpty("detail", v.shown_detail());
  w.NullIfEmpty("phase", v.phase).Field("progress", v.progress);
  w.Field("takes_requests", v.takes_requests());
  w.Field("requests", v.outstanding->requests());  // of this router
  if (v.facts) {
    w.Field("worker_id", v.facts->worker_id)
        .Field("incarnation", v.facts->incarnation)
        .Field("role", WorkerRoleName(v.facts->role));
    w.Field("version", v.facts->version).Field("model", v.facts->model_name).Field("numerics_id", v.facts->numerics_id);
    w.Field("kv_protocol", Text(v.facts->kv_protocol));
    w.Field("max_num_seqs", v.facts->max_num_seqs).Field("restarts", v.restarts).Field("losses", v.losses);
  }
  if (v.flip) WriteFlip(*v.flip, w);
  if (v.has_load) {
    w.Field("running", v.load.running).Field("waiting", v.load.waiting).Field("queued_tokens", v.load.queued_tokens);
    w.Field("kv_blocks_used", v.load.kv_blocks_used).Field("kv_blocks_total", v.load.kv_blocks_total);
    w.Field("kv_blocks_shared", v.load.kv_blocks_shared);
    w.Field("steps", static_cast<int64_t>(v.load.steps)).Field("last_step_ms", v.load.last_step_ms);
    w.Field("prefill_tokens_per_s", v.load.prefill_tokens_per_s).Field("decode_step_ms", v.load.decode_step_ms);
  }
  w.EndObject();
}

/// To an order about a worker: the worker as it is now.
std::function<void(absl::StatusOr<LinkView>)> AnswerWith(const std::shared_ptr<HttpExchange>& exchange) {
  return [exchange](absl::StatusOr<LinkView> worker) {
    exchange->loop().Post([exchange, worker = std::move(worker)] {
      if (!worker.ok()) {
        ApiError error = BadRequest(std::string(worker.status().message()), "worker");
        error.http_status = absl::IsNotFound(worker.status()) ? 404 : absl::IsUnavailable(worker.status()) ? 503 : 409;
        return exchange->Respond(ErrorResponse(error, {}));
      }
      std::string out;
      JsonWriter w(out);
      WriteWorker(*worker, w);
      exchange->Respond(HttpResponse{200, {}, "application/json", std::move(out)});
    });
  };
}

}  // namespace

bool AdminApp::TakesBody(const HttpRequest& head) const {
  if (IsShared(head.path)) return app_.TakesBody(head);
  const auto found = std::ranges::find(kOwn, head.path, &Route::path);
  return found != std::end(kOwn) && head.method == "POST" && found->method == "POST" && !app_.guard().Refuses(head) &&
         keys_.Allows(head.Header("Authorization"));
}

void AdminApp::Handle(std::shared_ptr<HttpExchange> exchange, HttpRequest request) {
  if (IsShared(request.path)) {
    return app_.Handle(std::move(exchange), std::move(request), true);
  }
  auto fail = [&](const ApiError& error) { exchange->Respond(ErrorResponse(error, {})); };
  if (const auto refusal = app_.guard().Refuses(request)) return fail(*refusal);
  const auto found = std::ranges::find(kOwn, request.path, &Route::path);
  if (found == std::end(kOwn)) {
    ApiError error =
        BadRequest(StrCat("No route for ", request.method, " ", request.path, " on the admin port."), "", "not_found");
    error.http_status = 404;
    return fail(error);
  }
  if (request.method != found->method) {
    ApiError error = BadRequest(StrCat(request.path, " takes ", found->method, ", not ", request.method, "."), "",
                                "method_not_allowed");
    error.http_status = 405;
    return exchange->Respond(ErrorResponse(error, {{"Allow", std::string(found->method)}}));
  }
  if (found->act == Act::kConsole) return exchange->Respond(ConsoleResponse());  // it asks for the key itself
  if (!keys_.Allows(request.Header("Authorization"))) return fail(Unauthorized());
  switch (found->act) {
    case Act::kConsole: return;
    case Act::kEvents: return Events(exchange);
    case Act::kWorkers: return Workers(*exchange);
    case Act::kExplain: return Explain(exchange, request);
    case Act::kDrain: return Drain(exchange, request, /*undo=*/false);
    case Act::kResume: return Drain(exchange, request, /*undo=*/true);
    case Act::kFlip: return Flip(exchange, request);
  }
}

void AdminApp::Workers(HttpExchange& exchange) {
  std::string out;
  JsonWriter w(out);
  w.BeginObject().Key("workers").BeginArray();
  for (const LinkView& v : service_.fleet().Views()) WriteWorker(v, w);
  w.EndArray().EndObject();
  exchange.Respond(HttpResponse{200, {}, "application/json", std::move(out)});
}

void AdminApp::Events(const std::shared_ptr<HttpExchange>& exchange) {
  const CallServices& s = service_.services();
  const auto dropped = [&metrics = s.metrics] { metrics.ConnectionClosed("admin", "slow-event-reader"); };
  if (EventFeed::Start(exchange, events_, s.clock, dropped)) return;
  ApiError error = BadRequest(StrCat(EventStream::kMostReaders, " readers of /events are the most there may be."), "",
                              "too_many_readers");
  error.http_status = 429;
  exchange->Respond(ErrorResponse(error, {{"Retry-After", "5"}}));
}

void AdminApp::Drain(const std::shared_ptr<HttpExchange>& exchange, const HttpRequest& request, bool undo) {
  const RouterConfig& config = service_.services().config;
  const JsonLimits limits{static_cast<size_t>(config.max_body_bytes), static_cast<size_t>(config.max_json_depth)};
  auto parsed = ParseDrainRequest(request.body, limits);
  if (auto* error = std::get_if<ApiError>(&parsed)) return exchange->Respond(ErrorResponse(*error, {}));
  DrainRequest& order = std::get<DrainRequest>(parsed);
  service_.fleet().Drain({std::move(order.worker), undo, order.force}, AnswerWith(exchange));
}

void AdminApp::Flip(const std::shared_ptr<HttpExchange>& exchange, const HttpRequest& request) {
  const RouterConfig& config = service_.services().config;
  const JsonLimits limits{static_cast<size_t>(config.max_body_bytes), static_cast<size_t>(config.max_json_depth)};
  auto parsed = ParseFlipRequest(request.body, limits);
  if (auto* error = std::get_if<ApiError>(&parsed)) return exchange->Respond(ErrorResponse(*error, {}));
  FlipRequest& order = std::get<FlipRequest>(parsed);
  const WorkerRole to = order.role == "prefill" ? WorkerRole::kPrefill : WorkerRole::kDecode;
  service_.fleet().Flip({std::move(order.worker), to, order.force, std::chrono::milliseconds(order.timeout_ms)},
                        AnswerWith(exchange));
}

void AdminApp::Explain(const std::shared_ptr<HttpExchange>& exchange, const HttpRequest& request) {
  const CallServices& s = service_.services();
  auto fail = [&](const ApiError& error) { exchange->Respond(ErrorResponse(error, {})); };
  const JsonLimits limits{static_cast<size_t>(s.config.max_body_bytes), static_cast<size_t>(s.config.max_json_depth)};
  auto parsed = ParseTokenizeRequest(request.body, limits);
  if (auto* error = std::get_if<ApiError>(&parsed)) return fail(*error);
  Prompt prompt = std::move(std::get<TokenizeRequest>(parsed).prompt);
  const size_t bytes = TextBytes(prompt);
  std::string salt = app_.SaltOf(request, "");
  auto work = [&model = s.model, prompt = std::move(prompt), salt] { return TokenizePrompt(model, prompt, salt); };
  auto then = [this, exchange, salt = std::move(salt)](std::variant<TokenizedPrompt, ApiError> result) mutable {
    if (auto* error = std::get_if<ApiError>(&result)) return exchange->Respond(ErrorResponse(*error, {}));
    TokenizedRequest generation;
    generation.prompt = std::move(std::get<TokenizedPrompt>(result).ids);
    generation.cache_salt = std::move(salt);
    Fleet& fleet = service_.fleet();
    const absl::StatusOr<ExplainedRoute> route = fleet.Explain(generation);
    if (!route.ok()) return exchange->Respond(ErrorResponse(FromStatus(route.status()), {}));
    exchange->Respond(HttpResponse{200, {}, "application/json", RouteJson(fleet.Views(), *route)});
  };
  service_.RunText(exchange->loop(), bytes, nullptr, std::move(work), std::move(then));
}

}  // namespace baton::router
