#include "router/grpc/grpc_server.h"

#include <grpc/support/time.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "common/grpc/acceptor.h"
#include "common/grpc/goaway.h"
#include "common/grpc/watched_calls.h"
#include "common/net/given_up_calls.h"
#include "common/net/socket_address.h"
#include "common/status.h"
#include "common/str_cat.h"
#include "common/tls/grpc_credentials.h"
#include "proto/generation.grpc.pb.h"
#include "router/grpc/generate_codec.h"
#include "router/grpc/generate_stream.h"

namespace baton::router {
namespace {

std::string Metadata(const grpc::ServerContextBase& context, const char* key) {
  const auto& all = context.client_metadata();
  auto found = all.find(key);
  return found == all.end() ? "" : std::string(found->second.data(), found->second.size());
}

/// `new_per_second` is meant for connections that ask something: of others half as many come at once.
int32_t VainTriesOf(int32_t new_per_second) { return (new_per_second + 1) / 2; }

/// Longer than gRPC itself takes to close a connection without calls.
Duration MessageTimeOf(const net::IdleTimes& idle) { return idle.begin + 2 * idle.without_call; }

/// Messages' worth of bytes that may come between two calls: as many may be on their way at once.
constexpr uint64_t kMessagesBetweenCalls = 4;

/// That may be open on a connection on which no right key has been shown, and on all such; 16 KiB each.
constexpr int64_t kStrangersCalls = 256, kAllStrangersCalls = 4096;

/// What gRPC may hold for clients: of messages that are not whole yet, for the most part. With more it gives up calls.
constexpr size_t kMessagesInMemory = 32, kLeastMemory = 256 << 20;

/// None: the client set no deadline, or one that is more than a year away, which a clock of 64 bits may not hold.
std::optional<Duration> Remaining(const grpc::CallbackServerContext& context) {
  constexpr std::chrono::seconds kYear = std::chrono::hours(24 * 365);
  const gpr_timespec deadline = gpr_convert_clock_type(context.raw_deadline(), GPR_CLOCK_MONOTONIC);
  const gpr_timespec left = gpr_time_sub(deadline, gpr_now(GPR_CLOCK_MONOTONIC));
  if (left.tv_sec >= kYear.count()) return std::nullopt;
  return std::max<Duration>(Duration(1), std::chrono::seconds(left.tv_sec) + std::chrono::nanoseconds(left.tv_nsec));
}

/// When a server began to send its clients elsewhere, and whether they have gone. Thread-safe.
class Departure {
 public:
  /// Between two looks at who has gone, and between two times that who is there is told.
  static constexpr Duration kLook = std::chrono::milliseconds(10), kTell = std::chrono::seconds(1);

  /// False: it has begun before.
  bool Begin() {
    std::lock_guard lock(mutex_);
    if (since_) return false;
    since_ = clock_.Now();
    return true;
  }
  bool WaitGone(Duration timeout) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, timeout, [this] { return !since_ || gone_; });
  }
  /// `tell`s everybody, until End; `left`: whether one who was there at the begin is yet.
  void Run(const std::function<void()>& tell, const std::function<bool(TimePoint)>& left) {
    std::unique_lock lock(mutex_);
    for (TimePoint told{}; !ends_;) {
      const TimePoint now = clock_.Now();
      const bool again = now - told >= kTell;
      lock.unlock();
      if (again) tell();
      const bool gone = now - *since_ > Admission::kOnItsWay || !left(*since_);
      lock.lock();
      if (again) told = now;
      gone_ |= gone;
      if (gone) changed_.notify_all();
      changed_.wait_for(lock, gone_ ? kTell : kLook, [this] { return ends_; });
    }
  }
  void End() {
    std::lock_guard lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }

 private:
  const SteadyClock clock_;
  mutable std::mutex mutex_;  // guards what follows
  mutable std::condition_variable changed_;
  std::optional<TimePoint> since_;
  bool gone_ = false, ends_ = false;
};

