// What comes on the connections of a gRPC port, and how long it takes: large messages, and calls that are never whole.
#include <grpcpp/generic/generic_stub.h>

#include "tests/common/grpc_port.h"

namespace baton::net {
namespace {

using std::chrono::milliseconds;

TEST_F(Port, TheMessageOfOneWhoMayAskIsAsLargeAsItLikes) {
  Start({.limits = {.most = 1000, .loopback_too = true}, .vain_tries = 12});
  const auto [asks, served] = Dial("127.0.0.3");
  ASSERT_TRUE(served);
  EXPECT_FALSE(acceptor_->MayAsk(asks->peer()));
  acceptor_->SetMayAsk(asks->peer());
  EXPECT_TRUE(acceptor_->MayAsk(asks->peer()));
  asks->Send(Times(20000, kSettings));
  const Socket stranger(acceptor_->port(), "127.0.0.2");
  stranger.Send(kPreface + Times(20000, kSettings));
  EXPECT_TRUE(stranger.Ended()) << "what had come by then was counted";
  EXPECT_TRUE(asks->Served());
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(Dial("127.0.0.3").second) << i;
}

TEST_F(Port, AMessageOfTheLargestSizeComesBeforeItsClientIsKnown) {
  constexpr size_t kSettingsOfAMessage = 20000, kMessage = kSettingsOfAMessage * 9;
  Start({.limits = {.most = 1000, .loopback_too = true}, .vain_tries = 12, .message_bytes = kMessage});
  const auto [slow, served] = Dial("127.0.0.3");
  ASSERT_TRUE(served);
  for (size_t i = 0; i < 10; ++i) {
    slow->Send(Times(kSettingsOfAMessage / 10, kSettings));
    EXPECT_TRUE(slow->Served()) << i;
  }
  acceptor_->Useful(slow->peer());
  const Socket stranger(acceptor_->port(), "127.0.0.2");
  stranger.Send(kPreface + Times(3 * kSettingsOfAMessage, kSettings));
  EXPECT_TRUE(stranger.Ended());
  EXPECT_EQ(Refused("vain-tries-per-address"), 1);
}

TEST_F(Port, OneConnectionOfThisMachineAtATimeToo) {
  Start({.limits = {.most = 1000}, .vain_tries = 12, .own_bytes = 64 << 10, .message_bytes = 9 * 20000});
  const auto [slow, served] = Dial();
  ASSERT_TRUE(served);
  slow->Bring(Times(20000, kSettings));
  const auto ended = [&](int settings) {
    const auto [stranger, stranger_served] = Dial();
    stranger->Send(Times(settings, kSettings));
    return stranger_served && stranger->Ended();
  };
  EXPECT_TRUE(ended(400000)) << "at once; so the slow one has been looked at";
  EXPECT_TRUE(ended(20000)) << "a second after it was looked at, and more after the slow one was";
  EXPECT_EQ(Refused("vain-tries-per-address"), 2);
  slow->Bring(kSettings);
  EXPECT_TRUE(slow->Served());
}

TEST_F(Port, OneConnectionOfAnAddressAndTwoInAllMayBringALargeMessageAtATime) {
  constexpr int kSettingsOfAMessage = 20000;
  Start({.limits = {.most = 1000, .loopback_too = true},
         .vain_tries = 4,
         .message_bytes = uint64_t{9} * kSettingsOfAMessage});
  const std::string large = Times(kSettingsOfAMessage / 2, kSettings);  // 10 tries, where they count
  const auto refused = [&](const char* from, const std::string& bytes) {
    const Socket stranger(acceptor_->port(), from);
    stranger.Send(kPreface + bytes);
    return stranger.Ended();
  };
  // Refused whoever else may bring one; what was there before is counted by then.
  const auto others_are_counted = [&](const char* from) { return refused(from, Times(6, large)); };

  const auto [first, first_served] = Dial("127.0.0.3");
  ASSERT_TRUE(first_served);
  first->Send(large);
  EXPECT_TRUE(others_are_counted("127.0.0.20"));
  EXPECT_TRUE(refused("127.0.0.3", large)) << "its address has one";
  const auto [second, second_served] = Dial("127.0.0.4");
  ASSERT_TRUE(second_served);
  second->Send(large);
  EXPECT_TRUE(others_are_counted("127.0.0.21"));
  EXPECT_TRUE(refused("127.0.0.5", large)) << "there are two";
  EXPECT_EQ(Refused("vain-tries-per-address"), 4);

  acceptor_->Useful(first->peer());
  const auto [third, third_served] = Dial("127.0.0.6");
  ASSERT_TRUE(third_served);
  third->Send(large);
  EXPECT_TRUE(others_are_counted("127.0.0.22"));
  EXPECT_EQ(Refused("vain-tries-per-address"), 5) << "the first is known by now";
}

TEST_F(Port, ALargeMessageThatTakesLongGivesWayToAnother) {
  constexpr int kSettingsOfAMessage = 20000;
  Start({.limits = {.most = 1000, .loopback_too = true},
         .vain_tries = 4,
         .message_bytes = uint64_t{9} * kSettingsOfAMessage,
         .large_message_time = milliseconds(700)});
  const std::string large = Times(kSettingsOfAMessage / 2, kSettings);
  const auto [silent, served] = Dial("127.0.0.3");
  const auto [silent_too, served_too] = Dial("127.0.0.4");
  ASSERT_TRUE(served && served_too);
  silent->Send(large), silent_too->Send(large);  // they hold the two places, and say nothing any more
  std::vector<std::unique_ptr<Socket>> others;
  EXPECT_TRUE(WaitFor([&] {
    others.push_back(Dial(StrCat("127.0.1.", others.size() + 1)).first);
    others.back()->Send(large);
    return silent->EndedByNow() && silent_too->EndedByNow();
  }));
  EXPECT_TRUE(std::ranges::any_of(others, [](const auto& other) { return !other->EndedByNow(); }));
}

TEST_F(Port, ACallWhoseMessageNeverComesIsNone) {
  Start({.limits = {.most = 1000}, .vain_tries = 12, .message_time = milliseconds(300)});
  Watch watch(acceptor_->port());
  ASSERT_TRUE(watch.Answered());
  const auto [begun, served] = Dial();
  ASSERT_TRUE(served);
  begun->Send(OneCall(/*end=*/false, 1, "/grpc.health.v1.Health/Check"));
  EXPECT_TRUE(begun->Ended());
  EXPECT_EQ(Refused("unfinished-call"), 1);
  server_->GetHealthCheckService()->SetServingStatus("", false);
  EXPECT_TRUE(watch.Answered()) << "a call that waits for its answer is a call";
}

}  // namespace
}  // namespace baton::net
