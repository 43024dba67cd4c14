#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "common/net/address.h"
#include "common/net/advertise.h"
#include "common/net/connection_places.h"
#include "common/net/given_up_calls.h"
#include "common/net/resolver.h"
#include "common/net/socket_address.h"
#include "common/net/strangers.h"
#include "common/net/vain_tries.h"
#include "common/str_cat.h"

namespace baton::net {
namespace {

TEST(Address, IsReadAndPrinted) {
  const std::pair<const char*, HostPort> good[] = {
      {"127.0.0.1:1", {"127.0.0.1", 1}},
      {"[::1]:65535", {"::1", 65535}},
      {"[fe80::1%lo]:7", {"fe80::1%lo", 7}},
      {"decode-0.example:7000", {"decode-0.example", 7000}},
      {"localhost:80", {"localhost", 80}},
      {"a.b_c.example.:80", {"a.b_c.example.", 80}},
      {"1password.example:80", {"1password.example", 80}},
  };
  for (const auto& [text, expected] : good) {
    const auto parsed = ParseHostPort(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, expected) << text;
    EXPECT_EQ(JoinHostPort(parsed->host, parsed->port), text);
  }
}

TEST(Address, WhatIsNoneIsRefusedWithTheReason) {
  const std::pair<const char*, const char*> bad[] = {
      {"", "port is missing"},
      {"localhost", "port is missing"},
      {"[::1]", "port is missing"},
      {":9000", "host is missing"},
      {"a:", "no port"},
      {"a:0", "no port"},
      {"a:65536", "no port"},
      {"a:-1", "no port"},
      {"a:80x", "no port"},
      {"::1:7000", "brackets"},
      {"fd00::2:7000", "brackets"},
      {"[fd00::zz]:7000", "in brackets is no IPv6 address"},
      {"[localhost]:7000", "in brackets is no IPv6 address"},
      {"dns:///decode.example:7000", "without a scheme"},
      {"http://a:80", "without a scheme"},
      {"10.0.0:80", "four numbers"},
      {"10.0.0.256:80", "four numbers"},
      {"2130706433:80", "four numbers"},
      {"a..b:80", "host name"},
      {"-a:80", "host name"},
      {"a b:80", "host name"},
      {"a/b:80", "host name"},
      {"a\nb:80", "host name"},
  };
  for (const auto& [text, why] : bad) {
    const auto parsed = ParseHostPort(text);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_NE(parsed.status().message().find(why), absl::string_view::npos) << text << ": " << parsed.status();
  }
  const std::string long_label = StrCat(std::string(64, 'a'), ":80");
  EXPECT_FALSE(ParseHostPort(long_label).ok());
}

TEST(Address, LoopbackIsJudgedByNumber) {
  for (const char* host : {"127.0.0.1", "127.1.2.3", "localhost", "LocalHost", "::1", "[::1]", "::ffff:127.0.0.1"})
    EXPECT_TRUE(IsLoopback(host)) << host;
  for (const char* host : {"127.evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "0.0.0.0", "::", "",
                           "10.0.0.1", "128.0.0.1", "example.org", "::2", "::ffff:10.0.0.1", "127.1", "127"})
    EXPECT_FALSE(IsLoopback(host)) << host;
}

TEST(Address, AWildcardIsEveryAddressOfTheMachine) {
  for (const char* host : {"0.0.0.0", "::", "[::]", "::ffff:0.0.0.0"}) EXPECT_TRUE(IsWildcard(host)) << host;
  for (const char* host : {"127.0.0.1", "::1", "localhost", "", "0", "example.org"}) EXPECT_FALSE(IsWildcard(host));
}

TEST(Address, NumbersAndLocalhostResolveToThemselves) {
  for (const auto& [host, text] :
       {std::pair{"10.1.2.3", "10.1.2.3:80"}, {"fd00::7", "[fd00::7]:80"}, {"localhost", "127.0.0.1:80"}}) {
    const auto found = Resolve(host, 80);
    ASSERT_TRUE(found.ok()) << found.status();
    ASSERT_EQ(found->size(), 1u);
    EXPECT_EQ(found->front().text(), text);
    EXPECT_EQ(found->front().WithPort(81).port(), 81);
  }
  EXPECT_EQ(Resolve("no/name", 80).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SocketAddress::Of("example.org", 80).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Address, ATakenPortIsRefusedWithTheAddress) {
  const auto any = AddressToBind("localhost", 0).value();
  const int first = ListenAt(any, 0, 1).value();
  const SocketAddress taken = SocketAddress::OfSocket(first);
  EXPECT_NE(taken.port(), 0);
  const auto second = ListenAt(taken, 0, 1);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(second.status().message().find(taken.text()), absl::string_view::npos) << second.status();
  close(first);
}

TEST(Advertise, WhatIsToldCanBeDialled) {
  EXPECT_EQ(AdvertisedHost("127.0.0.1", "").value(), "127.0.0.1");
  EXPECT_EQ(AdvertisedHost("10.1.2.3", "decode-0.example").value(), "decode-0.example");
  EXPECT_EQ(AdvertisedHost("0.0.0.0", "fd00::1").value(), "fd00::1");
  for (const char* advertised : {"0.0.0.0", "::", "a b", "host:80", "dns:///a"})
    EXPECT_EQ(AdvertisedHost("127.0.0.1", advertised).status().code(), absl::StatusCode::kInvalidArgument)
        << advertised;
  for (const char* every : {"0.0.0.0", "::"}) {
    const auto host = AdvertisedHost(every, "");
    if (host.ok()) {
      EXPECT_TRUE(IsIpAddress(*host) && !IsWildcard(*host) && !IsLoopback(*host)) << *host;
    } else {
      EXPECT_EQ(host.status().code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_NE(host.status().message().find("default route"), absl::string_view::npos) << host.status();
    }
  }
}

TEST(Resolver, AnswersElsewhereAndIsSilentOnceItIsGone) {
  std::promise<std::pair<std::thread::id, std::string>> heard;
  auto resolver = std::make_unique<Resolver>();
  resolver->Resolve("localhost", 80, [&heard](auto found) {
    heard.set_value({std::this_thread::get_id(), found.ok() ? found->front().text() : found.status().ToString()});
  });
  const auto [thread, text] = heard.get_future().get();
  EXPECT_EQ(text, "127.0.0.1:80");
  EXPECT_NE(thread, std::this_thread::get_id());
  int calls = 0;
  resolver->Resolve("localhost", 80, [&calls](const auto&) { ++calls; });
  resolver = nullptr;  // waits for a call that runs
  const int before = calls;
  Resolver other;
  std::promise<void> later;
  other.Resolve("localhost", 80, [&later](const auto&) { later.set_value(); });
  later.get_future().wait();
  EXPECT_EQ(calls, before);
}

TEST(Resolver, ManyQuestionsAtOnceAreRefusedAndNotMadeThreads) {
  std::promise<void> go;
  const std::shared_future<void> may_go = go.get_future().share();
  std::atomic<int> answered{0}, refused{0};
  std::promise<void> all;
  constexpr int kAsked = 5 * Resolver::kMostAtOnce;
  Resolver resolver;
  for (int i = 0; i < kAsked; ++i) {
    resolver.Resolve("localhost", 80, [&](const auto& found) {
      if (!found.ok()) {
        EXPECT_EQ(found.status().code(), absl::StatusCode::kResourceExhausted);
        ++refused;
        return;
      }
      may_go.wait();  // the first; the others wait for it
      if (++answered == Resolver::kMostAtOnce) all.set_value();
    });
  }
  EXPECT_EQ(refused, kAsked - Resolver::kMostAtOnce);
  go.set_value();
  all.get_future().wait();
}

// Two sockets that find each other: who listens, and whom a client dials.
TEST(Address, TheIpv6WildcardTakesIpv4Too) {
  const auto every = SocketAddress::Of("::", 0).value();
  const auto listening = ListenAt(every, 0, 4);
  if (!listening.ok()) GTEST_SKIP() << "no IPv6 here: " << listening.status();
  const uint16_t port = SocketAddress::OfSocket(*listening).port();
  for (const char* host : {"127.0.0.1", "::1"}) {
    const SocketAddress to = SocketAddress::Of(host, port).value();
    const int client = socket(to.family(), SOCK_STREAM, 0);
    EXPECT_EQ(connect(client, to.get(), to.bytes()), 0) << to.text();
    EXPECT_EQ(SocketAddress::OfPeer(client).text(), to.text());
    close(client);
  }
  close(*listening);
}

TEST(Strangers, EachAddressHasItsOwnNumberASecond) {
  FakeClock clock;
  Strangers strangers(2, clock);
  const auto a = boost::asio::ip::make_address("10.0.0.1"), b = boost::asio::ip::make_address("10.0.0.2");
  const auto may = [&] { return std::pair(strangers.May(a), strangers.May(b)); };
  EXPECT_EQ(may(), std::pair(true, true));
  EXPECT_TRUE(strangers.May(a));
  EXPECT_EQ(may(), std::pair(false, true));
  clock.Advance(std::chrono::milliseconds(999));
  EXPECT_EQ(may(), std::pair(false, false));
  clock.Advance(std::chrono::milliseconds(1));
  EXPECT_EQ(may(), std::pair(true, true));
}

TEST(VainTries, AreForgottenEvenlyAndTakenBackOneByOne) {
  FakeClock clock;
  VainTries tries(50, clock);
  const auto a = boost::asio::ip::make_address("10.0.0.1"), b = boost::asio::ip::make_address("10.0.0.2");
  for (int i = 0; i < 500; ++i) {
    EXPECT_EQ(tries.May(a), i < 50) << i;
    tries.Count(a);
  }
  EXPECT_TRUE(tries.May(b));
  tries.TakeBack(a), tries.TakeBack(b);
  EXPECT_TRUE(tries.May(a));
  for (int i = 0; i < 20; ++i) tries.Count(a, 0.05);
  EXPECT_FALSE(tries.May(a)) << "parts add up";
  clock.Advance(std::chrono::milliseconds(499));
  EXPECT_FALSE(tries.May(a));
  clock.Advance(std::chrono::milliseconds(2));
  EXPECT_TRUE(tries.May(a)) << "two a second";
}

TEST(VainTries, BeyondTheLimitAreForgottenBeforeWhoGoesOnHasAnyLeft) {
  FakeClock clock;
  VainTries tries(50, clock, /*beyond=*/100);
  const auto a = boost::asio::ip::make_address("10.0.0.1");
  for (int i = 0; i < 500; ++i) {
    EXPECT_EQ(tries.May(a), i < 50) << i;
    tries.Count(a);
  }
  clock.Advance(std::chrono::seconds(50));
  EXPECT_FALSE(tries.May(a)) << "two a second of a hundred";
  clock.Advance(std::chrono::milliseconds(501));
  EXPECT_TRUE(tries.May(a));
}

TEST(VainTries, OfNoLimitAreNotCounted) {
  FakeClock clock;
  VainTries tries(0, clock);
  const auto a = boost::asio::ip::make_address("10.0.0.1");
  for (int i = 0; i < 500; ++i) tries.Count(a);
  EXPECT_TRUE(tries.May(a));
}

TEST(GivenUpCalls, AClientThatWaitedMayLeaveAndOneThatDidNotHasSoMany) {
  FakeClock clock;
  GivenUpCalls calls(100, clock);
  for (int i = 0; i < 5000; ++i) {
    EXPECT_TRUE(calls.Begin("alice", "a"));
    EXPECT_TRUE(calls.End("alice", "a", /*given_up=*/true, GivenUpCalls::kWaited)) << i;
  }
  for (int i = 1; i <= GivenUpCalls::kFew; ++i) {
    EXPECT_TRUE(calls.Begin("alice", i % 2 == 0 ? "a" : "b"));
    EXPECT_EQ(calls.End("alice", i % 2 == 0 ? "a" : "b", true, Duration::zero()), i < GivenUpCalls::kFew) << i;
  }
  EXPECT_FALSE(calls.Begin("alice", "c"));
  EXPECT_TRUE(calls.Begin("bob", "d"));
  clock.Advance(std::chrono::seconds(1));
  EXPECT_TRUE(calls.Begin("alice", "e")) << "some came back";
}

TEST(GivenUpCalls, AreCountedBeforeTheirEndsAreHeardOf) {
  FakeClock clock;
  GivenUpCalls calls(100, clock);
  for (const char* peer : {"a", "b"}) {
    for (int i = 0; i < 100; ++i) EXPECT_TRUE(calls.Begin("alice", peer)) << "as many may run";
  }
  for (int i = 1; i <= GivenUpCalls::kFew; ++i)
    EXPECT_EQ(calls.Begin("alice", i % 2 == 0 ? "a" : "b"), i < GivenUpCalls::kFew) << i;
  for (int i = 1; i <= GivenUpCalls::kFew; ++i)
    EXPECT_FALSE(calls.End("alice", i % 2 == 0 ? "a" : "b", true, GivenUpCalls::kWaited)) << "which says nothing here";
  clock.Advance(std::chrono::seconds(1));
  EXPECT_TRUE(calls.Begin("alice", "c")) << "each counted once";
}

TEST(GivenUpCalls, ThatWereAnsweredAndWhoseEndsAreHeardOfLateAreNone) {
  FakeClock clock;
  GivenUpCalls calls(100, clock);
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 300; ++i) EXPECT_TRUE(calls.Begin("alice", "a")) << round;
    for (int i = 0; i < 300; ++i) EXPECT_TRUE(calls.End("alice", "a", false, Duration::zero()));
  }
}

struct Place final : ConnectionPlaces::Place {
  using ConnectionPlaces::Place::Place;
  uint64_t Brought() const override { return brought; }
  uint64_t brought = 0;
};
using Places = std::vector<std::shared_ptr<Place>>;

std::shared_ptr<Place> PlaceOf(const char* address) {
  return std::make_shared<Place>(boost::asio::ip::make_address(address));
}

std::string_view Full(const ConnectionPlaces::Entered& entered) { return entered.full == nullptr ? "" : entered.full; }

TEST(ConnectionPlaces, WhoAskedNothingGivesWayFirstThenWhoIsIdleForLongestAndNobodyWhoIsBusy) {
  ConnectionPlaces places({.most = 4});
  Places open;
  for (int i = 0; i < 4; ++i) EXPECT_EQ(places.Enter(*open.emplace_back(PlaceOf("127.0.0.1"))).gave_way, nullptr);
  for (int i : {3, 0, 1}) EXPECT_TRUE(places.SetBusy(*open[i]));
  for (int i : {3, 0}) places.SetIdle(*open[i]);
  for (int i : {2, 3, 0}) {  // 1 is busy
    auto& newcomer = open.emplace_back(PlaceOf("10.0.0.2"));
    const auto entered = places.Enter(*newcomer);
    EXPECT_EQ(entered.full, nullptr);
    EXPECT_EQ(entered.gave_way, open[i]);
    EXPECT_FALSE(places.SetBusy(*open[i])) << "has no place any more";
    EXPECT_TRUE(places.SetBusy(*newcomer));
    EXPECT_EQ(places.all(), 4);
  }
  EXPECT_EQ(Full(places.Enter(*PlaceOf("10.0.0.3"))), kFull);
  for (const auto& place : open) places.Leave(*place);
  EXPECT_EQ(places.all(), 0);
  EXPECT_EQ(places.Enter(*open[0]).gave_way, nullptr);
}

TEST(ConnectionPlaces, WhoIsSendingARequestGivesWayAsIfHeHadJustCome) {
  ConnectionPlaces places({.most = 5});
  Places open;
  for (int i = 0; i < 5; ++i) EXPECT_EQ(places.Enter(*open.emplace_back(PlaceOf("127.0.0.1"))).gave_way, nullptr);
  for (int i : {2, 3, 4}) {
    EXPECT_TRUE(places.SetBusy(*open[i]));
    open[i]->brought = ConnectionPlaces::kBytesOfAPlace;  // a request that was answered
    places.SetIdle(*open[i]);
  }
  open[0]->brought = ConnectionPlaces::kBytesOfAPlace;
  open[1]->brought = ConnectionPlaces::kBytesOfAPlace - 1;
  open[2]->Begins();
  for (int i : {1, 0, 3, 4, 2}) {
    if (i == 4) open[2]->brought += ConnectionPlaces::kBytesOfAPlace;
    auto& newcomer = open.emplace_back(PlaceOf("127.0.0.1"));
    EXPECT_EQ(places.Enter(*newcomer).gave_way, open[i]) << i;
    EXPECT_TRUE(places.SetBusy(*newcomer));
  }
  EXPECT_EQ(Full(places.Enter(*PlaceOf("127.0.0.1"))), kFull);
}

TEST(ConnectionPlaces, WhatWasAnsweredIsNoRequestThatComes) {
  ConnectionPlaces places({.most = 4});
  Places open, later;
  for (int i = 0; i < 4; ++i) EXPECT_EQ(places.Enter(*open.emplace_back(PlaceOf("127.0.0.1"))).gave_way, nullptr);
  const auto answer = [&](int i) {
    EXPECT_TRUE(places.SetBusy(*open[i]));
    places.SetIdle(*open[i]);
  };
  const auto gives_way = [&] {
    Place& newcomer = *later.emplace_back(PlaceOf("127.0.0.1"));
    const auto entered = places.Enter(newcomer);
    EXPECT_TRUE(places.SetBusy(newcomer));
    return entered.gave_way;
  };
  for (int i : {0, 3, 1, 2}) answer(i);
  open[0]->Begins();
  open[0]->brought = ConnectionPlaces::kBytesOfAPlace;
  EXPECT_EQ(gives_way(), open[3]);  // 0 was looked at while it was sending
  open[0]->brought += ConnectionPlaces::kBytesOfAPlace;
  open[1]->Begins();
  for (int i : {0, 1, 2}) answer(i);
  for (int i : {0, 1, 2}) EXPECT_EQ(gives_way(), open[i]);
}

TEST(ConnectionPlaces, WhereAllAreSendingTheOldestGivesWay) {
  ConnectionPlaces places({.most = 3});
  Places open;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(places.Enter(*open.emplace_back(PlaceOf("127.0.0.1"))).gave_way, nullptr);
    open[i]->brought = ConnectionPlaces::kBytesOfAPlace;
  }
  EXPECT_EQ(places.Enter(*PlaceOf("127.0.0.1")).gave_way, open[0]);
}

TEST(ConnectionPlaces, GiveUpSomeLeavesPlacesAndNobodyWhoIsBusyGoes) {
  ConnectionPlaces places({.most = 40});
  const auto busy = PlaceOf("127.0.0.1"), silent = PlaceOf("127.0.0.1");
  for (const auto& place : {busy, silent}) EXPECT_EQ(places.Enter(*place).full, nullptr);
  EXPECT_TRUE(places.SetBusy(*busy));
  EXPECT_EQ(places.GiveUpSome(), std::vector<std::shared_ptr<ConnectionPlaces::Place>>{silent});
  EXPECT_TRUE(places.GiveUpSome().empty());
  Places many;
  for (int i = 0; i < 39; ++i) EXPECT_EQ(places.Enter(*many.emplace_back(PlaceOf("127.0.0.1"))).gave_way, nullptr);
  EXPECT_EQ(places.GiveUpSome().size(), ConnectionPlaces::kGivenUpAtOnce);
  EXPECT_EQ(places.all(), 24);
}

TEST(ConnectionPlaces, WhoseAddressHasItsShareTakesThePlaceOfOneOfItsOwn) {
  ConnectionPlaces places({.most = 8, .per_address = 4, .leaves_others = true});
  const auto other = PlaceOf("10.0.0.1");
  EXPECT_EQ(places.Enter(*other).full, nullptr);
  Places own;
  for (int i = 0; i < 4; ++i) EXPECT_EQ(places.Enter(*own.emplace_back(PlaceOf("10.0.0.2"))).gave_way, nullptr);
  const auto entered = places.Enter(*own.emplace_back(PlaceOf("10.0.0.2")));
  EXPECT_EQ(entered.gave_way, own[0]);
  for (int i = 1; i < 5; ++i) EXPECT_TRUE(places.SetBusy(*own[i]));
  EXPECT_EQ(Full(places.Enter(*PlaceOf("10.0.0.2"))), kAddressFull);
  EXPECT_TRUE(places.SetBusy(*other));
}

/// Clients of this machine have no share, and fill the port: others have theirs as if it was empty.
TEST(ConnectionPlaces, SilentConnectionsOfThisMachineLeaveOthersTheirShares) {
  ConnectionPlaces places({.most = 8, .per_address = 4, .leaves_others = true});
  Places here, others;
  for (int i = 0; i < 20; ++i) EXPECT_EQ(places.Enter(*here.emplace_back(PlaceOf("127.0.0.1"))).full, nullptr);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(places.Enter(*others.emplace_back(PlaceOf("10.0.0.2"))).gave_way, here[12 + i]);
    EXPECT_TRUE(places.SetBusy(*others.back()));
  }
  EXPECT_EQ(Full(places.Enter(*PlaceOf("10.0.0.2"))), kAddressFull);
  EXPECT_EQ(places.all(), 8);
}

TEST(ConnectionShares, AddressesOfOneNetworkOf64BitsCountTogetherAndWhatIsNoAddressDoesNot) {
  const auto counted = [](const std::string& from) {
    const auto address = CountedAs(from);
    return address ? address->to_string() : "no address";
  };
  EXPECT_EQ(counted("2001:db8:0:1::7"), "2001:db8:0:1::");
  EXPECT_EQ(counted("2001:db8:0:1:ffff::8"), "2001:db8:0:1::");
  EXPECT_EQ(counted("2001:db8:0:2::7"), "2001:db8:0:2::");
  EXPECT_EQ(counted("::ffff:10.0.0.2"), "10.0.0.2");
  EXPECT_EQ(counted("::1"), "::1");
  EXPECT_EQ(counted("10.0.0.2"), "10.0.0.2");
  EXPECT_EQ(counted("host.example"), "no address");
  EXPECT_EQ(counted(""), "no address");
}

}  // namespace
}  // namespace baton::net