class GenerationApi final : public v1::Generation::CallbackService {
 public:
  GenerationApi(EventLoopPool& pool, RequestService& service, const ApiKeys& keys, RequestIds& ids,
                const GrpcServer::Options& options)
      : pool_(pool),
        service_(service),
        keys_(keys),
        ids_(ids),
        version_(options.version),
        slow_reader_(
            [told = options.slow_reader](const std::string& peer) { told(net::PeerOf(peer).address().to_string()); }) {}
  /// Before the server starts.
  void Listen(net::GrpcAcceptor& acceptor) { acceptor_ = &acceptor; }
  Departure& departure() { return departure_; }

  grpc::ServerWriteReactor<v1::GenerateChunk>* Generate(grpc::CallbackServerContext* context,
                                                        const v1::GenerateRequest* request) override {
    auto stream = GenerateWriter::Make(context);
    if (context->IsCancelled()) {  // nobody waits for it any more
      stream->Finish(grpc::Status::CANCELLED);
      return stream.get();
    }
    const std::string given =
        request->request_id().empty() ? Metadata(*context, "x-request-id") : request->request_id();
    const bool only_ids = !service_.services().model.tokenizer->exists();
    GenerateStream::Options options{ids_.GivenOrNew(given), request->return_token_ids() || only_ids, request->echo(),
                                    request->text(), &slow_reader_};
    context->AddInitialMetadata("x-request-id", options.public_id);
    auto refuse = [&](const ApiError& error) {
      service_.services().metrics.Refused(error.code.empty() ? "invalid" : error.code);
      stream->Finish(ToGrpc(error));
      return stream.get();
    };
    if (!keys_.Allows(Metadata(*context, "authorization"))) return refuse(Unauthorized());
    auto decoded = DecodeGenerate(*request);
    if (auto* error = std::get_if<ApiError>(&decoded)) return refuse(*error);
    const TimePoint connected = acceptor_->Useful(context->peer());
    RequestInput input = std::get<RequestInput>(std::move(decoded));
    input.connected = connected;
    input.request_id = ids_.OnceOnly(options.public_id);
    input.account = keys_.AccountOf(Metadata(*context, "authorization"));
    if (!service_.services().config.share_prefix_cache)
      input.cache_salt = keys_.SaltOf(Metadata(*context, "authorization"), input.cache_salt);
    input.session = Metadata(*context, "x-session-id");
    if (service_.services().traces != nullptr) input.traceparent = Metadata(*context, "traceparent");
    input.timeout = Remaining(*context);

    EventLoop& loop = pool_.Next();
    auto answer = std::make_shared<GenerateStream>(service_, loop, context, stream, std::move(options));
    stream->Listen({[&loop, answer] { loop.Post([answer] { answer->Cancelled(); }); },
                    [&loop, answer] { loop.Post([answer] { answer->Drained(); }); },
                    [&loop, answer]() mutable { loop.Post([answer = std::move(answer)] {}); }});  // dies there
    loop.Post([answer, input = std::move(input)]() mutable { answer->Submit(std::move(input)); });
    return stream.get();
  }

  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context, const v1::GetModelRequest* request,
                                     v1::ModelCard* card) override {
    auto* reactor = context->DefaultReactor();
    const CallServices& s = service_.services();
    auto fail = [&](const ApiError& error) {
      reactor->Finish(ToGrpc(error));
      return reactor;
    };
    if (!keys_.Allows(Metadata(*context, "authorization"))) return fail(Unauthorized());
    acceptor_->Useful(context->peer());
    if (!ServesModel(s.config, s.model, request->model()))
      return fail(ModelNotFound(request->model(), PublicModelNames(s.config, s.model)));
    const auto facts = service_.fleet().model_facts();
    if (!facts)
      return fail(FromStatus(absl::UnavailableError(StrCat("no worker is ready: ", service_.ReadinessNow().detail))));
    card->set_name(PublicModelName(s.config, s.model));
    card->set_max_model_len(facts->max_model_len);
    card->set_vocab_size(facts->vocab_size);
    const auto& eos = s.model.eos_token_ids.empty() ? facts->eos_token_ids : s.model.eos_token_ids;
    card->mutable_eos_token_ids()->Add(eos.begin(), eos.end());
    card->set_version(version_);
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  EventLoopPool& pool_;
  RequestService& service_;
  const ApiKeys& keys_;
  RequestIds& ids_;
  const std::string version_;
  const std::function<void(const std::string& peer)> slow_reader_;
  net::GrpcAcceptor* acceptor_ = nullptr;
  Departure departure_;
};

