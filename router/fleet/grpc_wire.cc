#include "router/fleet/grpc_wire.h"

#include <grpcpp/grpcpp.h>

#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "common/net/address.h"
#include "common/net/socket_address.h"
#include "common/status.h"
#include "common/str_cat.h"
#include "common/tls/context.h"
#include "common/tls/grpc_credentials.h"
#include "common/tls/live_identity.h"
#include "common/trust/greeting.h"
#include "proto/order_limits.h"
#include "proto/protocol_codec.h"
#include "proto/worker.grpc.pb.h"
#include "router/fleet/grpc_calls.h"
#include "router/fleet/relay_call.h"
#include "router/fleet/relay_codec.h"
#include "router/fleet/watch_call.h"
#include "router/fleet/watch_codec.h"
#include "router/fleet/wire_guard.h"
#include "router/percent_text.h"

namespace baton::router {
namespace {

constexpr int kMostOfAMessage = 4 << 20;  // bytes of one message on the channel; a worker's have some 64 KiB

// The answer stream of one Prefill leg. Deletes itself when the call is over.
class PrefillReactor final : public grpc::ClientReadReactor<v1::PrefillReply> {
 public:
  PrefillReactor(v1::Worker::Stub& stub, v1::PrefillRequest request, std::function<void(LegAnswer)> on_answer,
                 std::shared_ptr<grpc::ClientContext> context, std::shared_ptr<WireGuard> guard,
                 std::function<void()> over)
      : request_(std::move(request)),
        on_answer_(std::move(on_answer)),
        context_(std::move(context)),
        guard_(std::move(guard)),
        over_(std::move(over)) {
    stub.async()->Prefill(context_.get(), &request_, this);
    StartRead(&reply_);
    StartCall();
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    guard_->sockets().Took(reply_.ByteSizeLong());
    if (!reply_.prompt_logprobs().empty()) on_answer_(PrefillPiece{std::move(*reply_.mutable_prompt_logprobs())});
    if (reply_.last()) result_ = DecodePrefill(reply_);
    StartRead(&reply_);
  }
  void OnDone(const grpc::Status& status) override {
    if (!status.ok()) result_ = PrefillResult{FromGrpc(status)};
    if (!result_) result_ = PrefillResult{absl::InternalError("the prefill leg ended without a result")};
    on_answer_(*std::move(result_));
    const auto over = std::move(over_);
    delete this;
    over();
  }

 private:
  v1::PrefillRequest request_;
  v1::PrefillReply reply_;
  std::optional<PrefillResult> result_;
  std::function<void(LegAnswer)> on_answer_;
  std::shared_ptr<grpc::ClientContext> context_;
  std::shared_ptr<WireGuard> guard_;
  std::function<void()> over_;
};

absl::Status Closed() { return absl::UnavailableError("the connection to the worker is closed"); }

grpc::ChannelArguments ChannelArgs(const GrpcWire::Options& options, WireGuard& guard) {
  grpc::ChannelArguments args;
  guard.sockets().Join(args);
  args.SetMaxReceiveMessageSize(kMostOfAMessage);
  args.SetInt(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1 << GRPC_COMPRESS_NONE);
  args.SetInt(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);  // nothing bounds what a message unpacks to
  args.SetMaxSendMessageSize(-1);                             // the worker says what is too large, of that call alone
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, options.backoff_max_ms);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  args.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 1000);  // a name that moves is followed at once
  return args;
}

std::string HostOf(const GrpcWire::Options& options) {
  const auto where = net::ParseHostPort(options.address);
  return where.ok() ? where->host : options.address;
}

std::shared_ptr<grpc::ChannelCredentials> CredentialsFor(const GrpcWire::Options& options) {
  if (options.grpc_tls == nullptr) return grpc::InsecureChannelCredentials();
  return options.grpc_tls->ForClient(tls::NamesToProve(HostOf(options), options.tls_server_name));
}

