// Who comes to the ranks' door, and who may not: every case beside a group that meets all the same.
#include "engine/parallel/rank_door.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "common/net/socket_address.h"
#include "common/str_cat.h"
#include "engine/parallel/tcp_communicator.h"
#include "engine/parallel/tcp_meeting.h"
#include "tests/common/tls_fixture.h"

namespace baton::engine {
namespace {

constexpr const char* kSecret = "the secret of the group, 32 bytes long at least";
constexpr const char* kOther = "the secret of another group, 32 bytes long at least";

RankGroup GroupOf(int size, int rank, const char* secret = kSecret) {
  return {.trust = {.secret = trust::ClusterSecret::Of(secret).value()},
          .rank = rank,
          .size = size,
          .patience = std::chrono::seconds(30)};
}

net::SocketAddress AddressOf(const TcpMeetingPoint& meeting) {
  const auto colon = meeting.address().rfind(':');
  return net::SocketAddress::Of("127.0.0.1", static_cast<uint16_t>(std::atoi(meeting.address().c_str() + colon + 1)))
      .value();
}

RankSocket Dialled(const net::SocketAddress& where, const char* from) {
  const net::SocketAddress own = net::SocketAddress::Of(from, 0).value();
  RankSocket out(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(bind(out.get(), own.get(), own.bytes()), 0);
  EXPECT_EQ(connect(out.get(), where.get(), where.bytes()), 0);
  return out;
}

/// Rank 0 of a group of two on a thread; the test is whoever comes. Rank 1 comes at the end, and the two meet.
class RankDoorTest : public testing::Test {
 protected:
  RankDoorTest() : thread_([this] { mesh_ = meeting_->Gather(GroupOf(2, 0), [] { return absl::OkStatus(); }); }) {}

  /// Rank 1 comes and is welcome, whatever came before it.
  void Meet() {
    const absl::StatusOr<std::shared_ptr<TcpMesh>> mesh = JoinTcpMesh(meeting_->address(), GroupOf(2, 1));
    ASSERT_TRUE(mesh.ok()) << mesh.status();
    thread_.join();
    ASSERT_TRUE(mesh_.ok()) << mesh_.status();
    std::jthread other([&] { EXPECT_TRUE(MakeTcpGroup(*mesh, 0, 2)->TreeAllReduce({}).ok()); });
    EXPECT_TRUE(MakeTcpGroup(*mesh_, 0, 2)->TreeAllReduce({}).ok());
  }
  absl::Status Come(const RankGroup& group) { return JoinTcpMesh(meeting_->address(), group).status(); }

  const std::unique_ptr<TcpMeetingPoint> meeting_ = TcpMeetingPoint::Listen("127.0.0.1").value();
  absl::StatusOr<std::shared_ptr<TcpMesh>> mesh_;
  std::jthread thread_;
};

TEST_F(RankDoorTest, AnotherSecretIsRefusedAndSaysSoWhereItDialled) {
  const absl::Status refused = Come(GroupOf(2, 1, kOther));
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  EXPECT_EQ(refused.message(), StrCat("rank 0 at ", meeting_->address(), ": the peer has another cluster secret"));
  Meet();
  EXPECT_EQ(meeting_->refused(), 1);
}

TEST_F(RankDoorTest, TlsToAGroupInPlainTextIsRefusedAndSaysSoOnBothSides) {
  RankGroup in_tls = GroupOf(2, 1);
  in_tls.trust.tls = tls::TestPeerTls();
  EXPECT_EQ(Come(in_tls).ToString(),
            StrCat("UNAUTHENTICATED: rank 0 at ", meeting_->address(), ": the peer answers in plain text, not TLS"));
  Meet();
  EXPECT_EQ(meeting_->refused(), 1);
}

TEST(RankDoor, PlainTextToAGroupInTlsIsRefusedAndSaysSoWhereItDialled) {
  RankGroup in_tls = GroupOf(2, 0);
  in_tls.trust.tls = tls::TestPeerTls();
  const auto meeting = TcpMeetingPoint::Listen("127.0.0.1").value();
  absl::StatusOr<std::unique_ptr<TcpMesh>> zero;
  std::jthread gather([&] { zero = meeting->Gather(in_tls, [] { return absl::OkStatus(); }); });
  EXPECT_EQ(
      JoinTcpMesh(meeting->address(), GroupOf(2, 1)).status().ToString(),
      StrCat("UNAUTHENTICATED: rank 0 at ", meeting->address(), ": the peer speaks TLS, this process plain text"));
  in_tls.rank = 1;
  EXPECT_TRUE(JoinTcpMesh(meeting->address(), in_tls).ok());
  gather.join();
  EXPECT_TRUE(zero.ok()) << zero.status();
  EXPECT_EQ(meeting->refused(), 1);
}

TEST(RankDoor, ACertificateOfAnotherAuthorityIsRefusedOnBothSides) {
  const tls::CertDir dir;
  dir.Make(tls::TestAuthority("another authority"), "stranger", {"baton-worker"});
  RankGroup ours = GroupOf(2, 0), theirs = GroupOf(2, 1);
  ours.trust.tls = tls::TestPeerTls();
  theirs.trust.tls =
      tls::PeerTls::Open({dir.path("stranger.crt"), dir.path("stranger.key"), dir.path("ca.crt")}, "baton-worker")
          .value();
  const auto meeting = TcpMeetingPoint::Listen("127.0.0.1").value();
  absl::StatusOr<std::unique_ptr<TcpMesh>> zero;
  std::jthread gather([&] { zero = meeting->Gather(ours, [] { return absl::OkStatus(); }); });
  const std::string refused = JoinTcpMesh(meeting->address(), theirs).status().ToString();
  EXPECT_NE(refused.find("was issued by \"test authority\", but " + dir.path("ca.crt") + " has \"another authority\""),
            std::string::npos)
      << refused;
  ours.rank = 1;
  EXPECT_TRUE(JoinTcpMesh(meeting->address(), ours).ok());
  gather.join();
  EXPECT_TRUE(zero.ok()) << zero.status();
  EXPECT_EQ(meeting->refused(), 1);
}

TEST_F(RankDoorTest, SilentPeersHoldUpNobody) {
  std::vector<RankSocket> silent;
  for (int i = 0; i < 40; ++i) silent.push_back(Dialled(AddressOf(*meeting_), "127.0.0.2"));
  const SteadyClock clock;
  const TimePoint start = clock.Now();
  Meet();
  EXPECT_LT(Seconds(clock.Now() - start), 20) << "the silent ones were waited for one by one: 80 s";
}

TEST_F(RankDoorTest, OneAddressHasOnlySoManyGuests) {
  std::vector<RankSocket> silent;
  for (size_t i = 0; i <= RankDoor::kMostGuestsOfHost; ++i)
    silent.push_back(Dialled(AddressOf(*meeting_), "127.0.0.2"));
  char byte;  // the last is turned away at once, in whose greeting nobody is interested
  EXPECT_LE(recv(silent.back().get(), &byte, 1, 0), 0);
  Meet();
  EXPECT_GE(meeting_->refused(), 1);
}

TEST(RankDoor, WhoConnectsWithoutEndLeavesOthersTheirTurn) {
  const net::SocketAddress any = net::SocketAddress::Of("127.0.0.1", 0).value();
  const RankSocket listener(net::ListenAt(any, SOCK_NONBLOCK, 1024).value());
  const net::SocketAddress where = net::SocketAddress::OfSocket(listener.get());
  constexpr size_t kComing = RankDoor::kMostGuests + 100;
  std::vector<RankSocket> silent;
  for (size_t i = 0; i < kComing; ++i) silent.push_back(Dialled(where, "127.0.0.2"));
  RankDoor door(listener.get(), GroupOf(2, 0));
  std::vector<RankSeat> seats(2);
  std::vector<int64_t> refused;  // before each turn, as it is asked whether the others live
  const absl::Status left = door.Admit(1, seats, [&] {
    refused.push_back(door.refused());
    return refused.size() < 3 ? absl::OkStatus() : absl::CancelledError("enough was seen");
  });
  EXPECT_TRUE(absl::IsCancelled(left)) << left;
  ASSERT_EQ(refused.size(), 3u);
  EXPECT_EQ(refused[1], static_cast<int64_t>(RankDoor::kMostGuests - RankDoor::kMostGuestsOfHost));
  EXPECT_EQ(refused[2], static_cast<int64_t>(kComing - RankDoor::kMostGuestsOfHost));
}

TEST(RankDoor, AFewAddressesThatFillItLeaveOthersTheirPlace) {
  const net::SocketAddress any = net::SocketAddress::Of("127.0.0.1", 0).value();
  const RankSocket listener(net::ListenAt(any, SOCK_NONBLOCK, 1024).value());
  const net::SocketAddress where = net::SocketAddress::OfSocket(listener.get());
  std::vector<RankSocket> silent;
  for (const char* from : {"127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"}) {
    for (size_t i = 0; i < RankDoor::kMostGuestsOfHost; ++i) silent.push_back(Dialled(where, from));
  }
  ASSERT_EQ(silent.size(), RankDoor::kMostGuests);
  const RankSocket another = Dialled(where, "127.0.0.6");
  RankDoor door(listener.get(), GroupOf(2, 0));
  std::vector<RankSeat> seats(2);
  int turns = 0;
  const absl::Status left =
      door.Admit(1, seats, [&] { return ++turns < 4 ? absl::OkStatus() : absl::CancelledError("enough was seen"); });
  EXPECT_TRUE(absl::IsCancelled(left)) << left;
  EXPECT_EQ(door.refused(), 1);
  char byte;
  EXPECT_EQ(recv(another.get(), &byte, 1, MSG_DONTWAIT), -1) << "it may greet";
  EXPECT_EQ(recv(silent.front().get(), &byte, 1, MSG_DONTWAIT), 0) << "the oldest of those with most gave way";
  EXPECT_EQ(recv(silent.back().get(), &byte, 1, MSG_DONTWAIT), -1);
}

TEST_F(RankDoorTest, OneThatSpeaksSomethingElseIsTurnedAway) {
  RankSocket stranger = Dialled(AddressOf(*meeting_), "127.0.0.2");
  const std::string words = "GET / HTTP/1.1\r\n\r\n";
  ASSERT_EQ(send(stranger.get(), words.data(), words.size(), MSG_NOSIGNAL), static_cast<ssize_t>(words.size()));
  char byte;
  EXPECT_LE(recv(stranger.get(), &byte, 1, 0), 0);
  Meet();
  EXPECT_EQ(meeting_->refused(), 1);
}

TEST_F(RankDoorTest, ARankOfAnotherGroupIsToldSo) {
  EXPECT_EQ(Come(GroupOf(4, 1)).message(),
            StrCat("rank 0 at ", meeting_->address(), ": rank 1 was started for a group of 4 ranks, this one has 2"));
  EXPECT_EQ(Come(GroupOf(2, 2)).message(),
            StrCat("rank 0 at ", meeting_->address(), ": no rank 2 is awaited here, but 1 to 1"));
  EXPECT_EQ(Come(GroupOf(2, 0)).code(), absl::StatusCode::kFailedPrecondition);
  Meet();
  EXPECT_EQ(meeting_->refused(), 3);
}

TEST(RankDoor, OfTwoRanksWithOneIndexTheSecondIsRefused) {
  const auto meeting = TcpMeetingPoint::Listen("127.0.0.1").value();
  absl::StatusOr<std::unique_ptr<TcpMesh>> zero;
  std::jthread gather([&] { zero = meeting->Gather(GroupOf(3, 0), [] { return absl::OkStatus(); }); });
  // Which of the two comes first is chance: one is refused, one stays.
  absl::Status came[2];
  std::atomic<int> refused{0};
  std::vector<std::jthread> twins;
  for (absl::Status& status : came) {
    twins.emplace_back([&] {
      status = JoinTcpMesh(meeting->address(), GroupOf(3, 1)).status();
      if (absl::IsAlreadyExists(status)) {
        ++refused;
        refused.notify_all();
      }
    });
  }
  refused.wait(0);
  EXPECT_TRUE(JoinTcpMesh(meeting->address(), GroupOf(3, 2)).ok());
  twins.clear();
  gather.join();
  EXPECT_TRUE(zero.ok()) << zero.status();
  const absl::Status& second = came[0].ok() ? came[1] : came[0];
  EXPECT_TRUE(came[0].ok() || came[1].ok()) << came[0] << came[1];
  EXPECT_EQ(second.message(), StrCat("rank 0 at ", meeting->address(),
                                     ": rank 1 is there already, from 127.0.0.1: two processes were started with one "
                                     "index"));
}

TEST(RankDoor, ARankThatEndedLeavesItsPlaceToTheNextOne) {
  const auto meeting = TcpMeetingPoint::Listen("127.0.0.1").value();
  absl::StatusOr<std::unique_ptr<TcpMesh>> zero;
  std::jthread gather([&] { zero = meeting->Gather(GroupOf(3, 0), [] { return absl::OkStatus(); }); });
  const RankHello hello{.rank = 1, .size = 3, .port = 1};
  ASSERT_TRUE(DialRank(AddressOf(*meeting), 0, GroupOf(3, 1), hello).ok());  // sits, and is closed
  std::jthread one([&] { EXPECT_TRUE(JoinTcpMesh(meeting->address(), GroupOf(3, 1)).ok()); });
  EXPECT_TRUE(JoinTcpMesh(meeting->address(), GroupOf(3, 2)).ok());
  gather.join();
  EXPECT_TRUE(zero.ok()) << zero.status();
}

TEST(RankDoor, ARankComesBeforeRankZero) {
  // Bound, so that nobody else takes the port meanwhile, and not listening.
  const int claim = net::BoundSocket(net::SocketAddress::Of("127.0.0.1", 0).value(), 0);
  ASSERT_GE(claim, 0);
  const net::SocketAddress where = net::SocketAddress::OfSocket(claim);
  std::atomic<bool> dialled{false};
  std::jthread one([&] {
    dialled = true;
    dialled.notify_all();
    EXPECT_TRUE(JoinTcpMesh(where.text(), GroupOf(2, 1)).ok());
  });
  dialled.wait(false);
  const auto meeting = TcpMeetingPoint::Listen("127.0.0.1", where.port()).value();
  EXPECT_TRUE(meeting->Gather(GroupOf(2, 0), [] { return absl::OkStatus(); }).ok());
  close(claim);
}

TEST(RankDoor, WhoDialsSaysOfASilentPeerThatItIsSilent) {
  const auto silent = TcpMeetingPoint::Listen("127.0.0.1").value();  // it never gathers
  RankGroup group = GroupOf(2, 1);
  group.patience = std::chrono::milliseconds(100);
  const absl::Status status = JoinTcpMesh(silent->address(), group).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_EQ(status.message(),
            StrCat("rank 0 at ", silent->address(), " has not answered in time while it was to greet"));
}

TEST(RankDoor, TheWaitForRanksNamesWhoIsMissing) {
  const auto meeting = TcpMeetingPoint::Listen("127.0.0.1").value();
  RankGroup group = GroupOf(4, 0);
  group.patience = std::chrono::milliseconds(50);
  const absl::Status status = meeting->Gather(group, [] { return absl::OkStatus(); }).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_EQ(status.message(), "ranks did not come: 1, 2, 3");
}

}  // namespace
}  // namespace baton::engine
