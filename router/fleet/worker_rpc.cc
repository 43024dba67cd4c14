#include "router/fleet/worker_rpc.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "common/str_cat.h"
#include "proto/worker.grpc.pb.h"
#include "router/fleet/attach_codec.h"
#include "router/fleet/relay_codec.h"

namespace baton::router {
namespace {

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

std::vector<uint64_t> Keys(const std::string& hashes) {
  std::vector<uint64_t> keys(hashes.size() / 16);
  for (size_t i = 0; i < keys.size(); ++i) std::memcpy(&keys[i], hashes.data() + 16 * i, 8);
  return keys;
}

WatchEvent DecodeEvent(const v1::WorkerEvent& in) {
  WatchEvent out;
  out.incarnation = in.incarnation();
  out.sequence_number = in.sequence_number();
  switch (in.event_case()) {
    case v1::WorkerEvent::kSnapshot:
      out.kind = WatchEvent::Kind::kSnapshot;
      out.keys = Keys(in.snapshot().hashes());
      out.snapshot_last = in.snapshot().last();
      break;
    case v1::WorkerEvent::kStored:
      out.kind = WatchEvent::Kind::kStored;
      out.keys = Keys(in.stored().hashes());
      out.digest = in.stored().digest();
      break;
    case v1::WorkerEvent::kRemoved:
      out.kind = WatchEvent::Kind::kRemoved;
      out.keys = Keys(in.removed().hashes());
      out.digest = in.removed().digest();
      break;
    case v1::WorkerEvent::kState:
      out.kind = WatchEvent::Kind::kState;
      out.state = in.state().state() == v1::WorkerState::STATE_DRAINING  ? LinkState::kDraining
                  : in.state().state() == v1::WorkerState::STATE_LOADING ? LinkState::kLoading
                                                                         : LinkState::kReady;
      out.detail = in.state().detail();
      break;
    default: out.kind = WatchEvent::Kind::kLoad; out.load = DecodeLoad(in.load());
  }
  return out;
}

// Counts calls that may still call back, so that Shutdown can wait for them.
class CallCount {
 public:
  void Add() {
    std::lock_guard lock(mutex_);
    ++count_;
  }
  void Done() {
    std::lock_guard lock(mutex_);
    if (--count_ == 0) zero_.notify_all();
  }
  void WaitZero() {
    std::unique_lock lock(mutex_);
    zero_.wait(lock, [this] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable zero_;
  int count_ = 0;
};

// The Watch stream of one session. Deletes itself when the call is over.
class WatchReactor final : public grpc::ClientReadReactor<v1::WorkerEvent> {
 public:
  WatchReactor(v1::Worker::Stub& stub, const v1::WatchRequest& request, WorkerRpc::WatchHandlers handlers,
               std::shared_ptr<grpc::ClientContext> context, std::shared_ptr<CallCount> calls)
      : request_(request), handlers_(std::move(handlers)), context_(std::move(context)), calls_(std::move(calls)) {
    stub.async()->Watch(context_.get(), &request_, this);
    AddHold();  // the next read starts from another thread; the hold ends with the last read
    StartRead(&event_);
    StartCall();
  }
  void OnReadDone(bool ok) override {
    if (!ok) return RemoveHold();
    handlers_.on_event(DecodeEvent(event_), [this] { StartRead(&event_); });
  }
  void OnDone(const grpc::Status& status) override {
    handlers_.on_closed(FromGrpc(status));
    auto calls = calls_;
    delete this;
    calls->Done();
  }

 private:
  v1::WatchRequest request_;
  v1::WorkerEvent event_;
  WorkerRpc::WatchHandlers handlers_;
  std::shared_ptr<grpc::ClientContext> context_;
  std::shared_ptr<CallCount> calls_;
};

grpc::Slice Bytes(size_t size, const auto& write) {
  grpc_slice slice = grpc_slice_malloc(size);
  write(GRPC_SLICE_START_PTR(slice));
  return grpc::Slice(slice, grpc::Slice::STEAL_REF);
}

// RelayUp goes as bytes, whose parts are joined by being sent one behind the other.
using RelayStub = grpc::TemplatedGenericStub<grpc::ByteBuffer, v1::RelayDown>;
using RelayClient = grpc::ClientBidiReactor<grpc::ByteBuffer, v1::RelayDown>;

// What waits to be written on the relay; shared by the reactor and those who give orders.
struct RelayOutbox {
  std::mutex mutex;
  std::vector<grpc::Slice> attaches;
  v1::RelayUp pending;  // all the rest
  bool writing = false;
  bool closed = false;
  RelayClient* reactor = nullptr;
  grpc::ByteBuffer in_flight;

  // With `mutex` held. Everything that has gathered since the last write goes as one message.
  void WriteIfIdle() {
    if (writing || closed) return;
    if (const size_t rest = pending.ByteSizeLong(); rest > 0) {
      attaches.push_back(Bytes(rest, [&](uint8_t* out) { pending.SerializeWithCachedSizesToArray(out); }));
      pending.Clear();
    }
    if (attaches.empty()) return;
    in_flight = grpc::ByteBuffer(attaches.data(), attaches.size());
    attaches.clear();
    writing = true;
    reactor->StartWrite(&in_flight);
  }
};

class RelayReactor final : public RelayClient {
 public:
  RelayReactor(RelayStub& stub, WorkerRpc::RelayHandlers handlers, std::shared_ptr<RelayOutbox> outbox,
               std::shared_ptr<grpc::ClientContext> context, std::shared_ptr<CallCount> calls)
      : handlers_(std::move(handlers)),
        outbox_(std::move(outbox)),
        context_(std::move(context)),
        calls_(std::move(calls)) {
    outbox_->reactor = this;
    stub.PrepareBidiStreamingCall(context_.get(), "/baton.v1.Worker/Relay", grpc::StubOptions(), this);
    AddHold();  // writes start from other threads; the hold ends with the first sign of the end
    StartRead(&down_);
    StartCall();
  }
  void OnReadDone(bool ok) override {
    if (!ok) return EndHold();
    news_.clear();
    for (v1::RelayEntry& entry : *down_.mutable_entries()) {
      news_.push_back({entry.request_id(), DecodeNews(std::move(entry))});
    }
    handlers_.on_news(news_);
    StartRead(&down_);
  }
  void OnWriteDone(bool ok) override {
    std::lock_guard lock(outbox_->mutex);
    outbox_->writing = false;
    outbox_->in_flight.Clear();
    if (ok) outbox_->WriteIfIdle();
  }
  void OnDone(const grpc::Status& status) override {
    {
      std::lock_guard lock(outbox_->mutex);
      outbox_->closed = true;
    }
    handlers_.on_closed(FromGrpc(status));
    auto calls = calls_;
    delete this;
    calls->Done();
  }

 private:
  void EndHold() {
    {
      std::lock_guard lock(outbox_->mutex);
      outbox_->closed = true;
    }
    RemoveHold();
  }

  v1::RelayDown down_;         // read into again and again: its entries keep their memory
  std::vector<LegNews> news_;  // of down_; kept for its memory
  WorkerRpc::RelayHandlers handlers_;
  std::shared_ptr<RelayOutbox> outbox_;
  std::shared_ptr<grpc::ClientContext> context_;
  std::shared_ptr<CallCount> calls_;
};

// The answer stream of one Prefill leg. Deletes itself when the call is over.
class PrefillReactor final : public grpc::ClientReadReactor<v1::PrefillReply> {
 public:
  PrefillReactor(v1::Worker::Stub& stub, v1::PrefillRequest request, WorkerRpc::PrefillHandlers handlers,
                 std::shared_ptr<grpc::ClientContext> context, std::function<void()> over)
      : request_(std::move(request)),
        handlers_(std::move(handlers)),
        context_(std::move(context)),
        over_(std::move(over)) {
    stub.async()->Prefill(context_.get(), &request_, this);
    StartRead(&reply_);
    StartCall();
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (!reply_.prompt_logprobs().empty()) handlers_.on_prompt_logprobs(std::move(*reply_.mutable_prompt_logprobs()));
    if (reply_.last()) result_ = DecodePrefill(reply_);
    StartRead(&reply_);
  }
  void OnDone(const grpc::Status& status) override {
    if (!status.ok()) result_ = PrefillResult{FromGrpc(status)};
    if (!result_) result_ = PrefillResult{absl::InternalError("the prefill leg ended without a result")};
    handlers_.done(*std::move(result_));
    const auto over = std::move(over_);
    delete this;
    over();
  }

 private:
  v1::PrefillRequest request_;
  v1::PrefillReply reply_;
  std::optional<PrefillResult> result_;
  WorkerRpc::PrefillHandlers handlers_;
  std::shared_ptr<grpc::ClientContext> context_;
  std::function<void()> over_;
};

grpc::ChannelArguments ChannelArgs(const WorkerRpc::Options& options) {
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(-1);
  args.SetMaxSendMessageSize(-1);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, options.backoff_max_ms);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return args;
}

}  // namespace

struct WorkerRpc::Inner {
  explicit Inner(Options o)
      : options(std::move(o)),
        channel(grpc::CreateCustomChannel(options.address, grpc::InsecureChannelCredentials(), ChannelArgs(options))),
        stub(v1::Worker::NewStub(channel)),
        relay_stub(channel) {}
  const Options options;
  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<v1::Worker::Stub> stub;
  RelayStub relay_stub;
  const std::shared_ptr<CallCount> calls = std::make_shared<CallCount>();
  std::mutex mutex;  // guards what follows
  bool stopping = false;
  uint64_t session = 0;
  std::shared_ptr<grpc::ClientContext> handshake, watch, relay;
  std::shared_ptr<RelayOutbox> outbox;
  std::set<std::shared_ptr<grpc::ClientContext>> legs;  ///< of the session