// The same of a connection that is not gRPC's, with the identity of the moment.
absl::StatusOr<std::shared_ptr<const tls::Context>> ContextFor(const GrpcWire::Options& options) {
  const std::string host = HostOf(options);
  return tls::Context::ForClient(options.identity->now(), {.names = tls::NamesToProve(host, options.tls_server_name),
                                                           .sni = net::IsIpAddress(host) ? "" : host,
                                                           .alpn = {"h2"}});
}

// Where a call went, of gRPC's "ipv4:10.0.0.1:7000" or "ipv6:%5Bfd00::1%5D:7000".
absl::StatusOr<net::SocketAddress> PeerAddress(const std::string& peer) {
  const std::string text = FromPercent(peer.substr(peer.find(':') + 1));
  const auto where = net::ParseHostPort(text);
  if (!peer.starts_with("ipv") || !where.ok())
    return absl::InternalError(StrCat("gRPC reached the worker at \"", peer, "\", which is no IP address"));
  return net::SocketAddress::Of(where->host, where->port);
}

// Why a worker could not be reached, with what TLS has to say about it first.
absl::Status Explained(const absl::Status& status, bool with_tls) {
  if (status.code() != absl::StatusCode::kUnavailable) return status;
  return absl::Status(status.code(), tls::ExplainGrpc(std::string(status.message()), with_tls));
}

}  // namespace

struct GrpcWire::Inner : std::enable_shared_from_this<Inner> {
  explicit Inner(Options o)
      : options(std::move(o)),
        guard(std::make_shared<WireGuard>(*options.relay_loop, options.address, calls)),
        channel(grpc::CreateCustomChannel("dns:///" + options.address, CredentialsFor(options),
                                          ChannelArgs(options, *guard))),
        stub(v1::Worker::NewStub(channel)) {
    guard->Start();
  }
  const Options options;
  const std::shared_ptr<CallCount> calls = std::make_shared<CallCount>();
  const std::shared_ptr<WireGuard> guard;
  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<v1::Worker::Stub> stub;
  std::mutex mutex;  // guards what follows
  bool stopping = false;
  std::string token;        ///< of the session that the greeting began; empty: there is no secret
  net::SocketAddress peer;  ///< of the last handshake: a name may have several, and this one has answered
  std::string incarnation;  ///< of the worker that answered it, which every later call is meant for: who answers those
                            ///< may have restarted, or be another one behind the same address
  bool takes_short_ids = false;  ///< that worker, in an Attach
  uint64_t session = 0;
  std::shared_ptr<grpc::ClientContext> handshake, watch, flip;
  std::shared_ptr<RelayCall> orders;                    ///< of the session
  std::set<std::shared_ptr<grpc::ClientContext>> legs;  ///< of the session

  std::string SessionName(uint64_t number) const { return StrCat(options.router_id, "/", number); }

  /// The context of a new leg; null when `wanted` is not the session any more. Pair with EndLeg.
  std::shared_ptr<grpc::ClientContext> BeginLeg(uint64_t wanted) {
    std::lock_guard lock(mutex);
    if (stopping || wanted != session || session == 0) return nullptr;
    calls->Add();
    return *legs.insert(NewContext()).first;
  }
  /// Of a call after the handshake. `mutex` is held.
  std::shared_ptr<grpc::ClientContext> NewContext() const {
    auto context = std::make_shared<grpc::ClientContext>();
    if (!token.empty()) context->AddMetadata("baton-token", token);
    if (!incarnation.empty()) context->AddMetadata("baton-incarnation", incarnation);
    return context;
  }
  void EndLeg(const std::shared_ptr<grpc::ClientContext>& context) {
    {
      std::lock_guard lock(mutex);
      legs.erase(context);
    }
    calls->Done();
  }
  absl::Status NotePeer(const std::string& reached) {
    BATON_ASSIGN_OR_RETURN(const net::SocketAddress where, PeerAddress(reached));
    std::lock_guard lock(mutex);
    peer = where;
    return absl::OkStatus();
  }
  std::shared_ptr<RelayCall> OrdersOf(uint64_t wanted) {
    std::lock_guard lock(mutex);
    return wanted == session ? orders : nullptr;
  }

