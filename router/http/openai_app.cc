#include "router/http/openai_app.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/foreign_text.h"
#include "common/log.h"
#include "common/net/address.h"
#include "common/random_word.h"
#include "common/str_cat.h"
#include "router/http/completion_answer.h"
#include "router/http/not_served.h"
#include "router/http/openai_call.h"
#include "router/json_writer.h"
#include "router/request/grammar_check.h"
#include "router/request/seen_chats.h"

namespace baton::router {
namespace {

int64_t UnixSeconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

ApiError NoSuchPath(const HttpRequest& request) {
  return ApiError{
      404, "invalid_request_error", "not_found", "",
      StrCat("No route for ", request.method, " ", request.path, ". The API is under /v1; GET / says more.")};
}

// "application/json", with or without parameters. Absent is taken for it, and what `curl -d` says by itself, which a
// web page could say without asking this server first: then there is an Origin.
bool SaysJson(const HttpRequest& request) {
  const std::string_view content_type = request.Header("Content-Type");
  const auto type = absl::StripTrailingAsciiWhitespace(AbslView(content_type.substr(0, content_type.find(';'))));
  return content_type.empty() || absl::EqualsIgnoreCase(type, "application/json") ||
         (absl::EqualsIgnoreCase(type, "application/x-www-form-urlencoded") && request.Header("Origin").empty());
}

// Names that stand in a header as they are; a client wrote them.
std::vector<std::string> HeaderWords(const std::vector<std::string>& names) {
  std::vector<std::string> out;
  for (const std::string& name : names) {
    const bool plain =
        std::all_of(name.begin(), name.end(), [](char c) { return absl::ascii_isalnum(c) || c == '_' || c == '-'; });
    if (plain && !name.empty()) out.push_back(name);
  }
  return out;
}

std::vector<KeyUse> UsesOf(const ApiKeys& keys) {
  std::vector<KeyUse> out;
  for (const KeyAccount* account : keys.accounts()) {
    const KeyAccount::Use use = account->use();
    out.push_back({account->name(), use.requests, use.prompt_tokens, use.completion_tokens, use.refused_for_requests,
                   use.refused_for_tokens, use.refused_for_share, use.ended_unread});
  }
  return out;
}

WebGuard::Rules RulesOf(const RouterConfig& c) { return {c.allowed_origins, c.allowed_hosts, net::IsLoopback(c.host)}; }

constexpr size_t kLargeBody = 256 << 10;  // parsed on the text pool: 1 ms of JSON is some 3 MB

// "/v1/responses/{response_id}/cancel" is the path of each response; only a model's name may have slashes.
bool IsPathOf(std::string_view pattern, std::string_view path) {
  const size_t open = pattern.find('{');
  if (open == std::string_view::npos) return path == pattern;
  const std::string_view before = pattern.substr(0, open), behind = pattern.substr(pattern.find('}') + 1);
  if (path.size() < before.size() + behind.size() || !path.starts_with(before) || !path.ends_with(behind)) return false;
  const std::string_view name = path.substr(before.size(), path.size() - before.size() - behind.size());
  return before == kModelPrefix || (!name.empty() && name.find('/') == std::string_view::npos);
}

std::string_view HandledAs(std::string_view method) { return method == "HEAD" ? "GET" : method; }

}  // namespace

const OpenAiApp::Route OpenAiApp::kRoutes[] = {
    {"/", "GET", &OpenAiApp::Front, true, false},
    {"/v1/models", "GET", &OpenAiApp::Models, true, true},
    {"/v1/models/{model}", "GET", &OpenAiApp::OneModel, true, true},
    {"/v1/chat/completions", "POST", &OpenAiApp::Chat, true, true},
    {"/v1/completions", "POST", &OpenAiApp::Text, true, true},
    {"/v1/messages", "POST", &OpenAiApp::Messages, true, true},
    {"/v1/messages/count_tokens", "POST", &OpenAiApp::CountTokens, true, true},
    {"/v1/responses", "POST", &OpenAiApp::Responses, true, true},
    {"/v1/responses/input_tokens", "POST", &OpenAiApp::InputTokens, true, true},
    {"/v1/responses/{response_id}", "GET", &OpenAiApp::OneResponse, true, true},
    {"/v1/responses/{response_id}", "DELETE", &OpenAiApp::ForgetResponse, true, true},
    {"/v1/responses/{response_id}/input_items", "GET", &OpenAiApp::InputItems, true, true},
    {"/v1/responses/{response_id}/cancel", "POST", &OpenAiApp::CancelResponse, true, true},
    {"/api/chat", "POST", &OpenAiApp::OllamaChat, true, true},
    {"/api/generate", "POST", &OpenAiApp::OllamaGenerate, true, true},
    {"/api/tags", "GET", &OpenAiApp::OllamaTags, true, true},
    {"/api/ps", "GET", &OpenAiApp::OllamaRunning, true, true},
    {"/api/show", "POST", &OpenAiApp::OllamaShow, true, true},
    {"/api/version", "GET", &OpenAiApp::OllamaVersion, true, false},
    {"/tokenize", "POST", &OpenAiApp::Tokenize, true, true},
    {"/detokenize", "POST", &OpenAiApp::Detokenize, true, true},
    {"/health", "GET", &OpenAiApp::Health, false, false},
    {"/ping", "GET", &OpenAiApp::Health, false, false},
    {"/live", "GET", &OpenAiApp::Live, false, false},
    {"/livez", "GET", &OpenAiApp::Live, false, false},
    {"/ready", "GET", &OpenAiApp::Ready, false, false},
    {"/readyz", "GET", &OpenAiApp::Ready, false, false},
    {"/metrics", "GET", &OpenAiApp::Metrics, false, false},
    {"/metrics/", "GET", &OpenAiApp::Metrics, false, false},
    {"/version", "GET", &OpenAiApp::Version, false, false},
    {"/openapi.json", "GET", &OpenAiApp::OpenApi, false, false},
    {"/load", "GET", &OpenAiApp::Load, false, false},
};

OpenAiApp::OpenAiApp(RequestService& service, const ApiKeys& keys, RequestIds& ids, std::string version)
    : service_(service),
      keys_(keys),
      ids_(ids),
      version_(std::move(version)),
      guard_(RulesOf(service.services().config)),
      started_(UnixSeconds()),
      seen_bodies_(SeenBodies::PartOf(service.services().config.token_cache_mib)) {}

void OpenAiApp::Handle(std::shared_ptr<HttpExchange> exchange, HttpRequest request, bool admin) {
  auto call = std::make_shared<Call>();
  call->exchange = std::move(exchange);
  call->request = std::move(request);
  call->clock = &service_.services().clock;
  call->metrics = &service_.services().metrics;
  call->arrived = call->clock->Now();
  call->id = ids_.GivenOrNew(call->request.Header("X-Request-Id"));
  call->headers = {{"X-Request-Id", call->id}};
  call->admin = admin;
  call->api = ApiOf(call->request);
  if (call->api == Api::kMessages) call->headers.emplace_back(kMessagesIdHeader, call->id);
  if (const auto refusal = guard_.Refuses(call->request)) return call->Fail(*refusal);
  guard_.Allow(call->request, call->headers);
  if (call->request.method == "OPTIONS") return Preflight(call);
  Dispatch(call);
}

const OpenAiApp::Route* OpenAiApp::RouteOf(const HttpRequest& request) {
  const Route* of_path = nullptr;
  for (const Route& route : kRoutes) {
    const bool other = of_path != nullptr && std::string_view(route.path) != of_path->path;  // of a longer pattern
    if (other || !IsPathOf(route.path, request.path)) continue;
    if (of_path == nullptr) of_path = &route;
    if (HandledAs(request.method) == route.method) return &route;
  }
  return of_path;
}

bool OpenAiApp::TakesBody(const HttpRequest& head) const {
  const Route* route = RouteOf(head);
  return route != nullptr && route->guarded && head.method == route->method && !guard_.Refuses(head) &&
         keys_.Allows(KeyOf(head));  // what needs no key has no use for a body
}

void OpenAiApp::Dispatch(const std::shared_ptr<Call>& call) {
  const HttpRequest& request = call->request;
  const Route* found = RouteOf(request);
  const char* why = WhyNotServed(request.path);
  if (!found || (why != nullptr && HandledAs(request.method) != found->method)) {
    const bool guarded = why != nullptr || request.path.starts_with("/v1/");
    if (guarded && !keys_.Allows(KeyOf(request))) return call->Fail(Unauthorized());
    return call->Fail(why != nullptr ? NotServed(request, why) : NoSuchPath(request));
  }
  call->route = found->path;
  call->counted = found->counted;
  if (HandledAs(request.method) != found->method) return WrongMethod(call);
  if (found->guarded && !keys_.Allows(KeyOf(request))) return call->Fail(Unauthorized());
  if (request.method == "POST") {
    if (!SaysJson(request)) {
      return call->Fail(BadRequest(StrCat("Unsupported Media Type: Only 'application/json' is allowed, got '",
                                          Printable(request.Header("Content-Type")),
                                          "'. Send it as \"Content-Type: application/json\".")));
    }
    if (const auto encoding = request.Header("Content-Encoding"); !encoding.empty() && encoding != "identity") {
      ApiError error = BadRequest(
          StrCat("A body with Content-Encoding ", Printable(encoding, 40), " is not read; send it as it is."));
      error.http_status = 415;
      return call->Fail(error);
    }
  }
  (this->*found->handler)(call);
}

void OpenAiApp::WrongMethod(const std::shared_ptr<Call>& call) {
  std::vector<std::string> methods;
  for (const Route& route : kRoutes) {
    if (std::string_view(route.path) == call->route) methods.emplace_back(route.method);
  }
  ApiError error = NoSuchPath(call->request);
  error.http_status = 405;
  error.code = "method_not_allowed";
  error.message =
      StrCat(call->request.path, " takes ", absl::StrJoin(methods, " and "), ", not ", call->request.method, ".");
  const bool reads = std::find(methods.begin(), methods.end(), "GET") != methods.end();
  call->headers.emplace_back("Allow", StrCat(absl::StrJoin(methods, ", "), reads ? ", HEAD" : ""));
  call->Fail(error);
}

void OpenAiApp::Preflight(const std::shared_ptr<Call>& call) {
  HttpResponse response{204};
  response.headers = guard_.Preflight(call->request);
  call->Respond(std::move(response));
}

void OpenAiApp::Front(const std::shared_ptr<Call>& call) {
  const CallServices& s = service_.services();
  std::string out;
  JsonWriter w(out);
  w.BeginObject().Field("server", "baton").Field("version", version_).Key("models").BeginArray();
  for (const std::string& name : PublicModelNames(s.config, s.model)) w.String(name);
  w.EndArray().Field("api", "/v1").Field("chat", "/v1/chat/completions").Field("reference", "/openapi.json");
  w.Field("ready", "/ready").Field("metrics", "/metrics").EndObject();
  call->RespondJson(std::move(out));
}

void OpenAiApp::Chat(const std::shared_ptr<Call>& call) { Parse(call, ParseChatRequest, "chatcmpl-"); }

void OpenAiApp::Text(const std::shared_ptr<Call>& call) { Parse(call, ParseTextRequest, "cmpl-"); }

std::string OpenAiApp::KeyOf(const HttpRequest& request) {
  const std::string_view bearer = request.Header("Authorization"), key = request.Header("x-api-key");
  return bearer.empty() && !key.empty() ? StrCat("Bearer ", key) : std::string(bearer);
}

KeyAccount* OpenAiApp::AccountOf(const Call& call) const { return keys_.AccountOf(KeyOf(call.request)); }

std::string OpenAiApp::SaltOf(const HttpRequest& request, const std::string& client_salt) const {
  if (service_.services().config.share_prefix_cache) return client_salt;
  return keys_.SaltOf(KeyOf(request), client_salt);
}

std::string OpenAiApp::SaltOf(const Call& call, const std::string& client_salt) const {
  return SaltOf(call.request, client_salt);
}

void OpenAiApp::Parse(const std::shared_ptr<Call>& call, BodyParser parse, const char* id_prefix) {
  const size_t size = call->request.body.size();
  if (auto seen = seen_bodies_.Find(parse, call->request.body, SaltOf(*call, "")))
    return Complete(call, *std::move(seen), id_prefix);
  auto work = [call, parse, limits = call->Limits(service_.services().config)] {
    return parse(call->request.body, limits);
  };
  auto then = [this, call, parse, id_prefix](std::variant<CompletionRequest, ApiError> parsed) {
    if (auto* request = std::get_if<CompletionRequest>(&parsed)) KeepIfSeen(*call, parse, *request);
    Complete(call, std::move(parsed), id_prefix);
  };
  service_.RunText(call->exchange->loop(), size > kLargeBody ? size : 0, AccountOf(*call), std::move(work),
                   std::move(then));
}

void OpenAiApp::KeepIfSeen(Call& call, BodyParser parse, CompletionRequest& request) {
  std::string& body = call.request.body;
  const bool alone = request.prompts.size() == 1 && !request.responses;  // turns of before may come in front of those
  if (!alone || !SeenBodies::Takes(body.size())) return;
  const size_t text_bytes = TextBytes(request.prompts.front());
  if (!TakeSeen(service_.services().model, request.prompts.front(), SaltOf(call, request.input.cache_salt))) return;
  seen_bodies_.Keep(parse, std::move(body), request, text_bytes, SaltOf(call, ""));
}

void OpenAiApp::Complete(const std::shared_ptr<Call>& call, std::variant<CompletionRequest, ApiError> parsed,
                         const char* id_prefix) {
  if (auto* error = std::get_if<ApiError>(&parsed)) return call->Fail(*error);
  CompletionRequest request = std::move(std::get<CompletionRequest>(parsed));
  call->request.body = std::string();
  const ModelText& model = service_.services().model;
  for (const Prompt& prompt : request.prompts) {
    if (auto error = CheckNeedsNoText(model, prompt)) return call->Fail(*error);
  }
  if (request.api == Api::kChat || request.api == Api::kText)
    request.include_usage |= request.stream && service_.services().config.enable_force_include_usage;
  request.input.shows_prompt = request.echo;
  if (!model.tokenizer->exists()) request.return_token_ids = request.return_tokens_as_token_ids = true;
  if (!request.asks_thoughts.empty() && !MayThink(model, service_.services().config))
    request.unknown_fields.push_back(request.asks_thoughts);
  if (!request.input.session.empty() && service_.services().config.route_policy != "session")
    request.unknown_fields.emplace_back("prompt_cache_key");  // said to have no effect
  if (request.input.session.empty()) request.input.session = call->request.Header("X-Session-Id");
  if (service_.services().traces != nullptr) request.input.traceparent = call->request.Header("traceparent");
  if (!request.unknown_fields.empty()) TellOfUnknown(*call, request.unknown_fields);
  if (request.loads != nullptr) return OllamaLoaded(call, request);
  AnswerHead head;
  head.id = StrCat(id_prefix, request.input.request_id.empty() ? call->id : request.input.request_id);
  head.created = UnixSeconds();
  head.model = request.input.model.empty() ? PublicModelName(service_.services().config, service_.services().model)
                                           : request.input.model;
  head.chat = request.chat;
  head.return_token_ids = request.return_token_ids;
  head.tokens_as_ids = request.return_tokens_as_token_ids;
  request.input.request_id = ids_.OnceOnly(call->id);
  AnswerKeeper keep;
  if (request.responses) {
    head.id = absl::StrFormat("resp_%016x%016x", RandomWord(), RandomWord());
    if (auto error = GoOn(*call, head.id, request, keep)) return call->Fail(*error);
  }
  request.input.account = AccountOf(*call);
  request.input.connected = call->request.connected;
  request.input.cache_salt = SaltOf(*call, request.input.cache_salt);
  CompletionAnswer::Options options;
  options.fingerprint = StrCat("baton-", version_);
  options.sse_ping_ms = service_.services().config.sse_ping_ms;
  options.stream_interval = service_.services().config.stream_interval;
  options.done = [call](int status) { call->Answered(status); };
  auto format = MakeFormat(request, std::move(head), *service_.services().model.tokenizer, std::move(keep));
  std::make_shared<CompletionAnswer>(service_, call->exchange, std::move(request), std::move(format), call->headers,
                                     std::move(options))
      ->Start();
}

// Ignored, as vLLM ignores them, but not in silence: the answer names them, and the log does once.
void OpenAiApp::TellOfUnknown(Call& call, const std::vector<std::string>& fields) {
  constexpr size_t kRemembered = 256;
  const std::vector<std::string> words = HeaderWords(fields);
  if (!words.empty()) call.headers.emplace_back("X-Ignored-Fields", absl::StrJoin(words, ", "));
  std::vector<std::string> fresh;
  {
    const std::lock_guard lock(told_mutex_);
    for (const std::string& field : fields) {
      if (told_.size() < kRemembered && told_.insert(field).second) fresh.push_back(field);
    }
  }
  if (fresh.empty()) return;
  LogWarning("request {}: unknown fields are ignored: {} (later requests: see their header X-Ignored-Fields)", call.id,
             Printable(absl::StrJoin(fresh, ", "), 500));
}

void OpenAiApp::Health(const std::shared_ptr<Call>& call) {
  if (!service_.ReadinessNow().ready) return Ready(call);
  call->Respond(HttpResponse{200, {}, "text/plain", ""});
}

void OpenAiApp::Live(const std::shared_ptr<Call>& call) { call->RespondJson(R"({"status":"alive"})"); }

void OpenAiApp::Ready(const std::shared_ptr<Call>& call) {
  const Readiness r = service_.ReadinessNow();
  std::string out;
  JsonWriter w(out);
  w.BeginObject().Field("status", r.status);
  if (!r.ready) w.Field("phase", r.phase).Field("progress", r.progress);
  if (!r.ready || !r.detail.empty()) w.Field("detail", r.detail);
  if (!r.awaited.empty()) w.Key("awaited").BeginArray();
  for (const AwaitedWorker& one : r.awaited) {
    w.BeginObject().Field("worker", one.worker).Field("state", one.state).NullIfEmpty("detail", one.detail);
    w.Field("for_s", one.for_s);
    one.next_try_s ? w.Field("next_try_s", *one.next_try_s) : w.NullField("next_try_s");
    w.EndObject();
  }
  if (!r.awaited.empty()) w.EndArray();
  if (r.awaited_more > 0) w.Field("awaited_more", static_cast<int64_t>(r.awaited_more));
  w.EndObject();
  HttpResponse response{r.ready ? 200 : 503, {}, "application/json", std::move(out)};
  if (!r.ready) response.headers.emplace_back("Retry-After", "1");
  call->Respond(std::move(response));
}

void OpenAiApp::Metrics(const std::shared_ptr<Call>& call) {
  const CallServices& s = service_.services();
  if (!call->admin && !s.config.public_metrics && !net::IsLoopback(s.config.host)) {
    return call->Fail(
        ApiError{403, "permission_error", "not_public", "",
                 "The metrics are on the admin port (--admin-port); --public-metrics serves them here too."});
  }
  const WorkerPrefixes& index = service_.fleet().index();
  TokenCache::Counts tokens = s.model.prompt_ids->counts();
  const SeenChats::Counts chats = s.model.seen_chats->counts();
  const SeenBodies::Counts bodies = seen_bodies_.counts();
  tokens.kept_bytes += chats.kept_bytes + bodies.kept_bytes;
  tokens.found_bytes += chats.found_bytes + bodies.found_bytes;
  call->Respond(HttpResponse{
      200,
      {},
      "text/plain; version=0.0.4; charset=utf-8",
      s.metrics.Render(service_.fleet().Views(),
                       {s.clock.Now(), s.admission.running(), s.budget.taken(), index.size_units(), index.size_bytes(),
                        service_.texts_queued(), tokens, s.model.grammars->counts(), UsesOf(keys_)})});
}

void OpenAiApp::Version(const std::shared_ptr<Call>& call) {
  std::string out;
  JsonWriter(out).BeginObject().Field("version", version_).EndObject();
  call->RespondJson(std::move(out));
}

void OpenAiApp::OpenApi(const std::shared_ptr<Call>& call) { call->RespondJson(OpenApiDocument()); }

void OpenAiApp::Load(const std::shared_ptr<Call>& call) {
  call->RespondJson(StrCat("{\"server_load\":", service_.services().admission.running(), "}"));
}

}  // namespace baton::router
