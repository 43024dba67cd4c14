// What the contract of all transports does not say of TCP: foreign connections, no descriptors, hosts that vanish.
#include "kvtransfer/tcp/tcp_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

namespace baton {
namespace {

using ::testing::HasSubstr;

struct Side final : TransportEvents {
  void OnConnected(PeerNumber peer) override { connected.push_back(peer); }
  void OnMessage(PeerNumber, std::string_view) override {}
  void OnLost(PeerNumber peer, const absl::Status& why) override { lost.push_back(peer), lost_why = why; }
  bool MayLand(PeerNumber, const LandingPlace&) override { return true; }
  std::vector<PeerNumber> connected, lost;
  absl::Status lost_why;
};

/// A connection that speaks another protocol.
TEST(TcpTransport, GarbageEndsItsConnectionAndNothingElse) {
  Side side;
  auto transport = TcpTransport::Create({.landing = {1, 4096}}, side);
  ASSERT_TRUE(transport.ok());
  const auto socket = tcp::Dial((*transport)->address().substr(4));
  ASSERT_TRUE(socket.ok());
  const std::string garbage(1000, 'x');
  for (int i = 0; i < 100000 && side.lost.empty(); ++i) {
    (*transport)->Progress();
    (void)!write(*socket, garbage.data(), garbage.size());
  }
  ASSERT_EQ(side.lost.size(), 1u);
  EXPECT_THAT(std::string(side.lost_why.message()), HasSubstr("header is damaged"));
  EXPECT_TRUE(side.connected.empty());
  close(*socket);
}

TEST(TcpTransport, Ipv6AddressesHaveBrackets) {
  Side side, other;
  auto transport = TcpTransport::Create({.host = "::1", .landing = {1, 4096}}, side);
  if (!transport.ok()) GTEST_SKIP() << "no IPv6 here: " << transport.status();
  auto sender = TcpTransport::Create({.host = "::1"}, other);
  ASSERT_TRUE(sender.ok()) << sender.status();
  EXPECT_THAT((*transport)->address(), ::testing::StartsWith("tcp:[::1]:"));
  ASSERT_TRUE((*sender)->Connect((*transport)->address()).ok());
  for (int i = 0; i < 100000 && side.connected.empty(); ++i) (*sender)->Progress(), (*transport)->Progress();
  EXPECT_EQ(side.connected.size(), 1u);
}

TEST(TcpTransport, WhatIsNoAddressIsNotDialled) {
  Side side;
  auto transport = TcpTransport::Create({}, side);
  ASSERT_TRUE(transport.ok());
  for (const char* address : {"tcp:", "tcp:127.0.0.1", "tcp:::1:80", "tcp:127.evil.example:80", "tcp:127.0.0.1:0"})
    EXPECT_FALSE((*transport)->Connect(address).ok()) << address;
}

/// A listener that nobody accepts from stays readable: without a rest its thread would turn for ever.
TEST(TcpTransport, OutOfDescriptorsItRestsAndListensAgain) {
  Side side, other;
  auto transport = TcpTransport::Create({.landing = {1, 4096}}, side), sender = TcpTransport::Create({}, other);
  ASSERT_TRUE(transport.ok() && sender.ok());
  ASSERT_TRUE((*sender)->Connect((*transport)->address()).ok());
  rlimit before{}, none{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = dup(0);
  close(next);
  none = {static_cast<rlim_t>(next), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  while ((*sender)->Progress()) {
  }
  EXPECT_FALSE((*transport)->Progress());
  pollfd waiting{(*transport)->wait_fd(), POLLIN, 0};
  EXPECT_EQ(poll(&waiting, 1, 0), 0) << "it would be woken at once";
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (side.connected.empty() && std::chrono::steady_clock::now() < end)
    (*sender)->Progress(), (*transport)->Progress();
  EXPECT_EQ(side.connected.size(), 1u);
}

/// The listener's turn is over after so many; without that this one, who comes whenever another has been turned away,
/// would keep it for ever.
TEST(TcpTransport, WhoConnectsWithoutEndLeavesOthersTheirTurn) {
  constexpr int kGuests = 256, kEndless = 2000;
  struct Comer final : TransportEvents {
    void OnConnected(PeerNumber) override {}
    void OnMessage(PeerNumber, std::string_view) override {}
    void OnLost(PeerNumber, const absl::Status&) override {}
    void OnRefused(PeerNumber, std::string_view, const absl::Status&) override {
      if (++refused < kEndless) Come();
    }
    bool MayLand(PeerNumber, const LandingPlace&) override { return true; }
    void Come() {
      if (last >= 0) close(last);
      last = tcp::Dial(address).value();
    }
    std::string address;
    int refused = 0, last = -1;
  } side;
  auto transport = TcpTransport::Create({.landing = {1, 4096}}, side);
  ASSERT_TRUE(transport.ok());
  side.address = (*transport)->address().substr(4);
  std::vector<int> silent;
  for (int i = 0; i < kGuests; ++i) {
    silent.push_back(tcp::Dial(side.address).value());
    while ((*transport)->Progress()) {
    }
  }
  ASSERT_EQ(side.refused, 0);
  side.Come();
  (*transport)->Progress();
  EXPECT_GT(side.refused, 0);
  EXPECT_LE(side.refused, kGuests);
  for (const int socket : silent) close(socket);
  close(side.last);
}

TEST(TcpTransport, AHostThatIsGoneWithoutAWordIsNoticed) {
  const auto value_of = [](int socket, int level, int option) {
    int value = -1;
    socklen_t bytes = sizeof(value);
    getsockopt(socket, level, option, &value, &bytes);
    return value;
  };
  for (const bool when_full : {false, true}) {
    const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
    tcp::NoticeVanishedHost(socket, when_full);
    EXPECT_EQ(value_of(socket, SOL_SOCKET, SO_KEEPALIVE), 1);
    const int seconds = value_of(socket, IPPROTO_TCP, TCP_KEEPIDLE) +
                        value_of(socket, IPPROTO_TCP, TCP_KEEPINTVL) * value_of(socket, IPPROTO_TCP, TCP_KEEPCNT);
    EXPECT_EQ(seconds, 30);
    EXPECT_EQ(value_of(socket, IPPROTO_TCP, TCP_USER_TIMEOUT), when_full ? 30000 : 0);
    close(socket);
  }
}

}  // namespace
}  // namespace baton
