// What comes between steps: cancels and credit.
#include <gtest/gtest.h>

#include "tests/engine/step/requests.h"

namespace baton::engine {
namespace {

SteppedEngineOptions MessagesOptions() {
  SteppedEngineOptions o;
  o.scheduler.max_model_len = 300;
  o.scheduler.max_step_ms = 0;
  o.scheduler.max_undelivered_tokens = 6;
  return o;
}

TEST(SchedulerMessages, MoreLogprobsThanTheDeviceGivesAreRefusedWithBothNumbers) {
  SteppedEngineOptions o = MessagesOptions();
  o.scheduler.max_logprobs = 128;
  SteppedEngine h(o);
  Request most = Endless(1, 40, 2), more = Endless(2, 40, 2), of_prompt = Endless(3, 40, 2);
  most.sampling.logprobs = 128;
  more.sampling.logprobs = 129;
  of_prompt.sampling.prompt_logprobs = 200;
  EXPECT_TRUE(h.Add(most).ok());
  for (const auto& [request, number] : {std::pair{more, "129"}, std::pair{of_prompt, "200"}}) {
    const absl::Status refused = h.Add(request);
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(refused.message().find(number), std::string::npos) << refused;
    EXPECT_NE(refused.message().find("128"), std::string::npos) << refused;
  }
  h.RunAll();
}

TEST(SchedulerCancel, EndsTheRequestAtOnceButItsBlocksStayUntilTheStepIsDone) {
  SteppedEngine h(MessagesOptions());
  ASSERT_TRUE(h.Add(Endless(1, 40, 10)).ok());
  ASSERT_TRUE(h.Begin());
  EXPECT_FALSE(h.scheduler().RunningPlanAbandoned());
  EXPECT_TRUE(h.scheduler().Cancel(1, h.now));
  h.Collect(h.scheduler().TakeOutputs());
  EXPECT_EQ((h.answers[{1, 0}].finish), FinishReason::kAbort);
  EXPECT_TRUE(h.scheduler().RunningPlanAbandoned()) << "nobody is left in the step: the executor may stop";
  EXPECT_EQ(h.cache().pool(0).used_blocks(), 3) << "the executor still writes into them";
  EXPECT_FALSE(h.scheduler().Cancel(1, h.now)) << "ended already";
  h.Finish();
  EXPECT_EQ(h.cache().pool(0).used_blocks(), 0);
  EXPECT_TRUE(h.answers[(AnswerKey{1, 0})].tokens.empty());
  h.Step();
  EXPECT_EQ(h.executor().sequences(), 0u);
}

TEST(SchedulerLoad, ACanaryComputesLikeARequestAndCountsInNothing) {
  SteppedEngine h(MessagesOptions());
  Request canary = Endless(1, 5, 3);
  canary.canary = true;
  ASSERT_TRUE(h.Add(canary).ok());
  h.RunAll();
  EXPECT_EQ((h.answers[{1, 0}].tokens.size()), 3u);
  const SchedulerLoad after = h.scheduler().Load();
  EXPECT_GT(after.steps, 0) << "the signal that it gets on";
  EXPECT_EQ(after.prompt_tokens + after.cached_tokens + after.generated_tokens, 0);
  EXPECT_EQ(after.computed_tokens, 0) << "too few to tell a speed";
  EXPECT_EQ(after.steps_ended, 0);
  EXPECT_EQ(after.step_time + after.prefill_time, Duration::zero());
  ASSERT_TRUE(h.Add(Endless(2, 5, 3)).ok());
  h.RunAll();
  EXPECT_EQ(h.scheduler().Load().prompt_tokens, 5);
  EXPECT_EQ(h.scheduler().Load().generated_tokens, 3);
  EXPECT_GT(h.scheduler().Load().computed_tokens, 0);
}

// Routers give a step that may take long the time that it is predicted to take (--step-stall-factor).
TEST(SchedulerLoad, WhileAStepRunsItsPredictedTimeIsToldAndGrowsWithIt) {
  SteppedEngineOptions o = MessagesOptions();
  o.scheduler.prior_ms_per_token = 2;
  for (const int tokens : {10, 60}) {
    SteppedEngine h(o);
    EXPECT_EQ(h.scheduler().Load().predicted_step, Duration::zero());
    ASSERT_TRUE(h.Add(Endless(1, tokens, 2)).ok());
    ASSERT_TRUE(h.Begin());
    EXPECT_EQ(h.scheduler().Load().predicted_step, std::chrono::milliseconds(2 * tokens));
    h.Finish();
    EXPECT_EQ(h.scheduler().Load().predicted_step, Duration::zero());
  }
}

// What routers take a worker's speeds from.
TEST(SchedulerLoad, SpeedsAreThoseOfStepsThatRanToTheirEnd) {
  SteppedEngine h(MessagesOptions());
  ASSERT_TRUE(h.Add(Endless(1, 40, 5)).ok());
  ASSERT_TRUE(h.Step() && h.Step());
  ASSERT_TRUE(h.Add(Endless(2, 20, 5)).ok());
  h.RunAll();
  const SchedulerLoad load = h.scheduler().Load();
  EXPECT_EQ(load.computed_tokens, 40 + 20);
  EXPECT_EQ(load.steps_ended, 7) << "40, 1, 1 + 20, 1 + 1, 1 + 1, 1, 1";
  EXPECT_NEAR(Milliseconds(load.step_time), 7 * 0.5 + 0.1 * (60 + 4 + 4), 1e-6);
  EXPECT_NEAR(Milliseconds(load.prefill_time), 2 * 0.5 + 0.1 * (40 + 21), 1e-6);
}

// Each step has a sequence less than the one before it, whose time must not be taken for its own.
TEST(SchedulerLoad, AStepsTimeTeachesOfItsWorkAndNotOfThatWhichIsPlannedBehindIt) {
  SteppedEngineOptions o = MessagesOptions();
  o.ahead = true;
  SteppedEngine h(o);
  h.ms_per_row = 10;
  for (RequestKey key = 1; key <= 8; ++key) {
    const int32_t tokens = key == 8 ? 60 : 10 + static_cast<int32_t>(key);
    ASSERT_TRUE(h.Add(Endless(key, 2, tokens)).ok());
  }
  while (h.scheduler().Load().running_sequences != 1) ASSERT_TRUE(h.Step());
  EXPECT_GT(h.steps_ahead, 8);
  ASSERT_TRUE(h.Begin());
  EXPECT_NEAR(Milliseconds(h.scheduler().Load().predicted_step), 10.5, 2);
  h.Finish();
  h.RunAll();
}

// A step costs something by itself, so the queue takes longer where steps are small.
TEST(SchedulerLoad, TheWaitIsThatOfStepsAsLargeAsTheyMayBe) {
  SteppedEngineOptions o = MessagesOptions();
  o.scheduler.max_num_batched_tokens = 16;
  SteppedEngine h(o);
  const auto step = [&h] {
    if (!h.Begin()) return false;
    h.now += std::chrono::milliseconds(100);
    h.Finish();
    return true;
  };
  ASSERT_TRUE(h.Add(Endless(1, 64, 5)).ok());
  while (step()) {
  }
  ASSERT_TRUE(h.Add(Endless(2, 160, 2)).ok() && step() && h.Add(Endless(3, 64, 2)).ok());
  EXPECT_NEAR(Milliseconds(h.scheduler().Load().predicted_wait), (9 + 4) * 100, 250) << "of all before it";
  h.RunAll();
}

TEST(SchedulerCancel, AStepWithSomebodyLeftIsNotAbandoned) {
  SteppedEngine h(MessagesOptions());
  ASSERT_TRUE(h.Add(Endless(1, 40, 10)).ok());
  ASSERT_TRUE(h.Add(Endless(2, 40, 10)).ok());
  ASSERT_TRUE(h.Begin());
  h.scheduler().Cancel(1, h.now);
  EXPECT_FALSE(h.scheduler().RunningPlanAbandoned());
  h.Finish();
  h.RunAll();
  EXPECT_EQ((h.answers[{2, 0}].tokens.size()), 10u);
}

TEST(SchedulerCancel, AWaitingRequestLeavesTheQueue) {
  SteppedEngineOptions o = MessagesOptions();
  o.scheduler.max_num_seqs = 1;
  SteppedEngine h(o);
  ASSERT_TRUE(h.Add(Endless(1, 40, 10)).ok());
  ASSERT_TRUE(h.Add(Endless(2, 40, 10)).ok());
  ASSERT_TRUE(h.Step());
  EXPECT_EQ(h.scheduler().Load().waiting_tokens, 40);
  EXPECT_TRUE(h.scheduler().Cancel(2, h.now));
  EXPECT_EQ(h.scheduler().Load().waiting_tokens, 0);
  h.RunAll();
  EXPECT_EQ((h.answers[{2, 0}].finish), FinishReason::kAbort);
}

TEST(SchedulerCancel, WhoNeverHadATokenEndsBehindThePrompt) {
  SteppedEngine h(MessagesOptions());
  Request r = Endless(1, 40, 10);
  r.sampling.n = 2;
  ASSERT_TRUE(h.Add(r).ok());
  ASSERT_TRUE(h.scheduler().Cancel(1, h.now));
  const std::vector<SequenceOutput> outputs = h.scheduler().TakeOutputs();
  ASSERT_EQ(outputs.size(), 2u);
  for (const SequenceOutput& out : outputs) EXPECT_EQ(out.position, 40);
}

TEST(SchedulerCancel, TheKeyMayBeUsedAgainAtOnce) {
  SteppedEngine h(MessagesOptions());
  ASSERT_TRUE(h.Add(Endless(1, 40, 10)).ok());
  ASSERT_TRUE(h.Begin());
  h.scheduler().Cancel(1, h.now);
  h.scheduler().TakeOutputs();
  ASSERT_TRUE(h.Add(Endless(1, 40, 10)).ok());
  h.Finish();
  h.RunAll();
  EXPECT_EQ((h.answers[{1, 0}].tokens.size()), 10u) << "the new one's, none of the old one's";
}

TEST(SchedulerCancel, CancelAllLeavesNothing) {
  SteppedEngine h(MessagesOptions());
  for (RequestKey key = 1; key <= 5; ++key) ASSERT_TRUE(h.Add(Endless(key, 40, 10)).ok());
  ASSERT_TRUE(h.Begin());
  h.scheduler().CancelAll(h.now);
  h.Finish();
  EXPECT_TRUE(h.scheduler().Idle());
  EXPECT_EQ(h.cache().pool(0).used_blocks(), 0);
  for (RequestKey key = 1; key <= 5; ++key) EXPECT_EQ((h.answers[{key, 0}].finish), FinishReason::kAbort) << key;
}

// Digests of the units of a request that lives, keys and values.
std::vector<uint64_t> DigestsOf(SteppedEngine& h, RequestKey key) {
  std::vector<uint64_t> digests;
  const kernels::KvLayerView& layer = h.memory().groups()[0].layers[0];
  for (const BlockId block : h.scheduler().Kv(key)->tables[0].blocks()) {
    for (const kernels::KvPlaneView* plane : {&layer.k, &layer.v}) {
      digests.push_back(plane->digests[block * plane->digest_block_stride]);
    }
  }
  return digests;
}

// A window of 18 begins at the last position of a block: what a step that starts over reads must not be released.
void ExpectNoTraceOfACancelledStep(int32_t prompt_len) {
  std::vector<uint64_t> wanted;
  std::string answer, other;
  for (const bool cancelled : {false, true}) {
    SteppedEngineOptions options = MessagesOptions();
    options.layout = FakeLayout(16, 18);
    options.num_blocks = {64, 64};
    options.scheduler.max_undelivered_tokens = 100;
    SteppedEngine h(options);
    for (const RequestKey key : {1, 2}) ASSERT_TRUE(h.Add(Endless(key, prompt_len, 30)).ok());
    ASSERT_TRUE(h.Step());
    if (cancelled) {
      h.fake().before_forward = [&] {
        h.executor().Cancel();  // heard when the first sequence has written its row, in the middle of a unit
        return absl::OkStatus();
      };
      ASSERT_TRUE(h.Step());
      h.fake().before_forward = nullptr;
      EXPECT_EQ(h.scheduler().Load().cancelled_steps, 1);
      // What the first row that runs again sees: a model of several layers would make other keys without it.
      const int32_t first = std::max(0, prompt_len / kUnitTokens * kUnitTokens - 17) / 16;
      for (const RequestKey key : {1, 2}) {
        EXPECT_NE(h.scheduler().Kv(key)->tables[1].blocks()[static_cast<size_t>(first)], kNoBlock) << prompt_len;
      }
    }
    while (h.answers[(AnswerKey{1, 0})].tokens.size() < 8) ASSERT_TRUE(h.Step());
    if (!cancelled) wanted = DigestsOf(h, 1);
    EXPECT_EQ(DigestsOf(h, 1), wanted);
    h.RunAll();
    if (!cancelled) answer = h.answers[(AnswerKey{1, 0})].Text(), other = h.answers[(AnswerKey{2, 0})].Text();
    EXPECT_EQ((h.answers[(AnswerKey{1, 0})].Text()), answer) << "prompt of " << prompt_len;
    EXPECT_EQ((h.answers[(AnswerKey{2, 0})].Text()), other) << "prompt of " << prompt_len << ", whose row never ran";
  }
}

TEST(SchedulerCancel, AStepThatWasCancelledHalfWayLeavesNoTrace) {
  for (int32_t prompt_len = 20; prompt_len <= 50; ++prompt_len) ExpectNoTraceOfACancelledStep(prompt_len);
}

TEST(SchedulerCredit, TokensBeyondTheCreditWaitAndThenTheSequenceDoes) {
  SteppedEngine h(MessagesOptions());
  Request r = Endless(1, 20, 12);
  r.credit = 22;
  ASSERT_TRUE(h.Add(r).ok());
  const Answer& a = h.answers[{1, 0}];
  while (h.Step()) {
  }
  EXPECT_EQ(a.tokens.size(), 2u);
  EXPECT_FALSE(h.scheduler().Idle());
  EXPECT_EQ(h.scheduler().Load().generated_tokens, 8) << "two delivered, max_undelivered_tokens kept";
  h.scheduler().SetCredit(1, 0, 25, h.now);
  h.Collect(h.scheduler().TakeOutputs());
  EXPECT_EQ(a.tokens.size(), 5u) << "delivered by the message, without a step";
  h.scheduler().SetCredit(1, 0, 24, h.now);  // late and lower
  h.scheduler().SetCredit(1, 0, 25, h.now);  // again
  EXPECT_TRUE(h.scheduler().TakeOutputs().empty());
  h.scheduler().SetCredit(1, 0, kUnlimitedCredit, h.now);
  h.scheduler().SetCredit(1, 0, 25, h.now);  // late
  h.RunAll();
  SteppedEngine free(MessagesOptions());
  ASSERT_TRUE(free.Add(Endless(1, 20, 12)).ok());
  free.RunAll();
  EXPECT_EQ(a.Text(), (free.answers[{1, 0}].Text()));
}

TEST(SchedulerCredit, TheEndWaitsForItsCreditButTheBlocksDoNot) {
  SteppedEngine h(MessagesOptions());
  Request r = Endless(1, 20, 4);
  r.credit = 20;
  ASSERT_TRUE(h.Add(r).ok());
  while (h.Step()) {
  }
  const Answer& a = h.answers[{1, 0}];
  EXPECT_EQ(a.finish, FinishReason::kNone);
  EXPECT_EQ(h.cache().pool(0).used_blocks(), 0);
  h.scheduler().SetCredit(1, 0, 23, h.now);
  h.Collect(h.scheduler().TakeOutputs());
  EXPECT_EQ(a.tokens.size(), 3u);
  EXPECT_EQ(a.finish, FinishReason::kNone);
  h.scheduler().SetCredit(1, 0, 24, h.now);
  h.Collect(h.scheduler().TakeOutputs());
  EXPECT_EQ(a.tokens.size(), 4u);
  EXPECT_EQ(a.finish, FinishReason::kLength);
  EXPECT_TRUE(h.scheduler().Idle());
}

TEST(SchedulerCredit, CancelDropsWhatWasNotDelivered) {
  SteppedEngine h(MessagesOptions());
  Request r = Endless(1, 20, 12);
  r.credit = 21;
  ASSERT_TRUE(h.Add(r).ok());
  while (h.Step()) {
  }
  EXPECT_TRUE(h.scheduler().Cancel(1, h.now));
  const std::vector<SequenceOutput> outputs = h.scheduler().TakeOutputs();
  ASSERT_EQ(outputs.size(), 1u);
  EXPECT_TRUE(outputs[0].tokens.empty());
  EXPECT_EQ(outputs[0].position, 21) << "where the client stands";
  EXPECT_TRUE(h.scheduler().Idle());
}

TEST(SchedulerCredit, ASequenceWithoutCreditHoldsUpNoOther) {
  SteppedEngine h(MessagesOptions());
  Request stalled = Endless(1, 20, 100);
  stalled.credit = 20;
  ASSERT_TRUE(h.Add(stalled).ok());
  ASSERT_TRUE(h.Add(Endless(2, 20, 100)).ok());
  while (h.answers[{2, 0}].finish == FinishReason::kNone) ASSERT_TRUE(h.Step());
  EXPECT_EQ((h.answers[{2, 0}].tokens.size()), 100u);
  h.scheduler().Cancel(1, h.now);
  h.RunAll();
}

}  // namespace
}  // namespace baton::engine
