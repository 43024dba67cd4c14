#include "router/server.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/kv_layout.h"
#include "common/log.h"
#include "common/open_files.h"
#include "common/prefix_hash.h"
#include "common/random_word.h"
#include "common/status.h"
#include "common/tls/grpc_credentials.h"
#include "common/tls/live_context.h"
#include "router/admission/api_keys.h"
#include "router/discovery/discovery.h"
#include "router/events/event_stream.h"
#include "router/fleet/grpc_wire.h"
#include "router/grpc/grpc_server.h"
#include "router/http/admin_app.h"
#include "router/http/http_server.h"
#include "router/http/openai_app.h"
#include "router/http/openai_json.h"
#include "router/metrics/closed_clients.h"
#include "router/request/canary_request.h"
#include "router/request/grammar_check.h"
#include "router/request/request_service.h"
#include "router/telemetry/span_exporter.h"

namespace baton::router {
namespace {

constexpr Duration kReadyPoll = std::chrono::milliseconds(5);
constexpr Duration kMeetWorkers = std::chrono::milliseconds(300);
constexpr Duration kHealthPoll = std::chrono::milliseconds(50);
constexpr Duration kGrpcGrace = std::chrono::seconds(2);
constexpr int32_t kOtherStreams = 128;  // of a gRPC connection, beside requests that run: health, and what hears 429
constexpr int32_t kRetriesAtLeast = 3;  // of the retry budget, however few requests there are

size_t Cores() { return std::max(1u, std::thread::hardware_concurrency()); }

int64_t UnixMs() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(since).count();
}

// For what never reaches an app: headers and bodies over a limit, broken HTTP, clients that stop sending.
std::string TransportError(int status, const std::string& message) {
  ApiError error = BadRequest(message);
  error.http_status = status;
  if (status == 408) {
    error.type = "timeout_error";
    error.code = "request_timeout";
  }
  return ErrorJson(error);
}

// Every connection is a file, and each port may be full. The soft limit is often 1,024 however much the hard limit
// allows; where that is too little each port has fewer, so that none takes what others need.
RouterConfig WithConnectionsThatFit(RouterConfig config) {
  constexpr rlim_t kOthers = 1024;  // workers, logs, listeners
  const rlim_t ports = rlim_t{1} + (config.grpc_port >= 0 ? 1 : 0) + (config.admin_port >= 0 ? 1 : 0);
  const rlim_t wanted = ports * static_cast<rlim_t>(config.max_connections) + kOthers, files = AllowOpenFiles(wanted);
  if (files >= wanted) return config;
  const auto fit = static_cast<int32_t>(std::max<rlim_t>(1, (files - std::min(kOthers, files / 4)) / ports));
  const std::string text = StrCat("router: a port has ", fit, " connections at most, not ", config.max_connections,
                                  ": the limit of open files is ", files, " (ulimit -n), and ", ports,
                                  " ports share it (--max-connections)");
  config.max_connections == RouterConfig().max_connections ? LogInfo("{}", text) : LogWarning("{}", text);
  config.max_connections = fit;
  return config;
}

net::ConnectionLimits ConnectionLimitsOf(const RouterConfig& config) {
  const int32_t given = config.max_connections_per_address, half = std::max(1, (config.max_connections + 1) / 2);
  return {config.max_connections, given > 0 ? given : half, /*leaves_others=*/given <= 0, /*loopback_too=*/given > 0};
}

HttpServer::Options HttpOptions(const RouterConfig& config, int32_t port, const char* flag,
                                const std::string& version) {
  HttpServer::Options o;
  o.host = config.host;
  o.port = static_cast<uint16_t>(port);
  o.port_flag = flag;
  o.max_header_bytes = static_cast<size_t>(config.max_header_bytes);
  o.max_body_bytes = static_cast<size_t>(config.max_body_bytes);
  o.limits = ConnectionLimitsOf(config);
  o.read_timeout_ms = config.read_timeout_ms;
  o.write_timeout_ms = config.write_timeout_ms;
  o.keep_alive_ms = config.keep_alive_ms;
  o.always = {{"Server", "baton/" + version}};
  o.error_body = TransportError;
  return o;
}

// As one router, whose name is new at every start.
absl::StatusOr<WireMaker> GrpcWires(const RouterConfig& config, const std::string& version, EventLoopPool& loops,
                                    tls::GrpcTls* grpc_tls, const tls::LiveIdentity* live,
                                    std::shared_ptr<const trust::ClusterSecret> secret) {
  BATON_ASSIGN_OR_RETURN(const HashKey identity, HashKey::Random());
  GrpcWire::Options options;
  options.router_id = "router-" + identity.Hex().substr(0, 32);  // legs are known by it: nobody guesses it
  options.router_version = version;
  options.grpc_tls = grpc_tls;
  options.identity = grpc_tls != nullptr ? live : nullptr;
  options.tls_server_name = config.tls_server_name;
  options.secret = std::move(secret);
  options.backoff_max_ms = config.worker_backoff_max_ms;
  options.reports = ReportTermsOf(config);
  return [options, &loops](const std::string& address) {
    GrpcWire::Options one = options;
    one.address = address;
    one.relay_loop = &loops.Next();
    return std::make_unique<GrpcWire>(std::move(one));
  };
}

}  // namespace