  void Took(const google::protobuf::MessageLite& reply) const { guard->sockets().Took(reply.ByteSizeLong()); }

  using Deadline = std::chrono::system_clock::time_point;
  void Ask(const v1::HandshakeRequest& request, Deadline deadline,
           std::function<void(const absl::Status&, const v1::HandshakeReply&)> done);
  void Greet(Deadline deadline, std::function<void(const absl::StatusOr<std::string>&)> done);
  absl::Status Reserve(uint64_t of, const TokenizedRequest& generation, const ReserveLeg& leg,
                       std::function<void(LegAnswer)> on_answer);
  absl::Status Prefill(uint64_t of, const TokenizedRequest& generation, const PrefillLeg& leg,
                       std::function<void(LegAnswer)> on_answer);
  absl::Status Cancel(uint64_t of, const CancelLeg& leg);
};

void GrpcWire::Inner::Ask(const v1::HandshakeRequest& request, Deadline deadline,
                          std::function<void(const absl::Status&, const v1::HandshakeReply&)> done) {
  struct Call {
    v1::HandshakeRequest request;
    v1::HandshakeReply reply;
    std::shared_ptr<grpc::ClientContext> context = std::make_shared<grpc::ClientContext>();
  };
  auto call = std::make_shared<Call>();
  call->request = request;
  call->context->set_deadline(deadline);
  {
    std::lock_guard lock(mutex);
    if (stopping) return;
    handshake = call->context;
    calls->Add();
  }
  stub->async()->Handshake(call->context.get(), &call->request, &call->reply,
                           [call, done = std::move(done), inner = shared_from_this()](grpc::Status status) {
                             inner->Took(call->reply);
                             absl::Status answered =
                                 inner->guard->Explain(Explained(FromGrpc(status), inner->options.grpc_tls != nullptr));
                             if (answered.ok()) answered = inner->NotePeer(call->context->peer());
                             done(answered, call->reply);
                             inner->calls->Done();
                           });
}

/// Makes the worker prove that it knows the secret before it hears anything of ours. `done`: what proves that we do.
void GrpcWire::Inner::Greet(Deadline deadline, std::function<void(const absl::StatusOr<std::string>&)> done) {
  auto greeting = std::make_shared<trust::Greeting>(options.secret, trust::Greeting::Role::kCaller,
                                                    trust::Purpose::kRpc, trust::NewNonce());
  v1::HandshakeRequest request;
  EncodeVersions(WorkerProtocol(), *request.mutable_protocol());
  greeting->Begin(*request.mutable_greeting());
  const auto inner = shared_from_this();
  Ask(request, deadline, [inner, greeting, done](const absl::Status& status, const v1::HandshakeReply& reply) {
    if (!status.ok()) return done(status);
    std::string_view answer = reply.greeting();
    std::string proof;
    absl::Status taken = answer.empty() ? absl::OkStatus() : greeting->Take(answer, proof);
    if (taken.ok() && !greeting->done())
      taken = absl::PermissionDeniedError("the worker does not greet: it is started without --cluster-secret-file");
    if (!taken.ok()) return done(absl::PermissionDeniedError(taken.message()));
    {
      std::lock_guard lock(inner->mutex);
      inner->token = greeting->SessionToken();
    }
    const trust::Nonce& nonce = greeting->other_nonce();
    done(std::string(reinterpret_cast<const char*>(nonce.data()), nonce.size()) + proof);
  });
}

absl::Status GrpcWire::Inner::Reserve(uint64_t of, const TokenizedRequest& generation, const ReserveLeg& leg,
                                      std::function<void(LegAnswer)> on_answer) {
  const auto context = BeginLeg(of);
  if (!context) return Closed();
  struct Call {
    v1::ReserveRequest request;
    v1::ReserveReply reply;
  };
  auto call = std::make_shared<Call>();
  call->request = EncodeReserve(generation, leg);
  call->request.set_router_session(SessionName(of));
  stub->async()->Reserve(context.get(), &call->request, &call->reply,
                         [call, context, inner = shared_from_this(), done = std::move(on_answer)](grpc::Status status) {
                           inner->Took(call->reply);
                           done(status.ok() ? DecodeReserve(call->reply) : ReserveResult{FromGrpc(status)});
                           inner->EndLeg(context);
                         });
  return absl::OkStatus();
}

