// The contract of engine/parallel/communicator.h, over ranks that are threads and ranks that are processes.
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstring>
#include <thread>

#include "common/str_cat.h"
#include "engine/parallel/local_communicator.h"
#include "engine/parallel/tcp_communicator.h"
#include "engine/parallel/tcp_meeting.h"
#include "tests/common/tls_fixture.h"
#include "tests/engine/parallel/communicator_cases.h"

extern char** environ;

namespace baton::engine {
namespace {

constexpr const char *kRankFlag = "--as-rank", *kTlsRankFlag = "--as-rank-in-tls";
constexpr const char* kSecret = "a secret of this test, of 32 bytes or more";
constexpr const char* kDieCase = "DiesOfSignal9";
constexpr const char* kGroupCase = "GroupsOfAMesh";

RankGroup GroupOf(int size, int rank = 0, bool in_tls = false) {
  return {.trust = {.secret = trust::ClusterSecret::Of(kSecret).value(), .tls = in_tls ? tls::TestPeerTls() : nullptr},
          .rank = rank,
          .size = size,
          .patience = std::chrono::seconds(30)};
}

absl::Status AlwaysAlive() { return absl::OkStatus(); }

const CommunicatorCase* Find(std::string_view name) {
  for (const CommunicatorCase& c : CommunicatorCases()) {
    if (name == c.name) return &c;
  }
  return nullptr;
}

// Rank 2 dies as kill -9 has it; the others hear of it.
absl::Status DieOfSignal9(Communicator& group) {
  std::vector<float> data(100000, 1.0f);
  if (group.rank() == 2) raise(SIGKILL);
  const absl::Status status = group.TreeAllReduce(data);
  return absl::IsUnavailable(status) ? absl::OkStatus() : absl::InternalError(status.ToString());
}

// Two groups of two in one mesh of four, and the whole, in turns.
absl::Status UseGroups(const std::shared_ptr<TcpMesh>& mesh) {
  const std::unique_ptr<Communicator> world = MakeTcpGroup(mesh, 0, 4),
                                      half = MakeTcpGroup(mesh, mesh->rank() / 2 * 2, 2);
  for (int i = 0; i < 50; ++i) {
    std::vector<float> in_half = {static_cast<float>(mesh->rank())}, in_world = in_half;
    if (absl::Status s = half->TreeAllReduce(in_half); !s.ok()) return s;
    if (absl::Status s = world->TreeAllReduce(in_world); !s.ok()) return s;
    if (in_half[0] != (mesh->rank() < 2 ? 1.0f : 5.0f) || in_world[0] != 6.0f) return absl::InternalError("sums");
  }
  return absl::OkStatus();
}

absl::Status RunAsRank(std::string_view name, std::shared_ptr<TcpMesh> mesh) {
  if (name == kGroupCase) return UseGroups(mesh);
  const int size = mesh->size();
  std::unique_ptr<Communicator> group = MakeTcpGroup(std::move(mesh), 0, size);
  if (name == kDieCase) return DieOfSignal9(*group);
  return Find(name)->run(group);
}

pid_t SpawnRank(const std::string& name, int rank, int size, const std::string& address, bool in_tls) {
  std::vector<std::string> args = {"test", in_tls ? kTlsRankFlag : kRankFlag, name, StrCat(rank), StrCat(size),
                                   address};
  std::vector<char*> argv;
  for (std::string& a : args) argv.push_back(a.data());
  argv.push_back(nullptr);
  pid_t pid = -1;
  EXPECT_EQ(posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, argv.data(), environ), 0);
  return pid;
}

// Rank 0 here, the others as processes; their wait statuses, from rank 1.
std::vector<int> RunAsProcesses(const std::string& name, int size, absl::Status& mine,
                                const std::string& host = "127.0.0.1", bool in_tls = false) {
  const RankGroup group = GroupOf(size, 0, in_tls);
  const auto meeting = TcpMeetingPoint::Listen(host).value();
  std::vector<pid_t> pids;
  for (int rank = 1; rank < size; ++rank) pids.push_back(SpawnRank(name, rank, size, meeting->address(), in_tls));
  auto mesh = meeting->Gather(group, AlwaysAlive);
  mine = mesh.ok() ? RunAsRank(name, *std::move(mesh)) : mesh.status();
  std::vector<int> statuses;
  for (const pid_t pid : pids) waitpid(pid, &statuses.emplace_back(), 0);
  return statuses;
}

class Contract : public testing::TestWithParam<CommunicatorCase> {};

TEST_P(Contract, RanksAsThreads) {
  const CommunicatorCase& c = GetParam();
  std::vector<std::unique_ptr<Communicator>> group = MakeLocalGroup(c.ranks);
  std::vector<absl::Status> results(static_cast<size_t>(c.ranks));
  {
    std::vector<std::jthread> threads;
    for (size_t r = 0; r < group.size(); ++r) threads.emplace_back([&, r] { results[r] = c.run(group[r]); });
  }
  for (size_t r = 0; r < results.size(); ++r) EXPECT_TRUE(results[r].ok()) << "rank " << r << ": " << results[r];
}

TEST_P(Contract, RanksAsProcesses) {
  absl::Status mine;
  const std::vector<int> statuses = RunAsProcesses(GetParam().name, GetParam().ranks, mine);
  EXPECT_TRUE(mine.ok()) << "rank 0: " << mine;
  for (size_t r = 0; r < statuses.size(); ++r) EXPECT_EQ(statuses[r], 0) << "rank " << r + 1;
}

TEST_P(Contract, RanksAsProcessesInTls) {
  absl::Status mine;
  const std::vector<int> statuses = RunAsProcesses(GetParam().name, GetParam().ranks, mine, "127.0.0.1", true);
  EXPECT_TRUE(mine.ok()) << "rank 0: " << mine;
  for (size_t r = 0; r < statuses.size(); ++r) EXPECT_EQ(statuses[r], 0) << "rank " << r + 1;
}

INSTANTIATE_TEST_SUITE_P(All, Contract, testing::ValuesIn(CommunicatorCases()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(TcpMesh, AKilledProcessIsAnErrorForAll) {
  for (const bool in_tls : {false, true}) {
    absl::Status mine;
    const std::vector<int> statuses = RunAsProcesses(kDieCase, 4, mine, "127.0.0.1", in_tls);
    EXPECT_TRUE(mine.ok()) << mine;
    EXPECT_EQ(statuses[0], 0);
    EXPECT_TRUE(WIFSIGNALED(statuses[1]) && WTERMSIG(statuses[1]) == SIGKILL);
    EXPECT_EQ(statuses[2], 0);
  }
}

TEST(TcpMesh, GroupsShareItsConnections) {
  absl::Status mine;
  const std::vector<int> statuses = RunAsProcesses(kGroupCase, 4, mine);
  EXPECT_TRUE(mine.ok()) << mine;
  for (const int status : statuses) EXPECT_EQ(status, 0);
}

TEST(TcpMesh, RanksMeetOverIpv6) {
  if (const auto v6 = TcpMeetingPoint::Listen("::1"); !v6.ok()) GTEST_SKIP() << "no IPv6 here: " << v6.status();
  absl::Status mine;
  const std::vector<int> statuses = RunAsProcesses(kGroupCase, 4, mine, "::1");
  EXPECT_TRUE(mine.ok()) << mine;
  for (const int status : statuses) EXPECT_EQ(status, 0);
}

TEST(TcpMesh, APeerThatIsSilentForTooLongIsLost) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  std::vector<RankSocket> sockets(2);
  sockets[1] = RankSocket(ends[0]);
  const auto mesh = std::make_shared<TcpMesh>(0, std::move(sockets));
  const RankSocket silent(ends[1]);
  const auto group = MakeTcpGroup(mesh, 0, 2);
  EXPECT_TRUE(mesh->Lost().ok());
  mesh->SetPatience(std::chrono::milliseconds(20));
  const absl::Status status = group->TreeAllReduce({});
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(status.ToString().find("rank 1 has not answered for 20 ms"), std::string::npos) << status;
  EXPECT_EQ(mesh->Lost(), status);
}

TEST(TcpMesh, NotesOfARankThatLoadsComeBetweenFramesAndKeepThoseWaitingThatWait) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  std::vector<RankSocket> of_zero(2), of_one(2);
  of_zero[1] = RankSocket(ends[0]), of_one[0] = RankSocket(ends[1]);
  const auto zero = std::make_shared<TcpMesh>(0, std::move(of_zero));
  const auto one = std::make_shared<TcpMesh>(1, std::move(of_one));
  EXPECT_EQ(zero->moved(), 0u);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(one->Note(0).ok());  // nobody waits for them
  std::vector<float> mine = {1}, theirs = {2};
  std::thread waits([&] { EXPECT_TRUE(MakeTcpGroup(zero, 0, 2)->TreeAllReduce(mine).ok()); });
  while (zero->waits_for() != 1 || zero->moved() < 4) std::this_thread::yield();  // its own frame, and notes
  const uint64_t before = zero->moved();
  EXPECT_TRUE(one->Note(0).ok());
  while (zero->moved() == before) std::this_thread::yield();
  EXPECT_TRUE(MakeTcpGroup(one, 0, 2)->TreeAllReduce(theirs).ok());
  waits.join();
  EXPECT_EQ(mine, theirs);
  EXPECT_EQ(mine[0], 3);
  EXPECT_EQ(zero->waits_for(), -1);
}

TEST(TcpMesh, TheStarterOfTheRanksMayEndTheWait) {
  const auto meeting = TcpMeetingPoint::Listen("127.0.0.1").value();
  const auto mesh = meeting->Gather(GroupOf(2), [] { return absl::UnavailableError("rank 1 ended"); });
  EXPECT_TRUE(absl::IsUnavailable(mesh.status())) << mesh.status();
}

}  // namespace

int AsRank(char** argv, bool in_tls) {
  const int rank = std::atoi(argv[1]), size = std::atoi(argv[2]);
  auto mesh = JoinTcpMesh(argv[3], GroupOf(size, rank, in_tls));
  const absl::Status status = mesh.ok() ? RunAsRank(argv[0], *std::move(mesh)) : mesh.status();
  if (!status.ok()) std::fprintf(stderr, "rank %d: %s\n", rank, status.ToString().c_str());
  return status.ok() ? 0 : 1;
}

}  // namespace baton::engine

int main(int argc, char** argv) {
  for (const char* flag : {baton::engine::kRankFlag, baton::engine::kTlsRankFlag}) {
    if (argc == 6 && std::strcmp(argv[1], flag) == 0)
      return baton::engine::AsRank(argv + 2, flag == baton::engine::kTlsRankFlag);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
