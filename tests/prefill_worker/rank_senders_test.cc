// What rank 0 says to its other ranks, and keeps of what they say.
#include "prefill_worker/rank_senders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "kvtransfer/rank_numbers.h"
#include "sim/stepped_engine.h"
#include "tests/worker/hand_loop.h"
#include "tests/worker/one_rank.h"
#include "worker/ranks/rank_news_line.h"

namespace baton::prefill_worker {
namespace {

constexpr prefill::PeerId kOfRank1 = InRank(1, 7);
const LaneKey kRankLane{9, 1, 0};

/// Keeps what the ranks are sent.
class KeptLines final : public worker::RankLines {
 public:
  int ranks() const override { return 3; }
  void Listen(OnNews on_news) override { say = std::move(on_news); }
  void Send(int rank, const RankOrder& order) override { sent.emplace_back(rank, order); }

  OnNews say;
  std::vector<std::pair<int, RankOrder>> sent;
};

struct RankZero final : SenderEvents {
  RankZero()
      : side(worker::SideOf(h.memory().layout())),
        own({.host = "127.0.0.1", .kinds = {"tcp"}, .self_test = false}, 4096, worker::PoolOf(h.memory()),
            LaneHello{.incarnation = "p1", .model_digest = "m", .numerics_id = "n", .side = side}, clock, loop, *this),
        senders(own, lines, *this) {}
  void OnPush(const prefill::Event& event) override { heard.push_back(event); }
  void Write(uint32_t slot, bool may_wait = false) {
    const auto plan = std::make_shared<const TransferPlan>(TransferPlan::Make(side, side, {0, 64}, 32).value());
    senders.Write(
        {kOfRank1, kRankLane, {slot, 1}, {0}, plan, KvBlockTables(side.layout.groups.size()), false, may_wait});
  }

  engine::SteppedEngine h{engine::SteppedEngineOptions{}};
  SteadyClock clock;
  worker::HandLoop loop;
  KvSide side;
  std::vector<prefill::Event> heard;
  KeptLines lines;
  Sender own;
  RankSenders senders;
};

TEST(RankSenders, APlanIsToldInFrontOfItsFirstSlotAndNamedWithEach) {
  RankZero z;
  z.Write(0), z.Write(1);
  ASSERT_EQ(z.lines.sent.size(), 3u);
  for (const auto& [rank, order] : z.lines.sent) EXPECT_EQ(rank, 1);
  const uint64_t plan = std::get<v1::RankOrder>(z.lines.sent[0].second).plan().digest();
  for (const size_t i : {1, 2}) EXPECT_EQ(std::get<SlotOrder>(z.lines.sent[i].second).plan, plan);
}

TEST(RankSenders, ARankTellsItsPeerOfAFullSlotItselfAndRankZeroWhenThereIsTime) {
  RankZero z;
  z.Write(0, false), z.Write(1, true);
  for (const bool may_wait : {false, true}) {
    const SlotOrder& order = std::get<SlotOrder>(z.lines.sent.at(may_wait ? 2 : 1).second);
    EXPECT_TRUE(order.tell);
    EXPECT_EQ(order.may_wait, may_wait);
  }
}

TEST(RankSenders, WhetherARankHasToldItsPeerIsHeardOfIt) {
  RankZero z;
  for (const bool told : {false, true}) z.lines.say(1, SlotWorked{.peer = kOfRank1, .told = told});
  ASSERT_EQ(z.heard.size(), 2u);
  EXPECT_FALSE(std::get<prefill::Written>(z.heard[0]).told);
  EXPECT_TRUE(std::get<prefill::Written>(z.heard[1]).told);
}

/// A rank's part: its sender, and what it tells rank 0.
struct OtherRank {
  explicit OtherRank(RankZero& z)
      : sender(MakeRankSender({.config = config,
                               .rank = 0,
                               .pool = worker::PoolOf(z.h.memory()),
                               .side = z.side,
                               .model_digest = "m",
                               .incarnation = "p1",
                               .numerics_id = "n",
                               .clock = z.clock,
                               .thread = z.loop,
                               .tell = [this](const RankNews& news) { told.push_back(news); }})
                   .value()) {}
  static worker::WorkerConfig Config() {
    worker::WorkerConfig config;
    config.transport = "tcp", config.landing_slot_bytes = 64 << 10;
    return config;
  }
  const worker::WorkerConfig config = Config();
  const SlotWorked& Worked(size_t i) const { return std::get<SlotWorked>(told.at(i)); }
  const v1::RankNews::Flushed& Flushed(size_t i) const { return std::get<v1::RankNews>(told.at(i)).flushed(); }
  std::vector<RankNews> told;
  std::unique_ptr<worker::KvCarrier> sender;
};

TEST(RankSender, AFailedWriteIsToldAtOnceAndWhatDrainedWithTheEndOfItsFlush) {
  RankZero z;
  OtherRank rank(z);
  z.Write(0, /*may_wait=*/true);
  for (const auto& [number, order] : z.lines.sent) rank.sender->Handle(order);  // to a peer that is nobody
  ASSERT_EQ(rank.told.size(), 1u);
  EXPECT_FALSE(rank.Worked(0).status.ok());
  EXPECT_THAT(rank.Worked(0).status.ToString(), testing::Not(testing::HasSubstr("plan")));
  EXPECT_FALSE(rank.Worked(0).told);
  z.senders.Flush(kOfRank1, kRankLane);
  rank.sender->Handle(z.lines.sent.back().second);
  ASSERT_EQ(rank.told.size(), 3u);
  EXPECT_TRUE(rank.Flushed(1).drained());
  EXPECT_FALSE(rank.Flushed(2).drained());
}

TEST(RankNewsLine, WhatWaitsGoesFirstAndOnce) {
  std::vector<uint64_t> told;
  worker::RankNewsLine line([&](const RankNews& news) { told.push_back(std::get<v1::RankNews>(news).lost()); });
  v1::RankNews news;
  const auto number = [&news](uint64_t n) -> const v1::RankNews& { return news.set_lost(n), news; };
  line.Keep(number(1)), line.Keep(number(2));
  EXPECT_THAT(told, testing::IsEmpty());
  line.Tell(number(3)), line.Tell(number(4));
  EXPECT_THAT(told, testing::ElementsAre(1, 2, 3, 4));
}

TEST(RankSenders, ATickAsksEveryOtherRankForItsFigures) {
  RankZero z;
  z.senders.Tick();
  ASSERT_EQ(z.lines.sent.size(), 2u);
  EXPECT_EQ(z.lines.sent[0].first, 1);
  EXPECT_EQ(z.lines.sent[1].first, 2);
  for (const auto& [rank, order] : z.lines.sent) EXPECT_TRUE(std::get<v1::RankOrder>(order).tick());
  v1::RankNews news;
  news.mutable_figures()->set_bytes(99);
  z.lines.say(2, news);
  ASSERT_EQ(z.senders.figures().size(), 2u);
  EXPECT_EQ(z.senders.figures()[1].bytes, 99);
}

}  // namespace
}  // namespace baton::prefill_worker