absl::Status GrpcWire::Inner::Prefill(uint64_t of, const TokenizedRequest& generation, const PrefillLeg& leg,
                                      std::function<void(LegAnswer)> on_answer) {
  const auto context = BeginLeg(of);
  if (!context) return Closed();
  new PrefillReactor(*stub, EncodePrefill(generation, leg), std::move(on_answer), context, guard,
                     [inner = shared_from_this(), context] { inner->EndLeg(context); });  // deletes itself in OnDone
  return absl::OkStatus();
}

absl::Status GrpcWire::Inner::Cancel(uint64_t of, const CancelLeg& leg) {
  const auto context = BeginLeg(of);
  if (!context) return absl::OkStatus();  // the worker noticed by the loss of the connection
  struct Call {
    v1::CancelRequest request;
    v1::CancelReply reply;
  };
  auto call = std::make_shared<Call>();
  call->request = EncodeCancel(leg);
  stub->async()->Cancel(context.get(), &call->request, &call->reply,
                        [call, context, inner = shared_from_this()](grpc::Status) {
                          inner->Took(call->reply);
                          inner->EndLeg(context);
                        });
  return absl::OkStatus();
}

GrpcWire::GrpcWire(Options options) : inner_(std::make_shared<Inner>(std::move(options))) {}
GrpcWire::~GrpcWire() { Shutdown(); }

void GrpcWire::Handshake(const std::string& hash_key, Duration timeout, std::function<void(HandshakeAnswer)> done) {
  v1::HandshakeRequest request;
  EncodeVersions(WorkerProtocol(), *request.mutable_protocol());
  request.set_router_id(inner_->options.router_id);
  request.set_router_version(inner_->options.router_version);
  request.set_hash_key(hash_key);
  const auto deadline =
      std::chrono::system_clock::now() + std::chrono::duration_cast<std::chrono::milliseconds>(timeout);
  const auto ask = [inner = inner_, deadline, done](const v1::HandshakeRequest& what) {
    inner->Ask(what, deadline, [inner, done](const absl::Status& status, const v1::HandshakeReply& reply) {
      {
        std::lock_guard lock(inner->mutex);
        inner->incarnation = SaidIncarnation(reply.incarnation());
        inner->takes_short_ids = reply.takes_short_ids();
      }
      done(DecodeHandshake(status, reply));
    });
  };
  if (inner_->options.secret == nullptr) return ask(request);
  inner_->Greet(deadline, [request, ask, done](const absl::StatusOr<std::string>& proof) mutable {
    if (!proof.ok()) return done(DecodeHandshake(proof.status(), {}));
    request.set_greeting(*proof);
    ask(request);
  });
}

void GrpcWire::OpenRelay(uint64_t session, RelayHandlers handlers) {
  std::lock_guard lock(inner_->mutex);
  if (inner_->stopping) return;
  Http2Stream::Options options;
  options.where = inner_->peer;
  options.most_message_bytes = kMostMessageBytes;
  options.head.authority = inner_->options.address;
  if (!inner_->token.empty()) options.head.metadata.emplace_back("baton-token", inner_->token);
  options.head.metadata.emplace_back("baton-session", inner_->SessionName(session));
  if (!inner_->incarnation.empty()) options.head.metadata.emplace_back("baton-incarnation", inner_->incarnation);
  if (inner_->options.identity != nullptr) options.tls = [inner = inner_] { return ContextFor(inner->options); };
  inner_->session = session;
  inner_->calls->Add();
  inner_->orders = OpenRelayCall(*inner_->options.relay_loop, std::move(options), inner_->takes_short_ids,
                                 std::move(handlers), inner_->calls);
}

