#include "router/fleet/watch_call.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "proto/worker.grpc.pb.h"
#include "router/fleet/watch_codec.h"

namespace baton::router {
namespace {

// The Watch stream of one session. Deletes itself when the call is over.
class WatchReactor final : public grpc::ClientReadReactor<v1::WorkerEvent> {
 public:
  WatchReactor(const std::shared_ptr<grpc::ChannelInterface>& channel, const v1::WatchRequest& request,
               WorkerWire::WatchHandlers handlers, std::shared_ptr<grpc::ClientContext> context,
               std::shared_ptr<WireGuard> guard, std::shared_ptr<CallCount> calls)
      : stub_(v1::Worker::NewStub(channel)),
        request_(request),
        handlers_(std::move(handlers)),
        context_(std::move(context)),
        guard_(std::move(guard)),
        calls_(std::move(calls)) {
    stub_->async()->Watch(context_.get(), &request_, this);
    AddHold();  // the next read starts from another thread; the hold ends with the last read
    StartRead(&event_);
    StartCall();
  }
  void OnReadDone(bool ok) override {
    if (!ok) return RemoveHold();
    guard_->sockets().Took(event_.ByteSizeLong());
    handlers_.on_event(DecodeEvent(event_), [this] { StartRead(&event_); });
  }
  void OnDone(const grpc::Status& status) override {
    handlers_.on_closed(FromGrpc(status));
    auto calls = calls_;
    delete this;
    calls->Done();
  }

 private:
  const std::unique_ptr<v1::Worker::Stub> stub_;
  v1::WatchRequest request_;
  v1::WorkerEvent event_;
  WorkerWire::WatchHandlers handlers_;
  std::shared_ptr<grpc::ClientContext> context_;
  std::shared_ptr<WireGuard> guard_;
  std::shared_ptr<CallCount> calls_;
};

}  // namespace

void OpenWatchCall(const std::shared_ptr<grpc::ChannelInterface>& channel, std::shared_ptr<grpc::ClientContext> context,
                   const std::string& router_id, const ReportTerms& terms, WorkerWire::WatchHandlers handlers,
                   std::shared_ptr<WireGuard> guard, std::shared_ptr<CallCount> calls) {
  new WatchReactor(channel, EncodeWatch(router_id, terms), std::move(handlers), std::move(context), std::move(guard),
                   std::move(calls));  // deletes itself in OnDone
}

}  // namespace baton::router
