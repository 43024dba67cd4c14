#include "worker/relay/relay_stream.h"

#include <utility>

#include "proto/order_limits.h"
#include "worker/relay/grpc_status.h"
#include "worker/relay/write_queue.h"

namespace baton::worker {
namespace {

class RelayReactor final : public grpc::ServerBidiReactor<v1::RelayUp, v1::RelayDown> {
  class Sink final : public RelayWriter, public OpenStream {
   public:
    Sink(RelayReactor* reactor, std::string router) : RelayWriter(std::move(router)), writes(reactor) {}
    void Send(v1::RelayDown message) override { writes.Push(std::move(message)); }
    Unread unread() const override { return writes.unread(); }
    void CutOff(const absl::Status& why) override { writes.CutOff(ToGrpc(why)); }
    WriteQueue<RelayReactor, v1::RelayDown> writes;
  };

 public:
  RelayReactor(StreamPlace place, RelayHandlers handlers)
      : place_(place), handlers_(std::move(handlers)), sink_(std::make_shared<Sink>(this, handlers_.router)) {
    number_ = place_.Enter(OpenStreams::Kind::kRelay, sink_);
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
  void Cancel() { place_.context.TryCancel(); }
  void OnWriteDone(bool ok) override { sink_->writes.OnWriteDone(ok); }
  void OnCancel() override { sink_->writes.Finish(grpc::Status::CANCELLED); }
  void OnDone() override {
    sink_->writes.Detach();
    place_.streams.Leave(number_);
    handlers_.on_end(sink_);
    delete this;
  }

 private:
  void ReadNext() {
    reading_ = std::make_shared<v1::RelayUp>();
    StartRead(reading_.get());
  }

  const StreamPlace place_;
  RelayHandlers handlers_;
  std::shared_ptr<Sink> sink_;
  uint64_t number_ = 0;  ///< of place_.streams
  std::shared_ptr<v1::RelayUp> reading_;
};

class WatchReactor final : public grpc::ServerWriteReactor<v1::WorkerEvent> {
  class Sink final : public WatchSink, public OpenStream {
   public:
    explicit Sink(WatchReactor* reactor) : writes(reactor) {}
    void Send(v1::WorkerEvent event) override { writes.Push(std::move(event)); }
    void End(const absl::Status& why) override { writes.FinishAfterQueue(ToGrpc(why)); }
    Unread unread() const override { return writes.unread(); }
    void CutOff(const absl::Status& why) override { writes.CutOff(ToGrpc(why)); }
    WriteQueue<WatchReactor, v1::WorkerEvent> writes;
  };

 public:
  WatchReactor(StreamPlace place, std::function<void(std::shared_ptr<WatchSink>)> on_end)
      : place_(place), on_end_(std::move(on_end)), sink_(std::make_shared<Sink>(this)) {
    number_ = place_.Enter(OpenStreams::Kind::kWatch, sink_);
  }
  std::shared_ptr<WatchSink> sink() { return sink_; }

  void Cancel() { place_.context.TryCancel(); }
  void OnWriteDone(bool ok) override { sink_->writes.OnWriteDone(ok); }
  void OnCancel() override { sink_->writes.Finish(grpc::Status::CANCELLED); }
  void OnDone() override {
    sink_->writes.Detach();
    place_.streams.Leave(number_);
    on_end_(sink_);
    delete this;
  }

 private:
  const StreamPlace place_;
  std::function<void(std::shared_ptr<WatchSink>)> on_end_;
  std::shared_ptr<Sink> sink_;
  uint64_t number_ = 0;  ///< of place_.streams
};

class PrefillReactor final : public grpc::ServerWriteReactor<v1::PrefillReply> {
  class Sink final : public PrefillSink, public OpenStream {
   public:
    explicit Sink(PrefillReactor* reactor) : writes(reactor) {}
    void Send(v1::PrefillReply reply) override { writes.Push(std::move(reply)); }
    void Finish(const absl::Status& status) override { writes.FinishAfterQueue(ToGrpc(status)); }
    Unread unread() const override { return writes.unread(); }
    void CutOff(const absl::Status& why) override { writes.CutOff(ToGrpc(why)); }
    WriteQueue<PrefillReactor, v1::PrefillReply> writes;
  };

 public:
  PrefillReactor(StreamPlace place, std::function<void()> on_end)
      : place_(place), on_end_(std::move(on_end)), sink_(std::make_shared<Sink>(this)) {
    number_ = place_.Enter(OpenStreams::Kind::kPrefill, sink_);
  }
  std::shared_ptr<PrefillSink> sink() { return sink_; }

  void Cancel() { place_.context.TryCancel(); }
  void OnWriteDone(bool ok) override { sink_->writes.OnWriteDone(ok); }
  void OnCancel() override { sink_->writes.Finish(grpc::Status::CANCELLED); }
  void OnDone() override {
    sink_->writes.Detach();
    place_.streams.Leave(number_);
    on_end_();
    delete this;
  }

 private:
  const StreamPlace place_;
  std::function<void()> on_end_;
  std::shared_ptr<Sink> sink_;
  uint64_t number_ = 0;  ///< of place_.streams
};

}  // namespace

grpc::ServerBidiReactor<v1::RelayUp, v1::RelayDown>* NewRelayReactor(StreamPlace place, RelayHandlers handlers) {
  return new RelayReactor(place, std::move(handlers));
}

grpc::ServerWriteReactor<v1::WorkerEvent>* NewWatchReactor(StreamPlace place,
                                                           std::function<void(std::shared_ptr<WatchSink>)> on_start,
                                                           std::function<void(std::shared_ptr<WatchSink>)> on_end) {
  auto* reactor = new WatchReactor(place, std::move(on_end));
  on_start(reactor->sink());
  return reactor;
}

grpc::ServerWriteReactor<v1::PrefillReply>* NewPrefillReactor(
    StreamPlace place, std::function<void(std::shared_ptr<PrefillSink>)> on_start, std::function<void()> on_end) {
  auto* reactor = new PrefillReactor(place, std::move(on_end));
  on_start(reactor->sink());
  return reactor;
}

}  // namespace baton::worker