// Bottom-up: each part uses only those above it. Requests that are dropped with the pools still return their places, so
// admission and metrics stand above the pools.
class RouterServer::Parts {
 public:
  Parts(const RouterConfig& c, const std::string& v, ModelText m, ApiKeys k)
      : config(WithConnectionsThatFit(c)),
        version(v),
        model(std::move(m)),
        keys(std::move(k)),
        name(PublicModelName(config, model)),
        admission(config.max_running_requests, config.max_running_tokens, keys.several()),
        budget(config.retry_budget, kRetriesAtLeast, admission),
        metrics(name),
        events(clock, UnixMs(),
               {[this] { return Facts(); }, [this](const TokenizedRequest& g) { return Why(g); }, v, name,
                c.route_policy}),
        links(2),
        io(config.http_threads > 0 ? static_cast<size_t>(config.http_threads) : Cores()),
        texts(config.tokenizer_threads > 0 ? static_cast<size_t>(config.tokenizer_threads)
                                           : std::max<size_t>(1, Cores() / 2),
              static_cast<size_t>(config.tokenizer_queue)),
        grammars(GrammarCheck::MostAtOnce(), static_cast<size_t>(config.tokenizer_queue)) {}
  ~Parts() { Stop(); }

  absl::Status Start();
  absl::Status ReadTlsFiles();
  HttpServer::Options HttpOptionsOf(int32_t port, const char* flag, const char* name, const tls::LiveContext* shown);
  void MeetWorkers();
  void Drain();
  void Stop();
  void WatchHealth();
  ClusterFacts Facts() const;
  std::string Why(const TokenizedRequest& generation) const;

  const RouterConfig config;
  const std::string version;
  const ModelText model;
  const ApiKeys keys;
  const std::string name;
  SteadyClock clock;
  std::unique_ptr<SpanExporter> traces;  // null: none are sent
  RequestIds ids;
  Admission admission;
  RetryBudget budget;
  RouterMetrics metrics;
  ClosedClients closed{metrics, clock};
  EventStream events;
  tls::Refusals refusals{clock};
  // What this process proves, and whom it believes: of workers, of clients. Null: no TLS there.
  std::unique_ptr<tls::LiveIdentity> identity, client_identity;
  std::unique_ptr<tls::GrpcTls> worker_tls, client_tls;
  std::unique_ptr<tls::LiveContext> http_tls, admin_tls;
  EventLoopPool links;  // a thread for the state of the connections to workers, one that waits for what of them ends
  EventLoopPool io;     // HTTP connections and requests
  TextPool texts, grammars;
  std::unique_ptr<Fleet> fleet;
  std::unique_ptr<Discovery> discovery;
  std::unique_ptr<RequestService> service;
  std::unique_ptr<OpenAiApp> app;
  std::unique_ptr<AdminApp> admin_app;
  std::unique_ptr<HttpServer> http, admin;
  std::unique_ptr<GrpcServer> grpc;
  std::unique_ptr<EventLoopTimer> health_timer;  // on links

  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  bool stopping = false, stopped = false;
};

