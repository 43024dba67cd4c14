// The lines between rank 0 and the other ranks: who is heard, who is told what, and what a break is.
#include "worker/ranks/kv_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvtransfer/rank_codec.h"
#include "tests/caught_log.h"

namespace baton::worker {
namespace {

using std::chrono::seconds;

trust::PeerTrust GroupSecret(char c) { return {.secret = trust::ClusterSecret::Of(std::string(32, c)).value()}; }

/// A rank's end, and what came of it.
struct End {
  End(const KvInvitation& invitation, int rank, char secret = 's')
      : line(KvLine::Dial(
                 invitation, rank, "127.0.0.1", GroupSecret(secret),
                 [this](const RankOrder& order) { orders.push_back(order); },
                 [this](const absl::Status& why) { broken = why; })
                 .value()) {}
  void Begun(const absl::Status& status) {
    v1::RankNews news;
    news.mutable_begun();
    if (!status.ok()) *news.mutable_begun()->mutable_error() = EncodeRankError(status);
    line->Send(news);
  }
  uint64_t CutOf(size_t i) const { return std::get<v1::RankOrder>(orders.at(i)).cut(); }
  std::vector<RankOrder> orders;
  absl::Status broken;
  std::unique_ptr<KvLine> line;
};

struct LinesWorld {
  std::unique_ptr<KvLines> lines = KvLines::Open("127.0.0.1", 3, GroupSecret('s')).value();
  std::vector<std::unique_ptr<End>> ends;

  void Join(int rank) { ends.push_back(std::make_unique<End>(lines->invitation(), rank)); }
  absl::Status Until(const std::function<bool()>& done) {
    return lines->Await(
        [&] {
          for (const auto& end : ends) end->line->transport().Progress();
          return done();
        },
        seconds(20), "the test");
  }
};

v1::RankOrder Cut(uint64_t peer) {
  v1::RankOrder order;
  order.set_cut(peer);
  return order;
}

TEST(KvLines, EachRankIsToldWhatIsItsOwnInOrderAndIsHeardByItsNumber) {
  LinesWorld w;
  std::vector<std::pair<int, uint64_t>> heard;
  w.lines->Listen(
      [&](int rank, const RankNews& news) { heard.emplace_back(rank, std::get<v1::RankNews>(news).lost()); });
  w.Join(2), w.Join(1);
  v1::RankNews news;
  for (const auto& end : w.ends) news.set_lost(7), end->line->Send(news);
  ASSERT_TRUE(w.Until([&] { return heard.size() == 2; }).ok());
  EXPECT_THAT(heard, testing::UnorderedElementsAre(std::pair{1, 7}, std::pair{2, 7}));
  for (uint64_t i = 1; i <= 100; ++i) w.lines->Send(1, Cut(i));
  w.lines->Send(2, Cut(500));
  ASSERT_TRUE(w.Until([&] { return w.ends[0]->orders.size() == 1 && w.ends[1]->orders.size() == 100; }).ok());
  EXPECT_EQ(w.ends[0]->CutOf(0), 500u);
  for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(w.ends[1]->CutOf(i), i + 1);
}

TEST(KvLines, WhoWasNotInvitedOrTakesARanksPlaceIsNotHeard) {
  LinesWorld w;
  int heard = 0;
  w.lines->Listen([&](int, const RankNews&) { ++heard; });
  w.Join(1);
  ASSERT_TRUE(w.Until([&] { return w.lines->seated() == 1; }).ok());
  KvInvitation guessed = w.lines->invitation();
  guessed.word[3] ^= 1;
  v1::RankNews news;
  news.set_lost(7);
  for (const auto& [invitation, rank] :
       {std::pair{guessed, 2}, {w.lines->invitation(), 1}, {w.lines->invitation(), 3}, {w.lines->invitation(), 0}}) {
    w.ends.push_back(std::make_unique<End>(invitation, rank));
    w.ends.back()->line->Send(news);
  }
  w.Join(2);
  w.ends.back()->line->Send(news);
  ASSERT_TRUE(w.Until([&] { return heard == 1; }).ok());
  EXPECT_EQ(w.lines->seated(), 2);
}

TEST(KvLines, WhoWasNotInvitedAndTalksOnHasOneLineASecond) {
  LinesWorld w;
  w.lines->Listen([](int, const RankNews&) {});
  KvInvitation guessed = w.lines->invitation();
  guessed.word[3] ^= 1;
  const CaughtLog log;
  const SteadyClock clock;
  const TimePoint begin = clock.Now();
  w.ends.push_back(std::make_unique<End>(guessed, 1));
  v1::RankNews news;
  for (int i = 0; i < 200; ++i) w.ends[0]->line->Send(news);
  w.Join(1);  // heard behind them, for the most part
  ASSERT_TRUE(w.Until([&] { return w.lines->seated() == 1 && log.Count("is not a rank's") > 0; }).ok());
  EXPECT_LE(log.Count("is not a rank's"), 1 + static_cast<int>(Seconds(clock.Now() - begin))) << log.text();
}

TEST(KvLines, AnotherSecretIsRefusedWhereItDialled) {
  LinesWorld w;
  w.ends.push_back(std::make_unique<End>(w.lines->invitation(), 1, 'x'));
  ASSERT_TRUE(w.Until([&] { return !w.ends[0]->broken.ok(); }).ok());
  EXPECT_THAT(w.ends[0]->broken.ToString(), testing::HasSubstr("another cluster secret"));
  EXPECT_EQ(w.lines->seated(), 0);
}

TEST(KvLines, ARankThatIsGoneEndsWhatWaitsForIt) {
  LinesWorld w;
  w.Join(1), w.Join(2);
  ASSERT_TRUE(w.Until([&] { return w.lines->seated() == 2; }).ok());
  w.ends.pop_back();
  const absl::Status status = w.Until([] { return false; });
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(status.ToString(), testing::HasSubstr("rank 2 is gone"));
  w.lines->Send(2, Cut(1));  // dropped
}

TEST(KvLines, RankZeroThatIsGoneIsToldOnce) {
  LinesWorld w;
  w.Join(1);
  ASSERT_TRUE(w.Until([&] { return w.lines->seated() == 1; }).ok());
  w.lines = nullptr;
  while (w.ends[0]->broken.ok()) w.ends[0]->line->transport().Progress();
  EXPECT_THAT(w.ends[0]->broken.ToString(), testing::HasSubstr("the line for KV to rank 0 is gone"));
}

TEST(KvLines, ARankThatDoesNotComeIsNamedWithTheTime) {
  LinesWorld w;
  const absl::Status status = w.lines->Begin("life", "numerics", /*takes_kv=*/true, std::chrono::milliseconds(30));
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(status.ToString(), testing::HasSubstr("more than 30 ms"));
}

}  // namespace
}  // namespace baton::worker
