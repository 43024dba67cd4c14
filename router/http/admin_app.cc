#include "router/http/admin_app.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "common/str_cat.h"
#include "router/http/openai_json.h"
#include "router/json_writer.h"

namespace baton::router {
namespace {

constexpr std::string_view kShared[] = {"/health", "/live", "/ready", "/metrics", "/version", "/load"};

std::string CostTable(const std::vector<LinkView>& views, const ExplainedRoute& route) {
  std::string out;
  JsonWriter w(out);
  w.BeginObject().Field("prompt_tokens", static_cast<int64_t>(route.prompt_tokens));
  w.Field("policy", route.policy).Key("options").BeginArray();
  const auto name = [&](const WorkerId& id) { return views[static_cast<size_t>(id.index)].name(); };
  for (const ExplainedCost& e : route.costs) {
    const Cost& c = e.cost;
    w.BeginObject().Field("worker", name(e.worker));
    w.NullIfEmpty("prefill_worker", e.prefill ? name(*e.prefill) : "").Field("chosen", e.chosen);
    w.Field("cached_tokens", e.cached_tokens).Field("queue_ms", c.queue_ms).Field("prefill_ms", c.prefill_ms);
    w.Field("transfer_ms", c.transfer_ms).Field("handoff_ms", c.handoff_ms);
    w.Field("decode_slowdown_ms", c.decode_slowdown_ms)
        .Field("pressure_ms", c.pressure_ms)
        .Field("total_ms", c.total_ms);
    w.EndObject();
  }
  w.EndArray().Key("out").BeginArray();
  for (const ExplainedOut& o : route.out) {
    w.BeginObject().Field("worker", name(o.worker));
    w.NullIfEmpty("prefill_worker", o.prefill ? name(*o.prefill) : "").Field("reason", o.reason).EndObject();
  }
  w.EndArray().EndObject();
  return out;
}

}  // namespace

void AdminApp::Handle(std::shared_ptr<HttpExchange> exchange, HttpRequest request) {
  if (std::find(std::begin(kShared), std::end(kShared), request.path) != std::end(kShared)) {
    return app_.Handle(std::move(exchange), std::move(request), true);
  }
  auto fail = [&](const ApiError& error) { exchange->Respond(ErrorResponse(error, {})); };
  if (const auto refusal = app_.guard().Refuses(request)) return fail(*refusal);
  const bool workers = request.path == "/workers", explain = request.path == "/debug/route";
  if (!workers && !explain) {
    ApiError error =
        BadRequest(StrCat("No route for ", request.method, " ", request.path, " on the admin port."), "", "not_found");
    error.http_status = 404;
    return fail(error);
  }
  const char* method = workers ? "GET" : "POST";
  if (request.method != method) {
    ApiError error =
        BadRequest(StrCat(request.path, " takes ", method, ", not ", request.method, "."), "", "method_not_allowed");
    error.http_status = 405;
    return exchange->Respond(ErrorResponse(error, {{"Allow", method}}));
  }
  if (!keys_.Allows(request.Header("Authorization"))) return fail(Unauthorized());
  workers ? Workers(*exchange) : Explain(exchange, request);
}

void AdminApp::Workers(HttpExchange& exchange) {
  std::string out;
  JsonWriter w(out);
  w.BeginObject().Key("workers").BeginArray();
  for (const LinkView& v : service_.fleet().Views()) {
    w.BeginObject()
        .Field("index", v.id.index)
        .Field("name", v.name())
        .Field("address", v.address)
        .Field("state", LinkStateName(v.shown_state()))
        .NullIfEmpty("detail", v.shown_detail());
    w.NullIfEmpty("phase", v.phase).Field("progress", v.progress);
    if (v.facts) {
      w.Field("worker_id", v.facts->worker_id)
          .Field("incarnation", v.facts->incarnation)
          .Field("role", WorkerRoleName(v.facts->role));
      w.Field("version", v.facts->version)
          .Field("model", v.facts->model_name)
          .Field("numerics_id", v.facts->numerics_id);
      w.Field("max_num_seqs", v.facts->max_num_seqs).Field("restarts", v.restarts).Field("losses", v.losses);
    }
    if (v.has_load) {
      w.Field("running", v.load.running).Field("waiting", v.load.waiting).Field("queued_tokens", v.load.queued_tokens);
      w.Field("kv_blocks_used", v.load.kv_blocks_used).Field("kv_blocks_total", v.load.kv_blocks_total);
      w.Field("steps", static_cast<int64_t>(v.load.steps)).Field("last_step_ms", v.load.last_step_ms);
      w.Field("prefill_tokens_per_s", v.load.prefill_tokens_per_s).Field("decode_step_ms", v.load.decode_step_ms);
    }
    w.EndObject();
  }
  w.EndArray().EndObject();
  exchange.Respond(HttpResponse{200, {}, "application/json", std::move(out)});
}

void AdminApp::Explain(const std::shared_ptr<HttpExchange>& exchange, const HttpRequest& request) {
  const CallServices& s = service_.services();
  auto fail = [&](const ApiError& error) { exchange->Respond(ErrorResponse(error, {})); };
  const JsonLimits limits{static_cast<size_t>(s.config.max_body_bytes), static_cast<size_t>(s.config.max_json_depth)};
  auto parsed = ParseTokenizeRequest(request.body, limits);
  if (auto* error = std::get_if<ApiError>(&parsed)) return fail(*error);
  Prompt prompt = std::move(std::get<TokenizeRequest>(parsed).prompt);
  const size_t bytes = TextBytes(prompt);
  auto work = [&model = s.model, prompt = std::move(prompt)] { return TokenizePrompt(model, prompt); };
  auto then = [this, exchange](std::variant<TokenizedPrompt, ApiError> result) {
    if (auto* error = std::get_if<ApiError>(&result)) return exchange->Respond(ErrorResponse(*error, {}));
    TokenizedRequest generation;
    generation.prompt = std::move(std::get<TokenizedPrompt>(result).ids);
    Fleet& fleet = service_.fleet();
    const absl::StatusOr<ExplainedRoute> route = fleet.Explain(generation);
    if (!route.ok()) return exchange->Respond(ErrorResponse(FromStatus(route.status()), {}));
    exchange->Respond(HttpResponse{200, {}, "application/json", CostTable(fleet.Views(), *route)});
  };
  service_.RunText(exchange->loop(), bytes, std::move(work), std::move(then));
}

}  // namespace baton::router