void GrpcWire::OpenWatch(WatchHandlers handlers) {
  std::shared_ptr<grpc::ClientContext> context;
  {
    std::lock_guard lock(inner_->mutex);
    if (inner_->stopping) return;
    context = inner_->NewContext();
    if (inner_->watch) inner_->watch->TryCancel();
    inner_->watch = context;
    inner_->calls->Add();
  }
  OpenWatchCall(inner_->channel, std::move(context), inner_->options.router_id, inner_->options.reports,
                std::move(handlers), inner_->guard, inner_->calls);
}

void GrpcWire::CloseSession() {
  std::lock_guard lock(inner_->mutex);
  if (inner_->watch) inner_->watch->TryCancel();
  if (inner_->orders) inner_->orders->Close();
  inner_->watch.reset();
  for (const auto& leg : inner_->legs) leg->TryCancel();
  inner_->orders.reset();
  inner_->session = 0;
}

absl::Status GrpcWire::Send(uint64_t session, const TokenizedRequest& generation, const LegOrder& order,
                            std::function<void(LegAnswer)> on_answer) {
  struct Sender {
    Inner& inner;
    const uint64_t session;
    const TokenizedRequest& generation;
    std::function<void(LegAnswer)> on_answer;
    absl::Status operator()(const ReserveLeg& leg) {
      return inner.Reserve(session, generation, leg, std::move(on_answer));
    }
    absl::Status operator()(const PrefillLeg& leg) {
      return inner.Prefill(session, generation, leg, std::move(on_answer));
    }
    absl::Status operator()(const CancelLeg& leg) { return inner.Cancel(session, leg); }
    absl::Status operator()(const AttachLeg& leg) {
      const auto orders = inner.OrdersOf(session);
      return orders ? orders->Attach(generation, leg, inner.options.max_pending_attaches) : Closed();
    }
    absl::Status operator()(const CancelAttached& cancel) {
      if (const auto orders = inner.OrdersOf(session)) orders->Cancel(cancel);
      return absl::OkStatus();
    }
    absl::Status operator()(const GiveCredit& credit) {
      if (const auto orders = inner.OrdersOf(session)) orders->Credit(credit);
      return absl::OkStatus();
    }
  };
  return std::visit(Sender{*inner_, session, generation, std::move(on_answer)}, order);
}

void GrpcWire::Renew(uint64_t session, const std::vector<LegRenewal>& legs) {
  if (const auto orders = inner_->OrdersOf(session)) orders->Renew(legs);
}

void GrpcWire::Meet(uint64_t session, const std::string& landing_address) {
  if (const auto orders = inner_->OrdersOf(session)) orders->Meet(landing_address);
}

void GrpcWire::Flip(WorkerRole to, Duration patience, std::function<void(FlipAnswer)> done) {
  struct Call {
    v1::FlipRequest request;
    v1::FlipReply reply;
  };
  auto call = std::make_shared<Call>();
  call->request.set_role(to == WorkerRole::kPrefill ? v1::WORKER_ROLE_PREFILL : v1::WORKER_ROLE_DECODE);
  call->request.set_deadline_ms(static_cast<uint32_t>(Milliseconds(patience)));
  std::shared_ptr<grpc::ClientContext> context;
  {
    std::lock_guard lock(inner_->mutex);
    if (inner_->stopping) return;
    context = inner_->NewContext();
    inner_->flip = context;
    inner_->calls->Add();
  }
  inner_->stub->async()->Flip(
      context.get(), &call->request, &call->reply,
      [call, context, done = std::move(done), counted = inner_->calls](grpc::Status status) {
        done({FromGrpc(status), call->reply.incarnation(), call->reply.drain_ms(), call->reply.change_ms()});
        counted->Done();
      });
}

bool GrpcWire::HasUnread() const { return inner_->guard->sockets().HasUnread(); }

void GrpcWire::Shutdown() {
  {
    std::lock_guard lock(inner_->mutex);
    inner_->stopping = true;
    if (inner_->handshake) inner_->handshake->TryCancel();
    if (inner_->flip) inner_->flip->TryCancel();
  }
  CloseSession();
  inner_->guard->Stop();
  inner_->calls->WaitZero();
}

}  // namespace baton::router
