// What rank 0 says to its other ranks, and keeps of what they say.
#include "prefill_worker/rank_senders.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "kvtransfer/rank_numbers.h"
#include "proto/ranks.pb.h"
#include "sim/stepped_engine.h"
#include "tests/worker/hand_loop.h"
#include "tests/worker/one_rank.h"

namespace baton::prefill_worker {
namespace {

constexpr prefill::PeerId kOfRank1 = InRank(1, 7);
const LaneKey kRankLane{9, 1, 0};

/// Keeps what the ranks are sent.
class KeptLines final : public worker::RankLines {
 public:
  int ranks() const override { return 3; }
  void Listen(OnNews on_news) override { say = std::move(on_news); }
  void Send(int rank, const v1::RankOrder& order) override { sent.emplace_back(rank, order); }

  OnNews say;
  std::vector<std::pair<int, v1::RankOrder>> sent;
};

struct RankZero final : SenderEvents {
  RankZero()
      : side(worker::SideOf(h.memory().layout())),
        own({.host = "127.0.0.1", .kinds = {"tcp"}, .self_test = false}, 4096, worker::PoolOf(h.memory()),
            LaneHello{.incarnation = "p1", .model_digest = "m", .numerics_id = "n", .side = side}, clock, loop, *this),
        senders(own, lines, *this) {}
  void OnPush(const prefill::Event& event) override { heard.push_back(event); }
  void Write(uint32_t slot) {
    const auto plan = std::make_shared<const TransferPlan>(TransferPlan::Make(side, side, {0, 64}, 32).value());
    senders.Write({kOfRank1, kRankLane, {slot, 1}, {0}, plan, KvBlockTables(side.layout.groups.size())});
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

TEST(RankSenders, APlanIsToldWithTheFirstSlotAndNamedWithTheNext) {
  RankZero z;
  z.Write(0), z.Write(1);
  ASSERT_EQ(z.lines.sent.size(), 2u);
  for (const auto& [rank, order] : z.lines.sent) EXPECT_EQ(rank, 1);
  EXPECT_TRUE(z.lines.sent[0].second.work().terms().has_source());
  EXPECT_FALSE(z.lines.sent[1].second.work().terms().has_source());
}

TEST(RankSenders, ATickAsksEveryOtherRankForItsFigures) {
  RankZero z;
  z.senders.Tick();
  ASSERT_EQ(z.lines.sent.size(), 2u);
  EXPECT_EQ(z.lines.sent[0].first, 1);
  EXPECT_EQ(z.lines.sent[1].first, 2);
  for (const auto& [rank, order] : z.lines.sent) EXPECT_TRUE(order.tick());
  v1::RankNews news;
  news.mutable_figures()->set_bytes(99);
  z.lines.say(2, news);
  ASSERT_EQ(z.senders.figures().size(), 2u);
  EXPECT_EQ(z.senders.figures()[1].bytes, 99);
}

}  // namespace
}  // namespace baton::prefill_worker