using Watchers = std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>;

Watchers WatchedBy(net::CallWatcher& watcher) {
  Watchers out;
  out.push_back(std::make_unique<net::WatchedCalls>(watcher));
  return out;
}

/// Whose calls are in vain. A right key lets messages come, from the first one on (GrpcAcceptor::Options). Whoever
/// gives up more calls than he may (GivenUpCalls), by his key and on all of his connections, loses those on which he
/// goes on.
class Doorkeeper final : public net::CallWatcher {
 public:
  /// `most_on_one`: calls that may run on one connection.
  Doorkeeper(const ApiKeys& keys, int32_t most_on_one) : keys_(keys), given_up_(most_on_one, clock_) {}
  /// Before the server starts.
  void Listen(net::GrpcAcceptor& acceptor) { acceptor_ = &acceptor; }
  void OnBegin(const grpc::ServerContextBase& call, std::string_view peer, std::string_view method) override {
    if (!Begin(WhoOf(call, peer), peer)) return acceptor_->EndOf(peer, kGivenUp);
    if (acceptor_->MayAsk(peer) || !method.starts_with(kApi)) return;
    if (keys_.Allows(Metadata(call, "authorization"))) acceptor_->SetMayAsk(peer);
  }
  void OnEnd(std::string_view peer, End end) override {
    if (!Over(WhoOf(*end.call, peer), peer, end)) acceptor_->EndOf(peer, kGivenUp);
    acceptor_->OnCallEnd(peer, end);
  }

 private:
  static constexpr const char* kGivenUp = "calls-given-up-per-key";
  /// By the key, or without one by the address.
  std::string WhoOf(const grpc::ServerContextBase& call, std::string_view peer) const {
    const KeyAccount* account = keys_.open() ? nullptr : keys_.AccountOf(Metadata(call, "authorization"));
    if (account != nullptr) return StrCat("key ", reinterpret_cast<uintptr_t>(account));
    return net::PeerOf(peer).address().to_string();
  }
  bool Begin(const std::string& who, std::string_view peer) {
    std::lock_guard lock(mutex_);
    return given_up_.Begin(who, peer);
  }
  bool Over(const std::string& who, std::string_view peer, const End& end) {
    std::lock_guard lock(mutex_);
    return given_up_.End(who, peer, end.given_up, end.lasted);
  }
  static constexpr std::string_view kApi = "/baton.v1.Generation/";
  const ApiKeys& keys_;
  net::GrpcAcceptor* acceptor_ = nullptr;
  const SteadyClock clock_;
  mutable std::mutex mutex_;  // guards what follows
  net::GivenUpCalls given_up_;
};

}  // namespace

struct GrpcServer::Inner {
  Inner(EventLoopPool& pool, RequestService& service, const ApiKeys& keys, RequestIds& ids, const Options& options)
      : api(pool, service, keys, ids, options), doorkeeper(keys, options.max_streams) {}
  GenerationApi api;
  Doorkeeper doorkeeper;
  grpc::CallbackGenericService others;          ///< knows no method; with it WatchedCalls sees calls of any
  std::unique_ptr<net::GrpcAcceptor> acceptor;  ///< outlives the server
  std::unique_ptr<grpc::Server> server;
  std::thread tells;  ///< once it drains
  bool stopped = false;
};

