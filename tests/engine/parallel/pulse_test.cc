#include "engine/parallel/pulse.h"

#include <gmock/gmock.h>
#include <sys/socket.h>

#include <future>
#include <memory>

#include "common/str_cat.h"

namespace baton::engine {
namespace {

using std::chrono::milliseconds;
using testing::AnyOf;
using testing::MatchesRegex;

constexpr Pulse::Pace kQuick{.interval = milliseconds(5), .silence = milliseconds(100)};
/// For who is not to be lost by silence, however long a machine lets a thread wait.
constexpr Pulse::Pace kPatient{.interval = milliseconds(5), .silence = std::chrono::seconds(60)};

/// One end: a pulse and the loss that it told.
struct End {
  std::promise<absl::Status> told;
  std::future<absl::Status> loss = told.get_future();
  std::unique_ptr<Pulse> pulse;

  void Start(std::vector<Pulse::Peer> peers, Pulse::Pace pace) {
    pulse = std::make_unique<Pulse>(std::move(peers), [this](const absl::Status& why) { told.set_value(why); }, pace);
  }
  std::string Loss() {
    if (loss.wait_for(std::chrono::seconds(20)) != std::future_status::ready) return "no loss";
    const absl::Status status = loss.get();
    EXPECT_TRUE(IsRankLoss(status)) << status;
    return std::string(status.message());
  }
  bool Lost() { return loss.wait_for(milliseconds(0)) == std::future_status::ready; }
};

std::pair<RankSocket, RankSocket> Wire() {
  int fds[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  return {RankSocket(fds[0]), RankSocket(fds[1])};
}

/// Rank 0 and `others` ranks; those without a pulse are silent sockets of the test.
class PulseTest : public testing::Test {
 protected:
  void Start(int others, Pulse::Pace pace = kPatient) {
    std::vector<Pulse::Peer> peers;
    for (int rank = 1; rank <= others; ++rank) {
      auto [here, there] = Wire();
      peers.push_back({rank, std::move(here)});
      wires_.push_back(std::move(there));
    }
    zero_.Start(std::move(peers), pace);
  }
  void StartRank(int rank, End& end) {
    std::vector<Pulse::Peer> peers;
    peers.push_back({0, std::move(wires_[static_cast<size_t>(rank - 1)])});
    end.Start(std::move(peers), kPatient);
  }
  End zero_;
  std::vector<RankSocket> wires_;  ///< the other ranks' ends
};

/// Whether three ranks that live, one after the other no more, lose nobody in several times `silence`.
bool NoneIsLost(milliseconds silence) {
  const Pulse::Pace pace{.interval = milliseconds(5), .silence = silence};
  auto [to_one, from_one] = Wire();
  auto [to_two, from_two] = Wire();
  std::vector<Pulse::Peer> others, zero_of_one, zero_of_two;
  others.push_back({1, std::move(to_one)}), others.push_back({2, std::move(to_two)});
  zero_of_one.push_back({0, std::move(from_one)}), zero_of_two.push_back({0, std::move(from_two)});
  End zero, one, two;
  zero.Start(std::move(others), pace), one.Start(std::move(zero_of_one), pace), two.Start(std::move(zero_of_two), pace);
  std::this_thread::sleep_for(3 * silence);  // as long as silence would not be forgiven
  bool lost = zero.Lost() || one.Lost() || two.Lost();
  one.pulse.reset();
  std::this_thread::sleep_for(2 * silence);
  lost = lost || zero.Lost() || two.Lost();  // rank 1 ended in order
  zero.pulse.reset();
  std::this_thread::sleep_for(2 * silence);
  return !lost && !two.Lost();  // and rank 0
}

// A machine that lets a thread wait for longer than that is given more.
TEST(Pulse, RanksThatLiveAreNotLostAndEndInAnyOrder) {
  for (const int silence_ms : {100, 500, 2500}) {
    if (NoneIsLost(milliseconds(silence_ms))) return;
  }
  FAIL() << "one of them was lost, whatever time it had";
}

TEST_F(PulseTest, ASilentRankIsLostAndTheOthersHearOfIt) {
  const std::string silent = "rank 1 has shown no sign of life for [1-9][0-9]{2,} ms";
  Start(2, kQuick);
  End two;
  StartRank(2, two);
  EXPECT_THAT(zero_.Loss(), MatchesRegex(silent));
  EXPECT_FALSE(zero_.pulse->loss().ok());
  zero_.pulse.reset();
  EXPECT_THAT(two.Loss(), MatchesRegex("told by rank 0: " + silent));
}

TEST_F(PulseTest, ARankThatGoesWithoutAWordIsLost) {
  Start(1);
  wires_.clear();  // a sign of life that was not read makes a reset of it
  EXPECT_THAT(zero_.Loss(), AnyOf("rank 1 is gone: the peer closed the connection",
                                  "rank 1 is gone: receive: Connection reset by peer"));
}

TEST_F(PulseTest, ARankThatFailsSaysWhyToRankZeroWhichTellsTheOthers) {
  Start(2);
  End one, two;
  StartRank(1, one);
  StartRank(2, two);
  one.pulse->Fail(absl::InternalError("the step\x01 broke"));
  one.pulse.reset();
  EXPECT_EQ(zero_.Loss(), "told by rank 1: the step\\x01 broke");
  zero_.pulse.reset();
  EXPECT_EQ(two.Loss(), "told by rank 0: told by rank 1: the step\\x01 broke");
  EXPECT_FALSE(one.Lost()) << "it knows";
}

TEST_F(PulseTest, WhatAnotherStartWouldFindAsWellIsTheSameOnEveryRank) {
  for (const absl::StatusCode code : {absl::StatusCode::kInvalidArgument, absl::StatusCode::kNotFound,
                                      absl::StatusCode::kDataLoss, absl::StatusCode::kFailedPrecondition,
                                      absl::StatusCode::kUnimplemented, absl::StatusCode::kResourceExhausted}) {
    const absl::Status why(code, "rank 1: config.json: cannot open");
    End zero, one, two;
    auto [to_one, from_one] = Wire();
    auto [to_two, from_two] = Wire();
    std::vector<Pulse::Peer> others, of_one, of_two;
    others.push_back({1, std::move(to_one)}), others.push_back({2, std::move(to_two)});
    of_one.push_back({0, std::move(from_one)}), of_two.push_back({0, std::move(from_two)});
    zero.Start(std::move(others), kPatient), one.Start(std::move(of_one), kPatient),
        two.Start(std::move(of_two), kPatient);
    one.pulse->Fail(why);
    EXPECT_EQ(zero.loss.get(), why);
    EXPECT_EQ(two.loss.get(), why);
  }
}

TEST_F(PulseTest, WordsOfNoClassAreALoss) {
  Start(1);
  EXPECT_EQ(send(wires_[0].get(), "xzgone\n", 7, MSG_NOSIGNAL), 7);
  EXPECT_EQ(zero_.Loss(), "told by rank 1: gone");
}

TEST_F(PulseTest, LastWordsAreBoundedAndNeverBinary) {
  Start(1);
  const std::string words = "x" + std::string(100'000, '\xff');
  std::thread talker(
      [&] { [[maybe_unused]] const ssize_t n = send(wires_[0].get(), words.data(), words.size(), MSG_NOSIGNAL); });
  talker.join();
  wires_.clear();
  EXPECT_LT(zero_.Loss().size(), 2000u);
}

TEST(RankLoss, AStatusMadeAnewIsNone) {
  const absl::Status loss = RankLoss("rank 1 is gone");
  EXPECT_TRUE(IsRankLoss(loss));
  EXPECT_TRUE(absl::IsUnavailable(loss));
  EXPECT_FALSE(IsRankLoss(absl::UnavailableError(std::string(loss.message()))));
  EXPECT_FALSE(IsRankLoss(absl::OkStatus()));
}

}  // namespace
}  // namespace baton::engine
