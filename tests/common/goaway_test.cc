// Clients of a gRPC server are sent elsewhere, and the server goes on.
#include "common/grpc/goaway.h"

#include <grpcpp/generic/generic_stub.h>

#include <atomic>

#include "tests/common/grpc_port.h"

namespace baton::net {
namespace {

/// Calls what nobody serves, one call after the other on a connection of its own; an answer says so.
class EndlessCaller {
 public:
  explicit EndlessCaller(int port) : port_(port), thread_([this] { Run(); }) {}
  ~EndlessCaller() {
    ends_ = true;
    thread_.join();
  }
  int answered() const { return answered_; }
  int refused() const { return refused_; }

 private:
  void Run() {
    grpc::ChannelArguments args;
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    grpc::GenericStub stub(
        grpc::CreateCustomChannel(StrCat("127.0.0.1:", port_), grpc::InsecureChannelCredentials(), args));
    const grpc::Slice nothing;
    while (!ends_) {
      grpc::CompletionQueue done;
      grpc::ClientContext context;
      grpc::ByteBuffer in(&nothing, 1), out;
      grpc::Status status;
      auto call = stub.PrepareUnaryCall(&context, "/nobody.Serves/This", in, &done);
      call->StartCall();
      call->Finish(&out, &status, nullptr);
      void* tag = nullptr;
      bool ok = false;
      done.Next(&tag, &ok);
      ++(status.error_code() == grpc::StatusCode::UNIMPLEMENTED ? answered_ : refused_);
    }
  }
  const int port_;
  std::atomic<bool> ends_ = false;
  std::atomic<int> answered_ = 0, refused_ = 0;
  std::thread thread_;
};

TEST_F(Port, ClientsThatAreSentElsewhereDialAgainAndNoCallOfTheirsIsRefused) {
  Start({.limits = {.most = 100}});
  EndlessCaller callers[3] = {EndlessCaller(acceptor_->port()), EndlessCaller(acceptor_->port()),
                              EndlessCaller(acceptor_->port())};
  const SteadyClock clock;
  for (int i = 0; i < 20; ++i) {
    for (const EndlessCaller& caller : callers) {
      const int before = caller.answered();
      EXPECT_TRUE(WaitFor([&] { return caller.answered() > before + 5; }));
    }
    const TimePoint now = clock.Now();
    EXPECT_TRUE(acceptor_->AnyLeft(now));
    SendGoaways(*server_);
    ASSERT_TRUE(WaitFor([&] { return !acceptor_->AnyLeft(now); })) << "connections of before end";
  }
  for (const EndlessCaller& caller : callers) EXPECT_EQ(caller.refused(), 0);
}

TEST_F(Port, ACallUnderWayOfAClientThatIsSentElsewhereGoesOn) {
  Start({.limits = {.most = 100}});
  const SteadyClock clock;
  TimePoint told;
  {
    Watch runs(acceptor_->port());
    EXPECT_TRUE(runs.Answered());
    told = clock.Now();
    for (int i = 0; i < 3; ++i) {
      SendGoaways(*server_);
      server_->GetHealthCheckService()->SetServingStatus("", i % 2 == 1);
      EXPECT_TRUE(runs.Answered());
    }
    EXPECT_TRUE(acceptor_->AnyLeft(told));
  }
  EXPECT_TRUE(WaitFor([&] { return !acceptor_->AnyLeft(told); })) << "its connection ends with it";
}

TEST_F(Port, ItIsKnownSinceWhenAConnectionIsThere) {
  Start({.limits = {.most = 100}});
  const SteadyClock clock;
  const auto [first, served] = Dial();
  ASSERT_TRUE(served);
  const TimePoint then = clock.Now();
  const auto [later, also_served] = Dial();
  ASSERT_TRUE(also_served);
  EXPECT_LE(acceptor_->Useful(first->peer()), then);
  EXPECT_GT(acceptor_->Useful(later->peer()), then);
  EXPECT_LE(acceptor_->Useful(later->peer()), clock.Now());
  EXPECT_EQ(acceptor_->Useful("ipv4:127.0.0.1:1"), TimePoint::max()) << "there is none";
}

}  // namespace
}  // namespace baton::net