GrpcServer::GrpcServer(std::unique_ptr<Inner> inner) : inner_(std::move(inner)) {}

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(Options options, EventLoopPool& pool,
                                                              RequestService& service, const ApiKeys& keys,
                                                              RequestIds& ids) {
  const auto found = net::AddressToBind(options.host, options.port);
  if (!found.ok())
    return absl::FailedPreconditionError(StrCat("--host ", options.host, ": ", found.status().message()));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  auto inner = std::make_unique<Inner>(pool, service, keys, ids, options);
  grpc::ServerBuilder builder;
  const auto credentials = options.grpc_tls != nullptr ? options.grpc_tls->ForServer("grpc", options.ask_client)
                                                       : grpc::InsecureServerCredentials();
  BATON_ASSIGN_OR_RETURN(inner->acceptor, net::GrpcAcceptor::Listen(
                                              {.where = *found,
                                               .port = "grpc",
                                               .flags = "--host, --grpc-port",
                                               .limits = options.limits,
                                               .new_per_second = options.new_per_second,
                                               .vain_tries = VainTriesOf(options.new_per_second),
                                               .message_bytes = options.max_message_bytes,
                                               .bytes_between_calls = kMessagesBetweenCalls * options.max_message_bytes,
                                               .message_time = MessageTimeOf(options.idle),
                                               .first_message_time = options.idle.begin,
                                               .stranger_calls = kStrangersCalls,
                                               .all_stranger_calls = kAllStrangersCalls,
                                               .first_bytes_time = options.idle.begin,
                                               .plain_text = options.grpc_tls == nullptr,
                                               .useful_stay = true,
                                               .refused = std::move(options.connection_refused)},
                                              builder, credentials));
  inner->api.Listen(*inner->acceptor);
  inner->doorkeeper.Listen(*inner->acceptor);
  builder.experimental().SetInterceptorCreators(WatchedBy(inner->doorkeeper));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_streams);
  builder.SetResourceQuota(
      grpc::ResourceQuota("clients").Resize(std::max(kLeastMemory, kMessagesInMemory * options.max_message_bytes)));
  net::BoundConnections(builder, options.idle);
  builder.SetMaxReceiveMessageSize(static_cast<int>(std::min<size_t>(options.max_message_bytes, 1u << 30)));
  builder.RegisterService(&inner->api);
  builder.RegisterCallbackGenericService(&inner->others);
  inner->server = builder.BuildAndStart();
  if (!inner->server) return absl::InternalError("gRPC does not start");
  inner->acceptor->Start();
  std::unique_ptr<GrpcServer> server(new GrpcServer(std::move(inner)));
  server->SetServing(false);
  return server;
}

GrpcServer::~GrpcServer() { Stop(Duration::zero()); }

uint16_t GrpcServer::port() const { return inner_->acceptor->port(); }

void GrpcServer::SetServing(bool serving) {
  grpc::HealthCheckServiceInterface* health = inner_->server->GetHealthCheckService();
  if (!health) return;
  health->SetServingStatus(serving);
  health->SetServingStatus(v1::Generation::service_full_name(), serving);
}

void GrpcServer::Drain() {
  if (!inner_->api.departure().Begin()) return;
  SetServing(false);
  inner_->tells = std::thread([inner = inner_.get()] {
    inner->api.departure().Run([inner] { net::SendGoaways(*inner->server); },
                               [inner](TimePoint when) { return inner->acceptor->AnyLeft(when); });
  });
}

bool GrpcServer::WaitGone(Duration timeout) const { return inner_->api.departure().WaitGone(timeout); }

void GrpcServer::Stop(Duration grace) {
  if (std::exchange(inner_->stopped, true)) return;
  inner_->api.departure().End();
  if (inner_->tells.joinable()) inner_->tells.join();
  inner_->acceptor->Stop();
  inner_->server->Shutdown(std::chrono::system_clock::now() +
                           std::chrono::duration_cast<std::chrono::milliseconds>(grace));
  inner_->server->Wait();
}

}  // namespace baton::router