absl::Status RouterServer::Parts::ReadTlsFiles() {
  if (config.tls_files.given()) {
    BATON_ASSIGN_OR_RETURN(identity, tls::LiveIdentity::Open(config.tls_files));
    metrics.ShowTls("tls-cert", *identity, refusals);
  }
  if (!config.tls_files.ca.empty()) {
    BATON_ASSIGN_OR_RETURN(worker_tls, tls::GrpcTls::Make(*identity, refusals));
  }
  const tls::TlsFiles to_clients = config.client_files();
  if (to_clients.cert.empty()) return absl::OkStatus();  // config has no authority alone
  const bool asks_clients = !to_clients.ca.empty(), of_its_own = !config.http_tls_cert.empty();
  if (asks_clients || of_its_own) {
    BATON_ASSIGN_OR_RETURN(client_identity, tls::LiveIdentity::Open(to_clients));
  }
  tls::LiveIdentity& shown = client_identity ? *client_identity : *identity;
  BATON_ASSIGN_OR_RETURN(client_tls, tls::GrpcTls::Make(shown, refusals));
  BATON_ASSIGN_OR_RETURN(http_tls, tls::LiveContext::Make(shown, {asks_clients, {"http/1.1"}}));
  const bool asks_admin = asks_clients && !config.admin_without_client_cert;
  BATON_ASSIGN_OR_RETURN(admin_tls, tls::LiveContext::Make(shown, {asks_admin, {"http/1.1"}}));
  if (of_its_own) metrics.ShowTls("http-tls-cert", shown, refusals);
  for (tls::LiveIdentity* live : {identity.get(), client_identity.get()}) {
    if (live != nullptr) live->Watch();
  }
  LogInfo("router: TLS {}on the gRPC port{} with the certificate of {}; HTTP and admin are {}",
          worker_tls ? "to workers and " : "", asks_clients ? ", for clients with a certificate," : "",
          shown.now()->text(), config.http_tls() ? "TLS too" : "plain text (--insecure-no-tls)");
  return absl::OkStatus();
}

/// `name`: of the port, in logs and metrics. `shown`: http_tls or admin_tls.
HttpServer::Options RouterServer::Parts::HttpOptionsOf(int32_t port, const char* flag, const char* name,
                                                       const tls::LiveContext* shown) {
  HttpServer::Options o = HttpOptions(config, port, flag, version);
  o.closed = [this, name](const char* why, const std::string& address) {
    closed.Note(name, "connection", address, why);
  };
  if (!config.http_tls()) return o;
  o.tls = HttpTls{[shown] { return shown->now(); },
                  [this, name](tls::Refusal why, const std::string& address, const std::string& message) {
                    refusals.Note(name, why, address, message);
                  }};
  return o;
}

