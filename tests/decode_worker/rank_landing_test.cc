// A rank's part of the landing: what it makes of rank 0's orders, and what it tells of them.
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "decode_worker/rank_landings.h"
#include "sim/stepped_engine.h"
#include "tests/worker/hand_loop.h"
#include "tests/worker/one_rank.h"

namespace baton::decode_worker {
namespace {

class RankLandingTest : public testing::Test {
 protected:
  static worker::WorkerConfig Config() {
    worker::WorkerConfig config;
    config.transport = "tcp", config.landing_slots = 4, config.landing_slot_bytes = 64 << 10;
    return config;
  }

  engine::SteppedEngine h_{engine::SteppedEngineOptions{}};
  SteadyClock clock_;
  worker::HandLoop loop_;
  const worker::WorkerConfig config_ = Config();
  std::vector<RankNews> told_;
  std::unique_ptr<worker::KvCarrier> landing_ =
      MakeRankLanding({.config = config_,
                       .rank = 1,
                       .pool = worker::PoolOf(h_.memory()),
                       .side = worker::SideOf(h_.memory().layout()),
                       .model_digest = "m",
                       .incarnation = "d1",
                       .numerics_id = "n",
                       .clock = clock_,
                       .thread = loop_,
                       .tell = [this](const RankNews& news) { told_.push_back(news); },
                       .takes_kv = true})
          .value();
};

TEST_F(RankLandingTest, ASlotThatCannotBePlacedIsToldAsNotVerified) {
  ASSERT_EQ(told_.size(), 1u) << "its address";
  const LaneKey lane{9, 1, 0};
  landing_->Handle(SlotOrder{.peer = 7, .lane = lane, .slot = {2, 5}, .plan = 99, .segments = {0}});  // of no plan
  ASSERT_EQ(told_.size(), 2u);
  const SlotWorked& worked = std::get<SlotWorked>(told_[1]);
  EXPECT_EQ(worked.lane, lane);
  EXPECT_EQ(worked.slot, (SlotTurn{2, 5}));
  EXPECT_FALSE(worked.status.ok());
}

}  // namespace
}  // namespace baton::decode_worker
