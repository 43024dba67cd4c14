// A gRPC port before strangers: places, new connections a second, who is let go, and connections that do nothing.
#include <grpcpp/generic/generic_stub.h>

#include "common/grpc/error_lines.h"
#include "tests/common/grpc_port.h"

namespace baton::net {
namespace {

using std::chrono::milliseconds;

TEST_F(Port, AnAddressHasSoManyNewConnectionsASecondAndOthersHaveTheirOwn) {
  Start({.limits = {.most = 100, .loopback_too = true}, .new_per_second = 3});
  std::vector<std::unique_ptr<Socket>> open;
  int served = 0;
  for (int i = 0; i < 20; ++i) {
    auto [socket, ok] = Dial();
    served += ok ? 1 : 0;
    open.push_back(std::move(socket));
  }
  EXPECT_EQ(served + Refused("new-connections-per-address"), 20);
  EXPECT_GE(Refused("new-connections-per-address"), 1);
  EXPECT_TRUE(Dial("127.0.0.2").second);
}

TEST_F(Port, ThisMachinesClientsHaveNoSuchLimitUnlessTheyAreToHaveOne) {
  Start({.limits = {.most = 100}, .new_per_second = 1});
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(Dial().second) << i;
}

TEST_F(Port, OnlyTheAddressesThatProxiesDialFromAreThisMachine) {
  Start({.limits = {.most = 100}, .new_per_second = 1});
  EXPECT_TRUE(Dial("127.0.0.2").second);
  EXPECT_TRUE(WaitRefused("127.0.0.2", "new-connections-per-address"));
}

TEST_F(Port, ConnectionsThatComeToNothingAreRefusedWhateverTheirRateAndUsefulOnesAreNot) {
  Start({.limits = {.most = 1000, .loopback_too = true}, .vain_tries = 5});
  for (int i = 0; i < 50; ++i) {
    const auto [useful, served] = Dial("127.0.0.3");
    ASSERT_TRUE(served) << i;
    acceptor_->Useful(useful->peer());
  }
  EXPECT_TRUE(WaitRefused("127.0.0.2", "vain-tries-per-address"));
  EXPECT_EQ(Refused("new-connections-per-address"), 0);
}

TEST_F(Port, ResetsOfManyConnectionsCountTogether) {
  Start({.limits = {.most = 1000, .loopback_too = true}, .vain_tries = 60});
  std::vector<std::unique_ptr<Socket>> open;  // what a connection that is closed had sent may never be read
  for (int i = 0; i < 50; ++i) {
    open.push_back(std::make_unique<Socket>(acceptor_->port(), "127.0.0.2"));
    open.back()->Send(kPreface + ManyCalls(/*given_up=*/true));
  }
  // 50 connections alone are 50 of 60 tries: no other is refused, but one on which a call is given up then is ended.
  EXPECT_TRUE(WaitFor([&] { return Refused("vain-tries-per-address") > 0; }));
  EXPECT_TRUE(Dial("127.0.0.3").second);
}

TEST_F(Port, AProcessOfThisMachineThatGivesUpCallsWithoutEndHasFewNewConnections) {
  Start({.limits = {.most = 1000}, .vain_tries = 5});
  const auto [useful, served] = Dial();
  ASSERT_TRUE(served);
  acceptor_->Useful(useful->peer());
  useful->Send(ManyCalls(/*given_up=*/false));
  std::vector<std::unique_ptr<Socket>> open;
  EXPECT_TRUE(WaitFor([&] {  // resets begin once our SETTINGS are here: no look at what comes first sees them
    auto [socket, begun] = Dial();
    socket->Send(ManyCalls(/*given_up=*/true));
    open.push_back(std::move(socket));
    return Refused("vain-tries-per-address") > 0;
  }));
  int taken = 0;
  for (int i = 0; i < 100; ++i) taken += Dial().second ? 1 : 0;
  EXPECT_LT(taken, 50) << "ten a second";
  EXPECT_TRUE(useful->Served());
  EXPECT_TRUE(Dial("127.0.0.3").second) << "who is elsewhere notices nothing";
}

TEST_F(Port, AProcessOfThisMachineThatHasGivenUpFarTooManyCallsHasNoMoreThanTheFewNewConnections) {
  Start({.limits = {.most = 1000}, .vain_tries = 5});
  std::vector<std::unique_ptr<Socket>> open;
  for (int i = 0; i < 20; ++i) open.push_back(Dial().first);
  for (const auto& socket : open) socket->Send(ManyCalls(/*given_up=*/true));
  ASSERT_TRUE(WaitRefused("127.0.0.1", "vain-tries-per-address"));
  const SteadyClock clock;
  const TimePoint begin = clock.Now();
  int taken = 0;
  while (clock.Now() - begin < std::chrono::milliseconds(1500)) taken += Dial().second ? 1 : 0;
  EXPECT_LE(taken, GrpcAcceptor::kNewWhileGivenUp * (Seconds(clock.Now() - begin) + 2));
}

TEST_F(Port, TheConnectionOnWhichCallsAreGivenUpWithoutEndIsEnded) {
  Start({.limits = {.most = 1000, .loopback_too = true}, .vain_tries = 5});
  const Socket socket(acceptor_->port(), "127.0.0.2");
  socket.Send(kPreface + ManyCalls(/*given_up=*/true));
  EXPECT_TRUE(socket.Ended());
  EXPECT_EQ(Refused("vain-tries-per-address"), 1);
}

TEST_F(Port, CallsThatAreRefusedCountAsThoseThatAreGivenUpUntilOneIsUseful) {
  Start({.limits = {.most = 1000, .loopback_too = true}, .vain_tries = 5});
  const auto [useful, served] = Dial("127.0.0.3");
  ASSERT_TRUE(served);
  acceptor_->Useful(useful->peer());
  useful->Send(ManyCalls(/*given_up=*/false));
  const Socket socket(acceptor_->port(), "127.0.0.2");
  socket.Send(kPreface + ManyCalls(/*given_up=*/false));
  EXPECT_TRUE(socket.Ended());
  EXPECT_EQ(Refused("vain-tries-per-address"), 1);
  EXPECT_TRUE(useful->Served());
}

TEST_F(Port, WhatComesWithoutEndOnConnectionsThatAskNothingCounts) {
  Start({.limits = {.most = 1000, .loopback_too = true}, .vain_tries = 12});
  std::vector<std::unique_ptr<Socket>> open;
  for (int i = 0; i < 5; ++i) {  // together: each of them is less than the address has left
    open.push_back(std::make_unique<Socket>(acceptor_->port(), "127.0.0.2"));
    open.back()->Send(kPreface + Times(3000, kSettings));
  }
  EXPECT_TRUE(WaitFor([&] { return Refused("vain-tries-per-address") > 0; }));
  EXPECT_TRUE(Dial("127.0.0.3").second);
}

TEST_F(Port, BetweenTwoCallsOfOneWhoMayAskOnlySoMuchComes) {
  Start({.limits = {.most = 100}, .vain_tries = 50, .bytes_between_calls = 64 << 10});
  const auto [floods, served] = Dial();
  const auto [calls, served_too] = Dial();
  ASSERT_TRUE(served && served_too);
  for (const auto& one : {floods.get(), calls.get()}) acceptor_->SetMayAsk(one->peer());
  const auto refused = [&] {
    floods->Send(Times(4000, kSettings));
    return Refused("bytes-between-calls") == 1;
  };
  EXPECT_TRUE(WaitFor(refused));
  EXPECT_TRUE(floods->Ended());
  calls->Send(kSettings);
  EXPECT_TRUE(calls->Served());
}

// Clients on this machine are not counted, and may fill no memory either.
TEST_F(Port, AConnectionOfThisMachineThatAsksNothingHasAMebibyte) {
  Start({.limits = {.most = 1000}, .vain_tries = 12});
  const auto [little, served] = Dial();
  ASSERT_TRUE(served);
  little->Send(Times(20000, kSettings));
  const Socket floods(acceptor_->port(), "127.0.0.1");
  floods.Send(kPreface);
  const std::string much = Times(200000, kSettings);
  while (Refused("vain-tries-per-address") == 0) floods.Send(much);
  EXPECT_TRUE(floods.Ended());
  EXPECT_TRUE(Dial().second);
  EXPECT_TRUE(little->Served());
}

// The first message of a router's connection is as large as a prompt, and here before a thread has looked at its
// headers.
TEST_F(Port, AConnectionOfThisMachineThatIsUsefulInTimeMayBringMoreBefore) {
  Start({.limits = {.most = 1000}, .vain_tries = 12, .own_bytes = 64 << 10});
  const auto [large, served] = Dial();
  const auto [floods, served_too] = Dial();
  const auto [far_too_much, served_as_well] = Dial();
  ASSERT_TRUE(served && served_too && served_as_well);
  for (const auto& one : {large.get(), floods.get()}) one->Bring(Times(20000, kSettings));
  far_too_much->Send(Times(200000, kSettings));
  EXPECT_TRUE(far_too_much->Ended());  // so all three have been looked at
  EXPECT_EQ(Refused("vain-tries-per-address"), 1);
  acceptor_->Useful(large->peer());
  EXPECT_TRUE(floods->Ended());
  EXPECT_EQ(Refused("vain-tries-per-address"), 2);
  large->Bring(kSettings);
  EXPECT_TRUE(large->Served());
}

// gRPC writes a line for each, with what they sent.
TEST(GrpcErrors, StrangersWriteAFewLinesOfALogWithoutControlCharacters) {
  testing::internal::CaptureStdout();
  for (int i = 0; i < 1000; ++i) LogGrpcError("Error parsing metadata: value=\x1b[31m\nevil");
  const std::string lines = testing::internal::GetCapturedStdout();
  EXPECT_EQ(lines.find('\x1b'), lines.npos);
  EXPECT_LE(std::count(lines.begin(), lines.end(), '\n'), 10) << "one a second";
  EXPECT_NE(lines.find("value=\\x1b[31m\\nevil"), lines.npos) << lines;
}

TEST_F(Port, StrangersLoseTheirPlacesToOthersAndWhoHasGreetedKeepsHis) {
  Start({.limits = {.most = 3}, .greeted_stay = true});
  const auto [first, first_served] = Dial("127.0.0.2");
  const auto [greeted, greeted_served] = Dial();
  const auto [third, third_served] = Dial("127.0.0.3");
  ASSERT_TRUE(first_served && greeted_served && third_served);
  acceptor_->Greeted(greeted->peer());
  std::vector<std::unique_ptr<Socket>> flood;
  for (int i = 0; i < 20; ++i) {
    auto [socket, served] = Dial("127.0.0.4");
    EXPECT_TRUE(served) << i;
    flood.push_back(std::move(socket));
  }
  EXPECT_TRUE(first->Ended() && third->Ended());
  for (int i = 0; i < 18; ++i) EXPECT_TRUE(flood[static_cast<size_t>(i)]->Ended()) << i;
  EXPECT_EQ(Refused("for-another"), 20);
  greeted->Send(std::string("\0\0\0\4\0\0\0\0\0", 9));
  EXPECT_TRUE(greeted->Served()) << "its SETTINGS are answered";
}

TEST_F(Port, WhereAllHaveGreetedAStrangerFindsNoPlace) {
  Start({.limits = {.most = 2}, .greeted_stay = true});
  const auto [a, a_served] = Dial();
  const auto [b, b_served] = Dial();
  ASSERT_TRUE(a_served && b_served);
  acceptor_->Greeted(a->peer()), acceptor_->Greeted(b->peer());
  EXPECT_FALSE(Dial("127.0.0.2").second);
  EXPECT_EQ(Refused("max-connections"), 1);
}

TEST_F(Port, WhoWasNoUseYetGivesWayFirstThenWhoIsIdleAndNobodyWhoCalls) {
  Start({.limits = {.most = 3, .per_address = 2, .leaves_others = true}, .useful_stay = true});
  std::vector<std::unique_ptr<Socket>> open;
  for (int i = 0; i < 3; ++i) open.push_back(Dial().first);
  for (int i : {0, 2}) {
    EXPECT_FALSE(acceptor_->MayAsk(open[i]->peer()));
    acceptor_->Useful(open[i]->peer());
  }
  acceptor_->OnCallEnd(open[2]->peer(), {});
  for (int i : {1, 2}) {  // 0 has a call
    auto [other, served] = Dial(StrCat("127.0.0.", 1 + i));
    EXPECT_TRUE(served) << i;
    EXPECT_TRUE(open[i]->Ended()) << i;
    EXPECT_FALSE(acceptor_->MayAsk(other->peer()));
    acceptor_->Useful(other->peer());
    open.push_back(std::move(other));
  }
  EXPECT_FALSE(Dial().second);
  EXPECT_TRUE(open[0]->Quiet() || open[0]->Served());
  EXPECT_EQ(Refused("for-another"), 2);
}

TEST_F(Port, WhoIsSendingAMessageGivesWayAfterWhoIsNot) {
  Start({.limits = {.most = 3}, .useful_stay = true});
  const std::string message = Times(2000, kSettings);  // 18,000 bytes
  std::vector<std::unique_ptr<Socket>> open;
  for (int i = 0; i < 3; ++i) open.push_back(Dial().first);
  EXPECT_FALSE(acceptor_->MayAsk(open[2]->peer()));
  acceptor_->Useful(open[2]->peer());
  open[0]->Bring(message);
  EXPECT_TRUE(open[0]->Served()) << "some is read";
  for (int i : {1, 3, 4}) {  // 2 has a call
    auto [other, served] = Dial();
    EXPECT_TRUE(served) << i;
    EXPECT_TRUE(open[i]->Ended()) << i;
    open[0]->Bring(message);
    EXPECT_TRUE(open[0]->Served());
    open.push_back(std::move(other));
  }
  EXPECT_EQ(Refused("for-another"), 3);
}

TEST_F(Port, AnAddressThatHasGreetedIsNotCountedBySeconds) {
  Start({.limits = {.most = 100, .loopback_too = true}, .new_per_second = 1, .greeted_stay = true});
  const auto [router, served] = Dial();
  ASSERT_TRUE(served);
  acceptor_->Greeted(router->peer());
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(Dial().second) << i;
}

TEST_F(Port, AStrangerOfTheSameAddressTakesNobodysPlaceWhoHasGreeted) {
  Start({.limits = {.most = 100, .per_address = 2, .loopback_too = true}, .greeted_stay = true});
  const auto [router, served] = Dial();
  ASSERT_TRUE(served);
  acceptor_->Greeted(router->peer());
  const auto [stranger, stranger_served] = Dial();
  ASSERT_TRUE(stranger_served);
  EXPECT_TRUE(Dial().second);
  EXPECT_TRUE(stranger->Ended());
  EXPECT_TRUE(router->Quiet() || router->Served());
}

TEST_F(Port, ConnectionsThatDoNothingAreClosed) {
  Start({}, {milliseconds(200), milliseconds(300)});
  const Socket silent(acceptor_->port(), "127.0.0.1");
  const auto [idle, served] = Dial();
  ASSERT_TRUE(served);
  Watch watch(acceptor_->port());
  ASSERT_TRUE(watch.Answered());
  EXPECT_TRUE(silent.Ended());
  EXPECT_TRUE(idle->Ended());
  server_->GetHealthCheckService()->SetServingStatus("", false);
  EXPECT_TRUE(watch.Answered()) << "a call that waits is a call";
}

TEST(GrpcPeer, NamesAreRead) {
  for (const auto& [name, address, port] : {std::tuple{"ipv4:10.0.0.7:4000", "10.0.0.7", 4000},
                                            {"ipv6:%5Bfd00::1%5D:4000", "fd00::1", 4000},
                                            {"ipv6:[::1]:80", "::1", 80},
                                            {"ipv6:%5B::ffff:10.0.0.7%5D:80", "10.0.0.7", 80}}) {
    EXPECT_EQ(PeerOf(name).address().to_string(), address) << name;
    EXPECT_EQ(PeerOf(name).port(), port) << name;
  }
  for (const char* name : {"", "unix:/a", "ipv4:", "ipv4:x:1", "10.0.0.7"}) EXPECT_EQ(PeerOf(name).port(), 0) << name;
}

}  // namespace
}  // namespace baton::net
