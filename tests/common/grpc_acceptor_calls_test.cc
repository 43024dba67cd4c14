// Calls of clients whom nobody knows yet, which gRPC keeps from their headers on: how many may be open, and for how
// long their messages may not come.
#include "tests/common/grpc_port.h"

namespace baton::net {
namespace {

const std::string kCheck = "/grpc.health.v1.Health/Check", kWatch = "/grpc.health.v1.Health/Watch";

/// Whose messages never come; from the first of the connection on, or from a later one.
std::string BegunCalls(int count, int first = 0) {
  std::string out;
  for (int i = first; i < first + count; ++i) out += OneCall(/*end=*/false, static_cast<char>(2 * i + 1), kCheck);
  return out;
}

/// A call that runs on: its message is here.
std::string WatchCall() { return OneCall(false, 1, kWatch) + std::string("\0\0\5\0\1\0\0\0\1\0\0\0\0\0", 14); }

TEST_F(Port, AStrangerHasSoManyCallsOpenOnAConnection) {
  Start({.limits = {.most = 1000}, .stranger_calls = 20});
  const auto [few, few_served] = Dial();
  const auto [known, known_served] = Dial();
  ASSERT_TRUE(few_served && known_served);
  EXPECT_FALSE(acceptor_->MayAsk(known->peer()));
  acceptor_->Useful(known->peer());
  known->Send(BegunCalls(30));
  few->Send(BegunCalls(20));
  for (int i = 0; i < 2; ++i) {  // what the others sent was here before
    const auto [many, served] = Dial();
    ASSERT_TRUE(served);
    many->Send(BegunCalls(21));
    EXPECT_TRUE(many->Ended());
  }
  EXPECT_FALSE(few->EndedByNow());
  EXPECT_FALSE(known->EndedByNow());
  few->Send(BegunCalls(1, 20));
  EXPECT_TRUE(few->Ended()) << "one more";
  EXPECT_EQ(Refused("open-calls"), 3);
}

TEST_F(Port, OfAllCallsOfStrangersTheConnectionWithTheMostOfTheAddressWithTheMostGives) {
  Start({.limits = {.most = 1000}, .stranger_calls = 100, .all_stranger_calls = 40});
  const auto [most, most_served] = Dial("127.0.0.3");
  const auto [one, one_served] = Dial("127.0.0.2");
  const auto [two, two_served] = Dial("127.0.0.2");
  ASSERT_TRUE(most_served && one_served && two_served);
  most->Send(BegunCalls(18));
  one->Send(BegunCalls(10));
  two->Send(BegunCalls(13));
  EXPECT_TRUE(two->Ended());
  EXPECT_FALSE(one->EndedByNow());
  EXPECT_FALSE(most->EndedByNow());
  EXPECT_EQ(Refused("open-calls"), 1);
}

TEST_F(Port, AMessageThatNeverComesCostsAStrangersConnectionWhateverElseRunsThere) {
  Start({.limits = {.most = 1000}, .first_message_time = std::chrono::seconds(1)});
  const auto [watches, watches_served] = Dial();
  const auto [begun, begun_served] = Dial();
  const auto [slow, slow_served] = Dial();
  ASSERT_TRUE(watches_served && begun_served && slow_served);
  watches->Send(WatchCall());
  begun->Send(WatchCall() + BegunCalls(1, 1));
  // A byte of a message of eight megabytes.
  slow->Send(BegunCalls(1) + std::string("\0\0\6\0\0\0\0\0\1\0\0\x7a\x12\0x", 15));
  EXPECT_TRUE(begun->Ended());
  EXPECT_TRUE(slow->Ended());
  EXPECT_EQ(Refused("unfinished-call"), 2);
  EXPECT_FALSE(watches->EndedByNow());
  server_->GetHealthCheckService()->SetServingStatus("", false);
  EXPECT_TRUE(watches->Served()) << "a call that waits for its answer is a call";
}

}  // namespace
}  // namespace baton::net
