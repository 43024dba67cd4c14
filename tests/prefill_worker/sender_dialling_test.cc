// What is asked of a sender whose peer is still being dialled: the ways to it are tested first.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>

#include "prefill_worker/sender.h"
#include "sim/stepped_engine.h"
#include "tests/prefill_worker/far_end.h"
#include "tests/worker/hand_loop.h"
#include "tests/worker/one_rank.h"

namespace baton::prefill_worker {
namespace {

struct HeardWhileDialling final : SenderEvents {
  void OnPush(const prefill::Event& event) override {
    if (const auto* flushed = std::get_if<prefill::Flushed>(&event)) log += flushed->ok ? "Flushed " : "FlushFailed ";
    if (std::holds_alternative<prefill::PeerLost>(event)) log += "PeerLost ";
  }
  std::string log;
};

TEST(SenderThatDials, WhatIsSaidBeforeThePeerIsReachedIsSentOnceItIs) {
  engine::SteppedEngine h{engine::SteppedEngineOptions{}};
  SteadyClock clock;
  worker::HandLoop loop;
  HeardWhileDialling told;
  FarEnd far(loop, FarEnd::Answers::kWell);
  Sender sender({.host = "127.0.0.1", .kinds = {"tcp"}}, kFarSlotBytes, worker::PoolOf(h.memory()),
                LaneHello{.incarnation = "p1", .side = worker::SideOf(h.memory().layout())}, clock, loop, told);
  sender.Connect(kFar, LandingAddresses{ThisMachine(), {far.address()}}.Pack());
  for (const uint32_t lane : {0u, 1u}) sender.Send(kFar, OpenLane{{9, 1, lane}, 1});
  sender.Flush(kFar, kFarLane);
  EXPECT_EQ(told.log, "") << "nobody is reached yet";
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (far.lanes < 2 || told.log.empty()) {
    loop.Turn();
    ASSERT_LT(std::chrono::steady_clock::now(), end) << far.lanes << " messages came; told: " << told.log;
  }
  EXPECT_EQ(told.log, "Flushed ");
}

}  // namespace
}  // namespace baton::prefill_worker
