#include "worker/relay/relay_stream.h"

#include <utility>

#include "proto/order_limits.h"
#include "worker/relay/grpc_status.h"
#include "worker/relay/write_queue.h"

namespace baton::worker {
namespace {

class RelayReactor final : public grpc::ServerBidiReactor<v1::RelayUp, v1::RelayDown> {
  class Sink final : public RelayWriter, public std::enable_shared_from_this<Sink> {
   public:
    explicit Sink(RelayReactor* reactor) : writes(reactor) {}
    void Send(v1::RelayDown message) override { writes.Push(std::move(message)); }
    WriteQueue<RelayReactor, v1::RelayDown> writes;
  };

 public:
  explicit RelayReactor(RelayHandlers handlers) : handlers_(std::move(handlers)), sink_(std::make_shared<Sink>(this)) {
    sink_->writes.IfOpen([](RelayReactor& r) { r.ReadNext(); });
  }

  void OnReadDone(bool ok) override {
    if (!ok) return sink_->writes.Finish(grpc::Status::OK);
    if (const auto few = CheckAtMost("the number of requests in one message",
                                     static_cast<uint64_t>(reading_->attach_size()), kMostAttaches);
        !few.ok())
      return sink_->writes.Finish(ToGrpc(few));
    handlers_.on_message(sink_, std::exchange(reading_, nullptr),
                         [sink = sink_] { sink->writes.IfOpen([](RelayReactor& r) { r.ReadNext(); }); });
  }
  void OnWriteDone(bool ok) override { sink_->writes.OnWriteDone(ok); }
  void OnCancel() override { sink_->writes.Finish(grpc::Status::CANCELLED); }
  void OnDone() override {
    sink_->writes.Detach();
    handlers_.on_end(sink_);
    delete this;
  }

 private:
  void ReadNext() {
    reading_ = std::make_shared<v1::RelayUp>();
    StartRead(reading_.get());
  }

  RelayHandlers handlers_;
  std::shared_ptr<Sink> sink_;
  std::shared_ptr<v1::RelayUp> reading_;
};

class WatchReactor final : public grpc::ServerWriteReactor<v1::WorkerEvent> {
  class Sink final : public WatchSink {
   public:
    explicit Sink(WatchReactor* reactor) : writes(reactor) {}
    void Send(v1::WorkerEvent event) override { writes.Push(std::move(event)); }
    void End(const absl::Status& why) override { writes.FinishAfterQueue(ToGrpc(why)); }
    WriteQueue<WatchReactor, v1::WorkerEvent> writes;
  };

 public:
  explicit WatchReactor(std::function<void(std::shared_ptr<WatchSink>)> on_end)
      : on_end_(std::move(on_end)), sink_(std::make_shared<Sink>(this)) {}
  std::shared_ptr<WatchSink> sink() { return sink_; }

  void OnWriteDone(bool ok) override { sink_->writes.OnWriteDone(ok); }
  void OnCancel() override { sink_->writes.Finish(grpc::Status::CANCELLED); }
  void OnDone() override {
    sink_->writes.Detach();
    on_end_(sink_);
    delete this;
  }

 private:
  std::function<void(std::shared_ptr<WatchSink>)> on_end_;
  std::shared_ptr<Sink> sink_;
};

class PrefillReactor final : public grpc::ServerWriteReactor<v1::PrefillReply> {
  class Sink final : public PrefillSink {
   public:
    explicit Sink(PrefillReactor* reactor) : writes(reactor) {}
    void Send(v1::PrefillReply reply) override { writes.Push(std::move(reply)); }
    void Finish(const absl::Status& status) override { writes.FinishAfterQueue(ToGrpc(status)); }
    WriteQueue<PrefillReactor, v1::PrefillReply> writes;
  };

 public:
  explicit PrefillReactor(std::function<void()> on_end)
      : on_end_(std::move(on_end)), sink_(std::make_shared<Sink>(this)) {}
  std::shared_ptr<PrefillSink> sink() { return sink_; }

  void OnWriteDone(bool ok) override { sink_->writes.OnWriteDone(ok); }
  void OnCancel() override { sink_->writes.Finish(grpc::Status::CANCELLED); }
  void OnDone() override {
    sink_->writes.Detach();
    on_end_();
    delete this;
  }

 private:
  std::function<void()> on_end_;
  std::shared_ptr<Sink> sink_;
};

}  // namespace

grpc::ServerBidiReactor<v1::RelayUp, v1::RelayDown>* NewRelayReactor(RelayHandlers handlers) {
  return new RelayReactor(std::move(handlers));
}

grpc::ServerWriteReactor<v1::WorkerEvent>* NewWatchReactor(std::function<void(std::shared_ptr<WatchSink>)> on_start,
                                                           std::function<void(std::shared_ptr<WatchSink>)> on_end) {
  auto* reactor = new WatchReactor(std::move(on_end));
  on_start(reactor->sink());
  return reactor;
}

grpc::ServerWriteReactor<v1::PrefillReply>* NewPrefillReactor(
    std::function<void(std::shared_ptr<PrefillSink>)> on_start, std::function<void()> on_end) {
  auto* reactor = new PrefillReactor(std::move(on_end));
  on_start(reactor->sink());
  return reactor;
}

}  // namespace baton::worker
