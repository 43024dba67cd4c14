#include "router/fleet/relay_call.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <mutex>
#include <utility>

#include "common/str_cat.h"
#include "proto/worker.grpc.pb.h"
#include "router/fleet/attach_codec.h"
#include "router/fleet/relay_codec.h"

namespace baton::router {
namespace {

grpc::Slice Bytes(size_t size, const auto& write) {
  grpc_slice slice = grpc_slice_malloc(size);
  write(GRPC_SLICE_START_PTR(slice));
  return grpc::Slice(slice, grpc::Slice::STEAL_REF);
}

// RelayUp goes as bytes, whose parts are joined by being sent one behind the other.
using RelayStub = grpc::TemplatedGenericStub<grpc::ByteBuffer, v1::RelayDown>;
using RelayClient = grpc::ClientBidiReactor<grpc::ByteBuffer, v1::RelayDown>;

// What waits to be written; shared by the reactor and those who give orders.
struct RelayOutbox final : RelayCall {
  absl::Status Attach(const TokenizedRequest& generation, const AttachLeg& leg, size_t most) override {
    const AttachEntry entry(generation, leg);
    grpc::Slice attach = Bytes(entry.size(), [&entry](uint8_t* out) { entry.Write(out); });
    std::lock_guard lock(mutex);
    if (closed) return absl::UnavailableError("the connection to the worker is closed");
    if (attaches.size() >= most)
      return absl::ResourceExhaustedError(StrCat(attaches.size(), " requests wait to be sent, the limit is ", most));
    attaches.push_back(std::move(attach));
    WriteIfIdle();
    return absl::OkStatus();
  }
  void Cancel(const CancelAttached& order) override {
    std::lock_guard lock(mutex);
    *pending.add_cancel() = EncodeCancel(order);
    WriteIfIdle();
  }
  void Credit(const GiveCredit& order) override {
    std::lock_guard lock(mutex);
    *pending.add_credit() = EncodeCredit(order);
    WriteIfIdle();
  }
  void Renew(const std::vector<LegRenewal>& legs) override {
    std::lock_guard lock(mutex);
    pending.clear_renewal();  // what was not sent yet is said again, where it still holds
    for (const LegRenewal& leg : legs) *pending.add_renewal() = EncodeRenewal(leg);
    WriteIfIdle();
  }
  void Meet(const std::string& landing_address) override {
    std::lock_guard lock(mutex);
    pending.add_meet()->set_landing_address(landing_address);
    WriteIfIdle();
  }

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
  RelayReactor(const std::shared_ptr<grpc::ChannelInterface>& channel, WorkerWire::RelayHandlers handlers,
               std::shared_ptr<RelayOutbox> outbox, std::shared_ptr<grpc::ClientContext> context,
               std::shared_ptr<CallCount> calls)
      : stub_(channel),
        handlers_(std::move(handlers)),
        outbox_(std::move(outbox)),
        context_(std::move(context)),
        calls_(std::move(calls)) {
    outbox_->reactor = this;
    stub_.PrepareBidiStreamingCall(context_.get(), "/baton.v1.Worker/Relay", grpc::StubOptions(), this);
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

  RelayStub stub_;
  v1::RelayDown down_;         // read into again and again: its entries keep their memory
  std::vector<LegNews> news_;  // of down_; kept for its memory
  WorkerWire::RelayHandlers handlers_;
  std::shared_ptr<RelayOutbox> outbox_;
  std::shared_ptr<grpc::ClientContext> context_;
  std::shared_ptr<CallCount> calls_;
};

}  // namespace

std::shared_ptr<RelayCall> OpenRelayCall(const std::shared_ptr<grpc::ChannelInterface>& channel,
                                         std::shared_ptr<grpc::ClientContext> context,
                                         WorkerWire::RelayHandlers handlers, std::shared_ptr<CallCount> calls) {
  auto outbox = std::make_shared<RelayOutbox>();
  new RelayReactor(channel, std::move(handlers), outbox, std::move(context),
                   std::move(calls));  // deletes itself in OnDone
  return outbox;
}

}  // namespace baton::router