  std::string SessionName(uint64_t number) const { return StrCat(options.router_id, "/", number); }

  /// The context of a new leg; null when `wanted` is not the session any more. Pair with EndLeg.
  std::shared_ptr<grpc::ClientContext> BeginLeg(uint64_t wanted) {
    std::lock_guard lock(mutex);
    if (stopping || wanted != session || session == 0) return nullptr;
    calls->Add();
    return *legs.insert(std::make_shared<grpc::ClientContext>()).first;
  }
  void EndLeg(const std::shared_ptr<grpc::ClientContext>& context) {
    {
      std::lock_guard lock(mutex);
      legs.erase(context);
    }
    calls->Done();
  }

  std::shared_ptr<RelayOutbox> OutboxOf(uint64_t wanted) {
    std::lock_guard lock(mutex);
    return wanted == session ? outbox : nullptr;
  }
};

WorkerRpc::WorkerRpc(Options options) : inner_(std::make_shared<Inner>(std::move(options))) {}
WorkerRpc::~WorkerRpc() { Shutdown(); }

void WorkerRpc::Handshake(const std::string& hash_key, Duration timeout, std::function<void(HandshakeAnswer)> done) {
  struct Call {
    v1::HandshakeRequest request;
    v1::HandshakeReply reply;
    std::shared_ptr<grpc::ClientContext> context = std::make_shared<grpc::ClientContext>();
  };
  auto call = std::make_shared<Call>();
  call->request.mutable_protocol()->set_min(kProtocolMin);
  call->request.mutable_protocol()->set_max(kProtocolMax);
  call->request.set_router_id(inner_->options.router_id);
  call->request.set_router_version(inner_->options.router_version);
  call->request.set_hash_key(hash_key);
  call->context->set_deadline(std::chrono::system_clock::now() +
                              std::chrono::duration_cast<std::chrono::milliseconds>(timeout));
  {
    std::lock_guard lock(inner_->mutex);
    if (inner_->stopping) return;
    inner_->handshake = call->context;
    inner_->calls->Add();
  }
  inner_->stub->async()->Handshake(call->context.get(), &call->request, &call->reply,
                                   [call, done = std::move(done), calls = inner_->calls](grpc::Status status) {
                                     HandshakeAnswer answer;
                                     answer.status = FromGrpc(status);
                                     answer.loading = call->reply.has_loading();
                                     answer.phase = call->reply.loading().phase();
                                     answer.progress = call->reply.loading().progress();
                                     answer.protocol_min = call->reply.protocol().min();
                                     answer.protocol_max = call->reply.protocol().max();
                                     answer.facts = DecodeFacts(call->reply);
                                     done(std::move(answer));
                                     calls->Done();
                                   });
}

void WorkerRpc::OpenRelay(uint64_t session, RelayHandlers handlers) {
  auto outbox = std::make_shared<RelayOutbox>();
  auto context = std::make_shared<grpc::ClientContext>();
  {
    std::lock_guard lock(inner_->mutex);
    if (inner_->stopping) return;
    inner_->session = session;
    inner_->relay = context;
    context->AddMetadata("baton-session", inner_->SessionName(session));
    inner_->calls->Add();
  }
  new RelayReactor(inner_->relay_stub, std::move(handlers), outbox, context,
                   inner_->calls);  // deletes itself in OnDone
  std::lock_guard lock(inner_->mutex);
  if (inner_->session == session) inner_->outbox = outbox;
}

void WorkerRpc::OpenWatch(WatchHandlers handlers) {
  auto context = std::make_shared<grpc::ClientContext>();
  {
    std::lock_guard lock(inner_->mutex);
    if (inner_->stopping) return;
    if (inner_->watch) inner_->watch->TryCancel();
    inner_->watch = context;
    inner_->calls->Add();
  }
  v1::WatchRequest request;
  request.set_router_id(inner_->options.router_id);
  request.set_load_interval_ms(inner_->options.load_interval_ms);
  new WatchReactor(*inner_->stub, request, std::move(handlers), context, inner_->calls);  // deletes itself in OnDone
}

void WorkerRpc::CloseSession() {
  std::lock_guard lock(inner_->mutex);
  if (inner_->watch) inner_->watch->TryCancel();
  if (inner_->relay) inner_->relay->TryCancel();
  inner_->watch.reset();
  inner_->relay.reset();
  for (const auto& leg : inner_->legs) leg->TryCancel();
  inner_->outbox.reset();
  inner_->session = 0;
}

absl::Status WorkerRpc::Attach(uint64_t session, const Generation& generation, const AttachOrder& order) {
  auto outbox = inner_->OutboxOf(session);
  if (!outbox) return absl::UnavailableError("the connection to the worker is closed");
  const AttachEntry entry(generation, order);
  grpc::Slice attach = Bytes(entry.size(), [&entry](uint8_t* out) { entry.Write(out); });
  std::lock_guard lock(outbox->mutex);
  if (outbox->closed) return absl::UnavailableError("the connection to the worker is closed");
  if (outbox->attaches.size() >= inner_->options.max_pending_attaches) {
    return absl::ResourceExhaustedError(
        StrCat(outbox->attaches.size(), " requests wait to be sent to ", inner_->options.address));
  }
  outbox->attaches.push_back(std::move(attach));
  outbox->WriteIfIdle();
  return absl::OkStatus();
}

void WorkerRpc::Cancel(uint64_t session, const std::string& leg_id, uint64_t attach_gen,
                       std::optional<uint32_t> index) {
  auto outbox = inner_->OutboxOf(session);
  if (!outbox) return;
  std::lock_guard lock(outbox->mutex);
  v1::RelayCancel* cancel = outbox->pending.add_cancel();
  cancel->set_request_id(leg_id);
  cancel->set_attach_gen(attach_gen);
  if (index) cancel->set_index(*index);
  outbox->WriteIfIdle();
}

void WorkerRpc::Credit(uint64_t session, const std::string& leg_id, uint64_t attach_gen, uint32_t index,
                       uint32_t tokens) {
  auto outbox = inner_->OutboxOf(session);
  if (!outbox) return;
  std::lock_guard lock(outbox->mutex);
  v1::Credit* credit = outbox->pending.add_credit();
  credit->set_request_id(leg_id);
  credit->set_attach_gen(attach_gen);
  credit->set_index(index);
  credit->set_tokens(tokens);
  outbox->WriteIfIdle();
}

void WorkerRpc::Renew(uint64_t session, const std::vector<LegRenewal>& legs) {
  auto outbox = inner_->OutboxOf(session);
  if (!outbox || legs.empty()) return;
  std::lock_guard lock(outbox->mutex);
  outbox->pending.clear_renewal();  // what was not sent yet is said again, where it still holds
  for (const LegRenewal& leg : legs) *outbox->pending.add_renewal() = EncodeRenewal(leg);
  outbox->WriteIfIdle();
}

void WorkerRpc::Meet(uint64_t session, const std::string& landing_address) {
  auto outbox = inner_->OutboxOf(session);
  if (!outbox) return;
  std::lock_guard lock(outbox->mutex);
  outbox->pending.add_meet()->set_landing_address(landing_address);
  outbox->WriteIfIdle();
}

void WorkerRpc::Reserve(uint64_t session, const Generation& generation, const LegKey& key, uint32_t expiry_ms,
                        std::function<void(ReserveResult)> done) {
  const auto context = inner_->BeginLeg(session);
  if (!context) return done(ReserveResult{absl::UnavailableError("the connection to the worker is closed")});
  struct Call {
    v1::ReserveRequest request;
    v1::ReserveReply reply;
  };
  auto call = std::make_shared<Call>();
  call->request = EncodeReserve(generation, key, expiry_ms);
  call->request.set_router_session(inner_->SessionName(session));
  inner_->stub->async()->Reserve(context.get(), &call->request, &call->reply,
                                 [call, context, inner = inner_, done = std::move(done)](grpc::Status status) {
                                   done(status.ok() ? DecodeReserve(call->reply) : ReserveResult{FromGrpc(status)});
                                   inner->EndLeg(context);
                                 });
}

void WorkerRpc::Prefill(uint64_t session, const Generation& generation, const LegKey& key, const TicketGrant& grant,
                        uint32_t deadline_ms, PrefillHandlers handlers) {
  const auto context = inner_->BeginLeg(session);
  if (!context) return handlers.done(PrefillResult{absl::UnavailableError("the connection to the worker is closed")});
  new PrefillReactor(*inner_->stub, EncodePrefill(generation, key, grant, deadline_ms), std::move(handlers), context,
                     [inner = inner_, context] { inner->EndLeg(context); });  // deletes itself in OnDone
}

void WorkerRpc::CancelLeg(uint64_t session, const LegKey& key, bool asks_again) {
  const auto context = inner_->BeginLeg(session);
  if (!context) return;  // the worker noticed by the loss of the connection
  struct Call {
    v1::CancelRequest request;
    v1::CancelReply reply;
  };
  auto call = std::make_shared<Call>();
  call->request.mutable_key()->set_request_id(key.leg_id);
  call->request.mutable_key()->set_attempt(key.attempt);
  call->request.mutable_key()->set_epoch(key.epoch);
  call->request.set_asks_again(asks_again);
  inner_->stub->async()->Cancel(context.get(), &call->request, &call->reply,
                                [call, context, inner = inner_](grpc::Status) { inner->EndLeg(context); });
}

void WorkerRpc::Shutdown() {
  {
    std::lock_guard lock(inner_->mutex);
    inner_->stopping = true;
    if (inner_->handshake) inner_->handshake->TryCancel();
  }
  CloseSession();
  inner_->calls->WaitZero();
}

}  // namespace baton::router
