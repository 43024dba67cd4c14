// What gathers for a worker while nothing can be sent goes in messages that the worker takes.
#include "router/fleet/relay_call.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <future>
#include <mutex>
#include <numeric>

#include "common/str_cat.h"
#include "proto/order_limits.h"
#include "proto/worker.grpc.pb.h"
#include "router/event_loop.h"

namespace baton::router {
namespace {

/// Takes messages as large as a worker's; notes how many requests are in each.
class CountingWorker final : public v1::Worker::Service {
 public:
  CountingWorker() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.SetMaxReceiveMessageSize(kMostMessageBytes);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    EXPECT_NE(server_, nullptr);
  }
  ~CountingWorker() override { server_->Shutdown(std::chrono::system_clock::now()); }
  int port() const { return port_; }

  grpc::Status Relay(grpc::ServerContext*, grpc::ServerReaderWriter<v1::RelayDown, v1::RelayUp>* stream) override {
    v1::RelayUp up;
    while (stream->Read(&up)) {
      std::lock_guard lock(mutex_);
      attaches_.push_back(up.attach_size());
      cancels_ += up.cancel_size();
      changed_.notify_all();
    }
    std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
    return grpc::Status::OK;
  }
  /// Of each message, when `requests` and a cancel have come; or at the end of the stream.
  std::vector<int> Await(int requests) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(30), [&] {
      return ended_ || (std::accumulate(attaches_.begin(), attaches_.end(), 0) >= requests && cancels_ > 0);
    }));
    return attaches_;
  }

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> attaches_;
  int cancels_ = 0;
  bool ended_ = false;
};

class RelayCallTest : public ::testing::Test {
 protected:
  ~RelayCallTest() override {
    call_->Close();
    counted_->WaitZero();
    loops_.Stop();
  }
  void Open() {
    Http2Stream::Options where;
    where.where = *net::SocketAddress::Of("127.0.0.1", static_cast<uint16_t>(worker_.port()));
    where.head = {"", StrCat("127.0.0.1:", worker_.port()), "", {}};
    counted_->Add();
    call_ = OpenRelayCall(loops_.at(0), where, false, {[](std::vector<LegNews>&) {}, [](absl::Status) {}}, counted_);
  }
  absl::Status Attach(const TokenizedRequest& generation, const std::string& id) {
    AttachLeg leg;
    leg.leg_id = id;
    return call_->Attach(generation, leg, kMostAttaches);
  }

  CountingWorker worker_;
  EventLoopPool loops_{1};
  std::shared_ptr<CallCount> counted_ = std::make_shared<CallCount>();
  std::shared_ptr<RelayCall> call_;
};

TEST_F(RelayCallTest, LongPromptsThatGatherGoInMessagesThatAWorkerTakes) {
  TokenizedRequest generation;
  generation.prompt = std::vector<int32_t>(1 << 20, 7);  // 4 MiB
  std::promise<void> open;
  loops_.at(0).Post([&open] { open.get_future().wait(); });  // nothing is sent meanwhile
  Open();
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(Attach(generation, StrCat("r", i)).ok());
  call_->Cancel({"another", 1, std::nullopt});
  open.set_value();
  const std::vector<int> messages = worker_.Await(20);
  EXPECT_EQ(std::accumulate(messages.begin(), messages.end(), 0), 20);
  EXPECT_THAT(messages, ::testing::Each(::testing::Le(11))) << "three quarters of what a worker takes at most";
}

// A worker does a message's cancels before its requests, and those of an earlier message anyway.
TEST_F(RelayCallTest, ARequestThatIsCancelledBeforeItIsSentIsNotSent) {
  const TokenizedRequest generation;
  std::promise<void> open;
  loops_.at(0).Post([&open] { open.get_future().wait(); });  // nothing is sent meanwhile
  Open();
  for (const char* id : {"stays", "leaves"}) ASSERT_TRUE(Attach(generation, id).ok());
  call_->Cancel({"leaves", 1, std::nullopt});
  call_->Cancel({"stays", 1, 0});  // one of its choices
  open.set_value();
  EXPECT_THAT(worker_.Await(1), ::testing::ElementsAre(1));
}

TEST_F(RelayCallTest, ARequestThatNoMessageHoldsIsRefusedWithItsSize) {
  Open();
  TokenizedRequest generation;
  generation.prompt = std::vector<int32_t>(13 << 20, 7);
  const absl::Status refused = Attach(generation, "r");
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              ::testing::AllOf(::testing::HasSubstr("takes 545259"), ::testing::HasSubstr("at most 50331648")));
}

}  // namespace
}  // namespace baton::router