/// Starts the connections to workers, and gives those that are there a moment to answer: of two that run, the first
/// requests of a router that was restarted would else all go to the one that answered first, whatever the other has in
/// its cache.
void RouterServer::Parts::MeetWorkers() {
  fleet->Start();
  discovery->Start([this](std::vector<Endpoint> endpoints) { fleet->SetEndpoints(std::move(endpoints)); });
  const auto first_tries_run = [this] {
    const std::vector<LinkView> views = fleet->Views();
    return views.size() < config.worker.size() ||
           std::ranges::any_of(
               views,
               [](const LinkView& view) {
                 return (view.state == LinkState::kConnecting && view.detail.empty()) ||
                        (view.shown_state() == LinkState::kUnproven && !view.canary_at);
               });
  };
  const TimePoint enough = clock.Now() + kMeetWorkers;
  while (first_tries_run() && clock.Now() < enough) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

absl::Status RouterServer::Parts::Start() {
  BATON_RETURN_IF_ERROR(ReadTlsFiles());
  std::shared_ptr<const trust::ClusterSecret> secret;  // read once: it may be a pipe
  if (!config.cluster_secret_file.empty()) {
    BATON_ASSIGN_OR_RETURN(secret, trust::ClusterSecret::Read(config.cluster_secret_file));
  }
  BATON_ASSIGN_OR_RETURN(const WireMaker wires,
                         GrpcWires(config, version, io, worker_tls.get(), identity.get(), secret));
  CanarySender canaries;
  if (config.canaries) {
    canaries = [this](const CanaryLegs& legs, std::function<void(const absl::Status&)> done) {
      return CanaryRequest::Start(*fleet, links.at(0), clock, legs, std::move(done));
    };
  }
  BATON_ASSIGN_OR_RETURN(
      fleet, Fleet::Create(config, {links.at(0), links.at(1)}, clock, wires, std::move(canaries), secret.get()));
  BATON_ASSIGN_OR_RETURN(discovery, Discovery::Create(config));
  if (!config.otlp_traces_endpoint.empty()) {
    const TraceResource self{"baton-router", version, absl::StrFormat("%016x", RandomWord())};
    BATON_ASSIGN_OR_RETURN(
        traces, SpanExporter::Start(
                    {config.otlp_traces_endpoint, config.otlp_traces_ca, config.otlp_sample_ratio, self}, clock));
    metrics.ShowTraces(*traces);
  }
  service = std::make_unique<RequestService>(
      CallServices{config, model, clock, *fleet, admission, budget, metrics, traces.get(), &events}, *fleet, texts,
      grammars);
  app = std::make_unique<OpenAiApp>(*service, keys, ids, version);
  MeetWorkers();
  HttpServer::Options open_api = HttpOptionsOf(config.port, "--port", "http", http_tls.get());
  open_api.takes_body = [this](const HttpRequest& head) { return app->TakesBody(head); };
  BATON_ASSIGN_OR_RETURN(
      http, HttpServer::Start(open_api, io, [this](std::shared_ptr<HttpExchange> exchange, HttpRequest request) {
        app->Handle(std::move(exchange), std::move(request));
      }));
  if (config.grpc_port >= 0) {
    GrpcServer::Options options{
        config.host,
        version,
        static_cast<uint16_t>(config.grpc_port),
        static_cast<size_t>(config.max_body_bytes),
        client_tls.get(),
        !config.tls_client_ca.empty(),
        config.max_running_requests + kOtherStreams,
        ConnectionLimitsOf(config),
        config.max_new_grpc_connections,
        {std::chrono::milliseconds(config.read_timeout_ms), std::chrono::milliseconds(config.keep_alive_ms)},
        [this](const char* why) { metrics.ConnectionClosed("grpc", why); },
        [this](const std::string& address) { closed.Note("grpc", "call", address, "slow-reader"); }};
    BATON_ASSIGN_OR_RETURN(grpc, GrpcServer::Start(options, io, *service, keys, ids));
    health_timer = links.at(0).MakeTimer();
    links.at(0).Post([this] { WatchHealth(); });
  }
  if (config.admin_port >= 0) {
    admin_app = std::make_unique<AdminApp>(*service, keys, *app, events);
    HttpServer::Options for_operators = HttpOptionsOf(config.admin_port, "--admin-port", "admin", admin_tls.get());
    for_operators.takes_body = [this](const HttpRequest& head) { return admin_app->TakesBody(head); };
    BATON_ASSIGN_OR_RETURN(
        admin,
        HttpServer::Start(for_operators, io, [this](std::shared_ptr<HttpExchange> exchange, HttpRequest request) {
          admin_app->Handle(std::move(exchange), std::move(request));
        }));
  }
  return absl::OkStatus();
}

/// What the event stream shows of the cluster.
ClusterFacts RouterServer::Parts::Facts() const {
  ClusterFacts facts{.workers = fleet->Views(), .readiness = service->ReadinessNow()};
  for (const LinkView& view : facts.workers)
    facts.cached_tokens.push_back(fleet->index().held_units(view.id.index) * kUnitTokens);
  facts.running_requests = admission.running();
  facts.max_running_requests = config.max_running_requests;
  facts.recomputing_requests = budget.taken();
  facts.texts_queued = static_cast<int64_t>(texts.queued() + grammars.queued());
  return facts;
}

std::string RouterServer::Parts::Why(const TokenizedRequest& generation) const {
  constexpr size_t kMostOptions = 12;
  const absl::StatusOr<ExplainedRoute> route = fleet->Explain(generation);
  return route.ok() ? RouteJson(fleet->Views(), *route, kMostOptions) : "";
}

void RouterServer::Parts::WatchHealth() {
  grpc->SetServing(service->ReadinessNow().ready);
  health_timer->ArmAt(clock.Now() + kHealthPoll, [this] { WatchHealth(); });
}

void RouterServer::Parts::Drain() {
  admission.Drain(clock.Now());
  if (grpc) grpc->Drain();
  if (http) http->Drain();
}

// Requests first hear that their workers are gone, which ends them with a proper error; then what carries them closes.
void RouterServer::Parts::Stop() {
  {
    std::unique_lock lock(mutex);
    if (std::exchange(stopping, true)) return changed.wait(lock, [this] { return stopped; });
  }
  Drain();
  if (http) http->StopAccepting();
  discovery.reset();
  if (fleet) fleet->Stop();
  for (size_t i = 0; i < io.size(); ++i) {
    std::promise<void> told;
    io.at(i).Post([&] { told.set_value(); });
    told.get_future().wait();
  }
  if (grpc) grpc->Stop(kGrpcGrace);
  if (http) http->Stop();
  if (admin) admin->Stop();
  if (health_timer) {
    std::promise<void> silent;
    links.at(0).Post([&] {
      health_timer.reset();
      silent.set_value();
    });
    silent.get_future().wait();
  }
  texts.Stop();
  grammars.Stop();
  io.Stop();
  links.Stop();
  std::lock_guard lock(mutex);
  stopped = true;
  changed.notify_all();
}

namespace {

TextFiles TextFilesOf(const RouterConfig& config) {
  const bool folder = config.generation_config != "auto" && config.generation_config != "vllm";
  return {config.skip_tokenizer_init,
          config.tokenizer,
          config.hf_config_path,
          folder ? config.generation_config : "",
          config.override_generation_config,
          config.default_chat_template_kwargs};
}

}  // namespace

RouterServer::RouterServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
RouterServer::~RouterServer() { Stop(); }

absl::StatusOr<std::unique_ptr<RouterServer>> RouterServer::Start(const RouterConfig& config, std::string version) {
  if (const absl::Status status = config.Validate(); !status.ok())
    return absl::FailedPreconditionError(status.message());
  auto keys = ApiKeys::Load(config.api_key, config.api_key_file);
  if (!keys.ok()) return absl::FailedPreconditionError(keys.status().message());
  BATON_ASSIGN_OR_RETURN(ModelText model,
                         ModelText::Load(config.model, config.chat_template, config.generation_config == "auto",
                                         SeenBodies::RestOf(config.token_cache_mib), TextFilesOf(config)));
  auto parts = std::make_unique<Parts>(config, version, std::move(model), *std::move(keys));
  BATON_RETURN_IF_ERROR(parts->Start());
  return std::unique_ptr<RouterServer>(new RouterServer(std::move(parts)));
}

uint16_t RouterServer::http_port() const { return parts_->http->port(); }
uint16_t RouterServer::grpc_port() const { return parts_->grpc ? parts_->grpc->port() : 0; }
uint16_t RouterServer::admin_port() const { return parts_->admin ? parts_->admin->port() : 0; }
const std::string& RouterServer::model_name() const { return parts_->name; }
Readiness RouterServer::readiness() const { return parts_->service->ReadinessNow(); }
std::vector<WorkerStatus> RouterServer::workers() const { return parts_->fleet->Status(); }

bool RouterServer::WaitReady(Duration timeout) const {
  const TimePoint deadline = parts_->clock.Now() + timeout;
  while (!readiness().ready) {
    const TimePoint now = parts_->clock.Now();
    if (now >= deadline) return false;
    std::this_thread::sleep_for(std::min(kReadyPoll, deadline - now));
  }
  return true;
}

void RouterServer::Drain() { parts_->Drain(); }
bool RouterServer::WaitDrained(Duration timeout) const {
  const TimePoint until = parts_->clock.Now() + timeout;
  if (parts_->grpc && !parts_->grpc->WaitGone(timeout)) return false;
  if (parts_->http && !parts_->http->WaitGone(until - parts_->clock.Now())) return false;
  return parts_->admission.WaitEmpty(until - parts_->clock.Now());
}
bool RouterServer::Busy() const { return !parts_->admission.WaitEmpty(Duration::zero()); }
void RouterServer::Stop() { parts_->Stop(); }

void RouterServer::Wait() {
  std::unique_lock lock(parts_->mutex);
  parts_->changed.wait(lock, [this] { return parts_->stopped; });
}

}  // namespace baton::router
