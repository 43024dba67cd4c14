// A worker's streams over real gRPC: each is one of the open ones, and whoever serves it hears of its end.
#include "worker/relay/relay_stream.h"

#include <gtest/gtest.h>

#include <future>
#include <string>

#include "common/check.h"

namespace baton::worker {
namespace {

using std::chrono::seconds;

constexpr size_t kMuch = 16 << 20;  // more than gRPC takes for one who reads nothing

/// A port whose streams do nothing: what began and what ended can be waited for.
class Port final : public v1::Worker::CallbackService {
 public:
  Port() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    BATON_CHECK(server_ != nullptr);
    stub = v1::Worker::NewStub(
        grpc::CreateChannel("127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials()));
  }
  ~Port() override { server_->Shutdown(std::chrono::system_clock::now()); }

  grpc::ServerBidiReactor<v1::RelayUp, v1::RelayDown>* Relay(grpc::CallbackServerContext* context) override {
    return NewRelayReactor({*context, streams}, {.router = "r",
                                                 .on_message =
                                                     [this](auto sink, auto, auto) {
                                                       relay = sink;
                                                       began.set_value();
                                                     },
                                                 .on_end =
                                                     [this](auto sink) {
                                                       EXPECT_EQ(sink, relay);
                                                       ended.set_value();
                                                     }});
  }
  grpc::ServerWriteReactor<v1::WorkerEvent>* Watch(grpc::CallbackServerContext* context,
                                                   const v1::WatchRequest*) override {
    return NewWatchReactor(
        {*context, streams},
        [this](auto sink) {
          watch = sink;
          began.set_value();
        },
        [this](auto sink) {
          EXPECT_EQ(sink, watch);
          ended.set_value();
        });
  }
  grpc::ServerWriteReactor<v1::PrefillReply>* Prefill(grpc::CallbackServerContext* context,
                                                      const v1::PrefillRequest*) override {
    return NewPrefillReactor(
        {*context, streams},
        [this](auto sink) {
          prefill = sink;
          began.set_value();
        },
        [this] { ended.set_value(); });
  }
  bool Began() { return began.get_future().wait_for(seconds(20)) == std::future_status::ready; }
  bool Ended() { return ended.get_future().wait_for(seconds(20)) == std::future_status::ready; }

  FakeClock clock;
  OpenStreams streams{clock, {.unread_bytes = 1 << 20}};
  std::shared_ptr<RelayWriter> relay;
  std::shared_ptr<WatchSink> watch;
  std::shared_ptr<PrefillSink> prefill;
  std::promise<void> began, ended;
  std::unique_ptr<v1::Worker::Stub> stub;

 private:
  std::unique_ptr<grpc::Server> server_;
};

void ExpectCutOff(Port& port) {
  port.streams.Look();
  EXPECT_EQ(port.streams.cut_off(), 1) << "too much is unread there";
  EXPECT_TRUE(port.Ended());
}

TEST(RelayStream, OneThatIsNotReadIsCutOffAndItsEndIsHeard) {
  Port port;
  grpc::ClientContext context;
  const auto stream = port.stub->Relay(&context);
  stream->Write({});
  ASSERT_TRUE(port.Began());
  v1::RelayDown much;
  much.add_entries()->set_prompt_logprobs(std::string(kMuch, 'x'));
  port.relay->Send(std::move(much));
  ExpectCutOff(port);
  stream->WritesDone();
  for (v1::RelayDown down; stream->Read(&down);) continue;
  EXPECT_FALSE(stream->Finish().ok());
}

TEST(WatchStream, OneThatIsNotReadIsCutOffAndItsEndIsHeard) {
  Port port;
  grpc::ClientContext context;
  const auto reader = port.stub->Watch(&context, {});
  ASSERT_TRUE(port.Began());
  v1::WorkerEvent much;
  much.mutable_stored()->set_hashes(std::string(kMuch, 'x'));
  port.watch->Send(std::move(much));
  ExpectCutOff(port);
  for (v1::WorkerEvent event; reader->Read(&event);) continue;
  EXPECT_FALSE(reader->Finish().ok());
}

TEST(PrefillStream, OneThatIsNotReadIsCutOffAndItsEndIsHeard) {
  Port port;
  grpc::ClientContext context;
  const auto reader = port.stub->Prefill(&context, {});
  ASSERT_TRUE(port.Began());
  v1::PrefillReply much;
  much.set_prompt_logprobs(std::string(kMuch, 'x'));
  port.prefill->Send(std::move(much));
  ExpectCutOff(port);
  for (v1::PrefillReply reply; reader->Read(&reply);) continue;
  EXPECT_FALSE(reader->Finish().ok());
}

TEST(RelayStream, ACallersOwnEndIsHeardToo) {
  Port port;
  grpc::ClientContext context;
  const auto stream = port.stub->Relay(&context);
  stream->Write({});
  ASSERT_TRUE(port.Began());
  context.TryCancel();
  EXPECT_TRUE(port.Ended());
  for (v1::RelayDown down; stream->Read(&down);) continue;
  stream->Finish();
}

}  // namespace
}  // namespace baton::worker
