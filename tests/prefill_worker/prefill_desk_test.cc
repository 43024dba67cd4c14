#include "prefill_worker/prefill_desk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "desk_world.h"

namespace baton::prefill_worker {
namespace {

using ::testing::HasSubstr;

TEST(PrefillDesk, ALegIsAnsweredWithItsFirstTokensOnceTheLanesAreBound) {
  DeskWorld w;
  w.Begin(w.MakeOrder(4, /*n=*/3));
  while (w.Step()) continue;
  EXPECT_EQ(w.caller->log, "") << "decode has not bound its blocks: the router may have to go elsewhere";
  w.Bound();
  EXPECT_EQ(w.caller->log, "Answer(OK) ");
  ASSERT_EQ(w.caller->firsts.size(), 3u);
  for (const engine::SequenceOutput& first : w.caller->firsts) EXPECT_EQ(first.tokens.size(), 1u);
}

TEST(PrefillDesk, WhenOneChoiceFailsTheOthersAreNotHeldForEver) {
  for (const bool bound : {false, true}) {
    DeskWorld w;
    w.Begin(w.MakeOrder(4, /*n=*/3));
    w.Step();
    if (bound) w.Bound();
    engine::SequenceOutput failed;
    failed.key = engine::RequestKey{1} << 62, failed.sequence_index = 1;
    failed.finish = engine::FinishReason::kError, failed.error = absl::UnavailableError("preempted");
    w.desk.OnOutputs({failed});
    EXPECT_EQ(w.caller->log, "Answer(UNAVAILABLE) ");
    w.Flushed(), w.Hear(LaneClosedAck{w.lane}), w.desk.Tick();
    EXPECT_EQ(w.desk.jobs(), 0u);
    while (w.Step()) continue;
    EXPECT_EQ(w.h.scheduler().Load().held_requests, 0);
    EXPECT_EQ(w.used(), 0);
  }
}

TEST(PrefillDesk, PromptScoresComeBeforeTheAnswer) {
  DeskWorld w;
  JobOrder order = w.MakeOrder();
  order.request.sampling.prompt_logprobs = 1;
  w.Begin(std::move(order));
  w.Step(), w.Bound();
  while (w.Step()) continue;
  EXPECT_EQ(w.caller->log, "Scores32 Scores7 Answer(OK) ");
}

TEST(PrefillDesk, WhenTheFirstTokenEndsItNothingIsLeftToHandOver) {
  DeskWorld w;
  w.Begin(w.MakeOrder(/*max_tokens=*/1));
  w.Step(), w.Bound();
  w.sender.log.clear();
  while (w.Step()) continue;
  EXPECT_EQ(w.caller->log, "Answer(OK) ");
  EXPECT_THAT(w.sender.log, HasSubstr("Flush"));
  w.Flushed(), w.Hear(LaneClosedAck{w.lane}), w.desk.Tick();
  EXPECT_EQ(w.desk.jobs(), 0u);
  EXPECT_EQ(w.used(), 0);
}

TEST(PrefillDesk, BlocksThatAreBeingSentStayWhenTheirRequestEndsMeanwhile) {
  DeskWorld w;
  JobOrder order = w.MakeOrder();
  order.request.tokens = engine::RandomTokens(1, 120), order.request.prompt_len = 120;
  order.request.deadline = w.h.now + std::chrono::milliseconds(3);
  w.Begin(std::move(order));
  w.Step(), w.Bound(), w.Step();
  ASSERT_EQ(w.sender.writes.size(), 2u) << "gathered on another thread, later";
  const std::vector<int32_t> read = w.sender.writes[1].tables.at(0);
  w.h.now += std::chrono::milliseconds(5);
  w.Step();
  EXPECT_EQ(w.caller->log, "Answer(DEADLINE_EXCEEDED) ");
  for (int32_t block : read) EXPECT_GE(w.h.cache().pool(0).owners(block), 1) << block;
  w.CheckOwners();
  EXPECT_THAT(w.sender.log, HasSubstr("Flush"));
  w.desk.Handle(prefill::Drained{1, w.lane});
  EXPECT_EQ(w.used(), 0) << "nobody reads them any more, whatever decode says";
  w.desk.Tick();
  EXPECT_EQ(w.desk.jobs(), 0u);
  EXPECT_FALSE(w.desk.Idle()) << "the lane is still to be closed";
  w.Flushed(), w.Hear(LaneClosedAck{w.lane});
  EXPECT_TRUE(w.desk.Idle());
}

// A copy of a pinned block would be named before it was made, and its source given away before it was gathered.
TEST(PrefillDesk, ChunksGoOnInTheBlocksThatAreBeingSent) {
  engine::SteppedEngineOptions options = JobOptions();
  options.layout = engine::FakeLayout(64);
  options.scheduler.max_num_batched_tokens = 16;  // chunks begin inside a pinned block
  DeskWorld w(std::move(options));
  JobOrder order = w.MakeOrder();
  order.piece_tokens = 16;
  order.slot_bytes = 1 << 20;
  w.Begin(std::move(order));
  w.Step(), w.Bound(), w.Step();
  ASSERT_EQ(w.sender.writes.size(), 2u);
  const engine::StepPlan plan = w.h.scheduler().PlanStep(w.h.now);
  EXPECT_TRUE(plan.copies.empty());
  ASSERT_EQ(plan.sequences.size(), 1u);
  for (const WriteOrder& write : w.sender.writes)
    EXPECT_TRUE(std::ranges::equal(write.tables[0], plan.sequences[0].block_tables[0]));
  w.CheckOwners();
  const auto result = w.h.executor().Execute(plan);
  w.desk.Cancel(w.key);
  w.desk.OnOutputs(w.h.scheduler().Commit(plan, *result, w.h.now));
  w.desk.Handle(prefill::Drained{1, w.lane});
  EXPECT_EQ(w.used(), 0);
}

TEST(PrefillDesk, ALegThatIsOverIsNotBegunAgainAndAnsweredAlike) {
  DeskWorld w;
  w.Begin(w.MakeOrder(/*max_tokens=*/1));
  w.Step(), w.Bound(), w.Step();
  const int32_t first = w.caller->firsts.at(0).tokens.at(0).token;
  w.Flushed(), w.Hear(LaneClosedAck{w.lane}), w.desk.Tick();
  ASSERT_EQ(w.desk.jobs(), 0u);
  const auto again = std::make_shared<KeepingEvents>();
  w.desk.Begin(w.MakeOrder(1), again);
  EXPECT_EQ(again->log, "Answer(OK) ");
  EXPECT_EQ(again->firsts.at(0).tokens.at(0).token, first);
  EXPECT_EQ(w.desk.jobs(), 0u);
  w.h.now += std::chrono::seconds(61);
  w.desk.Tick();
  w.desk.Begin(w.MakeOrder(1), again);
  EXPECT_EQ(w.desk.jobs(), 1u) << "long after, it is a new one";
}

TEST(PrefillDesk, ALegThatFailedIsAnsweredAlikeWhenItIsAskedForAgain) {
  for (const bool no_room : {false, true}) {
    DeskWorld w;
    w.Begin();
    w.Step();
    if (no_room) {
      while (w.Step()) continue;
      w.Hear(LaneBusy{w.lane});
      w.Listen(std::chrono::milliseconds(300));
    } else {
      w.desk.Cancel(w.key), w.TakeOutputs();
    }
    w.Flushed(), w.Hear(LaneClosedAck{w.lane}), w.desk.Tick();
    ASSERT_EQ(w.desk.jobs(), 0u);
    const auto again = std::make_shared<KeepingEvents>();
    w.desk.Begin(w.MakeOrder(), again);
    EXPECT_EQ(again->log, no_room ? "NoRoom " : "Answer(CANCELLED) ");
    EXPECT_EQ(again->log, w.caller->log);
  }
}

// Whoever has a ticket may name it for two legs.
TEST(PrefillDesk, ALegThatIsRefusedForItsTicketTakesNothingFromTheLegThatHasIt) {
  DeskWorld w;
  w.Begin();
  w.Step(), w.Bound();
  JobOrder second = w.MakeOrder();
  second.key.request_id = "another";
  const auto other = std::make_shared<KeepingEvents>();
  w.desk.Begin(std::move(second), other);
  while (w.Step()) continue;
  EXPECT_EQ(other->log, "Answer(INVALID_ARGUMENT) ");
  w.desk.Tick();
  EXPECT_EQ(w.desk.jobs(), 1u);
  for (const uint32_t slot : {0u, 1u}) w.Written(slot);
  EXPECT_EQ(w.sender.writes.size(), 2u);
  w.Hear(SlotFree{w.lane, {0, 2}, false});
  EXPECT_EQ(w.sender.writes.size(), 3u) << "it is sent once more";
  EXPECT_EQ(w.caller->log, "Answer(OK) ");
}

TEST(PrefillDesk, ACallerThatAsksForARunningLegHearsAllOfIt) {
  DeskWorld w;
  JobOrder order = w.MakeOrder(1);
  order.request.sampling.prompt_logprobs = 0;
  w.Begin(order);
  w.Step(), w.Bound();
  const auto second = std::make_shared<KeepingEvents>();
  w.desk.Begin(order, second);
  EXPECT_EQ(w.desk.jobs(), 1u);
  EXPECT_EQ(second->log, "Scores32 ") << "what it has missed";
  w.desk.OnCallerGone(w.key);
  w.Step();
  EXPECT_EQ(second->log, "Scores32 Scores7 Answer(OK) ") << "one caller is left";
  EXPECT_EQ(second->firsts.size(), 1u);
}

TEST(PrefillDesk, TokensThatDecodeHasAreNotSentAndCachedOnesAreSentAtOnce) {
  DeskWorld w;
  ASSERT_TRUE(w.h.Add(engine::MakeRequest(77, engine::RandomTokens(DeskWorld::kPrompt, DeskWorld::kPrompt), 1)).ok());
  while (w.Step()) continue;
  JobOrder order = w.MakeOrder();
  order.cached_tokens = 16;
  w.Begin(std::move(order));
  w.Step(), w.Bound();
  ASSERT_GE(w.sender.writes.size(), 1u);
  EXPECT_EQ(w.sender.writes[0].plan->SegmentAt(w.sender.writes[0].plan->lanes()[0], 0).tokens, (IntRange{16, 32}));
}

TEST(PrefillDesk, TheNextLegDialsAgainAfterAPeerWasLost) {
  DeskWorld w;
  w.Begin(), w.Step();
  EXPECT_THAT(w.sender.log, HasSubstr("Dial"));
  w.desk.Handle(prefill::PeerLost{1}), w.TakeOutputs();
  w.sender.log.clear();
  JobOrder again = w.MakeOrder();
  again.key.epoch = 2;
  w.Begin(std::move(again)), w.Step();
  EXPECT_THAT(w.sender.log, HasSubstr("Dial"));
}

TEST(PrefillDesk, ADecodeWorkerThatWasMetIsNotDialledAgain) {
  DeskWorld w;
  w.desk.Meet(w.MakeOrder().landing_address);
  w.desk.Meet(w.MakeOrder().landing_address);
  EXPECT_EQ(w.sender.log, "Dial ");
  w.Begin(), w.Step();
  EXPECT_EQ(w.sender.log, "Dial Open! ");
}

TEST(PrefillDesk, ADrainingWorkerMeetsNobody) {
  DeskWorld w;
  w.desk.Drain();
  w.desk.Meet(w.MakeOrder().landing_address);
  EXPECT_EQ(w.sender.log, "");
}

}  // namespace
}  // namespace baton::prefill_worker
