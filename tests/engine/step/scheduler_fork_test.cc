// n > 1: one prefill, first tokens from one row of logits, then sequences of their own on copy-on-write blocks.
#include <gtest/gtest.h>

#include "sim/stepped_engine.h"

namespace baton::engine {
namespace {

constexpr int32_t kTokens = 12;

SteppedEngineOptions ForkOptions(int32_t blocks = 64) {
  SteppedEngineOptions o;
  o.num_blocks = {blocks};
  o.prefix_caching = false;
  o.scheduler.max_model_len = 160;
  o.scheduler.max_step_ms = 0;
  return o;
}

Request Choices(int32_t n, int32_t prompt_len, uint32_t first = 0) {
  Request r = MakeRequest(1, RandomTokens(9, prompt_len), kTokens);
  r.sampling.ignore_eos = true;
  r.sampling.temperature = 1;
  r.sampling.seed = 77;
  r.sampling.logprobs = 1;
  r.sampling.n = n;
  r.sequence_index = first;
  return r;
}

// Choice `index`, asked for by itself.
std::string Alone(int32_t prompt_len, uint32_t index) {
  SteppedEngine h(ForkOptions());
  EXPECT_TRUE(h.Add(Choices(1, prompt_len, index)).ok());
  h.RunAll();
  return h.answers[{1, index}].Text();
}

void ExpectAsAlone(const SteppedEngine& h, int32_t prompt_len, std::vector<uint32_t> indices) {
  for (const uint32_t i : indices) {
    const auto it = h.answers.find({1, i});
    ASSERT_TRUE(it != h.answers.end()) << "choice " << i;
    EXPECT_EQ(it->second.Text(), Alone(prompt_len, i)) << "choice " << i;
  }
}

TEST(SchedulerFork, EachChoiceIsWhatARequestOfItsOwnAnswers) {
  SteppedEngine h(ForkOptions());
  ASSERT_TRUE(h.Add(Choices(4, 40)).ok());
  h.RunAll();
  ExpectAsAlone(h, 40, {0, 1, 2, 3});
  EXPECT_NE((h.answers[{1, 0}].Text()), (h.answers[{1, 1}].Text())) << "each choice draws its own tokens";
}

TEST(SchedulerFork, ChoicesMayStartAtAnyIndex) {
  SteppedEngine h(ForkOptions());
  ASSERT_TRUE(h.Add(Choices(2, 40, 5)).ok());
  h.RunAll();
  EXPECT_EQ(h.answers.size(), 2u);
  ExpectAsAlone(h, 40, {5, 6});
}

TEST(SchedulerFork, ThePromptIsComputedOnce) {
  SteppedEngine h(ForkOptions());
  ASSERT_TRUE(h.Add(Choices(4, 40)).ok());
  h.RunAll();
  EXPECT_EQ(h.fake().rows_run, 40 + 4 * (kTokens - 1));
}

TEST(SchedulerFork, ChoicesShareBlocksAndCopyTheOneTheyWriteInto) {
  SteppedEngine h(ForkOptions());
  ASSERT_TRUE(h.Add(Choices(3, 40)).ok());
  ASSERT_TRUE(h.Step());
  EXPECT_EQ(h.cache().pool(0).used_blocks(), 3) << "two whole blocks and a half one, for all three";
  ASSERT_TRUE(h.Begin());
  for (const BlockCopy& c : h.plan().copies) EXPECT_EQ(c.src, h.plan().copies[0].src) << "only the half one";
  EXPECT_GE(h.plan().copies.size(), 2u);
  EXPECT_LE(h.plan().copies.size(), 3u);
  h.Finish();
  EXPECT_EQ(h.cache().pool(0).used_blocks(), 2 + 3);
  while (h.Step()) EXPECT_TRUE(h.plan().copies.empty()) << "copied once";
}

TEST(SchedulerFork, APromptThatFillsItsBlocksCopiesNothing) {
  SteppedEngine h(ForkOptions());
  ASSERT_TRUE(h.Add(Choices(3, 48)).ok());
  while (h.Step()) EXPECT_TRUE(h.plan().copies.empty());
  ExpectAsAlone(h, 48, {0, 1, 2});
}

TEST(SchedulerFork, AChoiceCancelledDuringThePrefillIsMissedByNobody) {
  for (const uint32_t cancelled : {0u, 1u, 2u}) {
    SteppedEngineOptions o = ForkOptions();
    o.scheduler.max_num_batched_tokens = 16;
    SteppedEngine h(o);
    ASSERT_TRUE(h.Add(Choices(3, 40)).ok());
    ASSERT_TRUE(h.Step());
    EXPECT_TRUE(h.scheduler().CancelSequence(1, cancelled, h.now));
    EXPECT_FALSE(h.scheduler().CancelSequence(1, cancelled, h.now));
    h.RunAll();
    for (uint32_t i = 0; i < 3; ++i) {
      if (i != cancelled) ExpectAsAlone(h, 40, {i});
    }
    EXPECT_EQ((h.answers[{1, cancelled}].finish), FinishReason::kAbort);
  }
}

TEST(SchedulerFork, AChoiceCancelledWhileTheFirstTokensAreDrawnToo) {
  for (const uint32_t cancelled : {0u, 1u, 2u}) {
    SteppedEngine h(ForkOptions());
    ASSERT_TRUE(h.Add(Choices(3, 40)).ok());
    ASSERT_TRUE(h.Begin());
    EXPECT_TRUE(h.scheduler().CancelSequence(1, cancelled, h.now));
    h.Collect(h.scheduler().TakeOutputs());
    h.Finish();
    h.RunAll();
    for (uint32_t i = 0; i < 3; ++i) {
      if (i != cancelled) ExpectAsAlone(h, 40, {i});
    }
    EXPECT_TRUE(h.answers[(AnswerKey{1, cancelled})].tokens.empty());
    EXPECT_EQ(h.cache().pool(0).used_blocks(), 0);
  }
}

TEST(SchedulerFork, AFailedStepEndsEveryChoiceForkedOrNot) {
  for (const int32_t chunk : {16, 64}) {  // fails in the prefill, and in the step that forks
    SteppedEngineOptions o = ForkOptions();
    o.scheduler.max_num_batched_tokens = chunk;
    SteppedEngine h(o);
    ASSERT_TRUE(h.Add(Choices(3, 40)).ok());
    EXPECT_TRUE(h.scheduler().CancelSequence(1, 0, h.now)) << "the carrier's own choice is gone already";
    h.fake().before_forward = [] { return absl::InternalError("device lost"); };
    ASSERT_TRUE(h.Step());
    EXPECT_TRUE(h.scheduler().Idle());
    EXPECT_EQ((h.answers[{1, 0}].finish), FinishReason::kAbort);
    for (uint32_t i = 1; i < 3; ++i) {
      EXPECT_EQ((h.answers[{1, i}].finish), FinishReason::kError) << i;
      EXPECT_EQ((h.answers[{1, i}].error.message()), "device lost") << i;
    }
    EXPECT_EQ(h.cache().pool(0).used_blocks(), 0);
  }
}

TEST(SchedulerFork, ACancelledStepThatWasToForkIsRunAgain) {
  SteppedEngine h(ForkOptions());
  ASSERT_TRUE(h.Add(Choices(3, 40)).ok());
  h.fake().before_forward = [] { return absl::CancelledError("stopped"); };
  ASSERT_TRUE(h.Step());
  h.fake().before_forward = nullptr;
  h.RunAll();
  EXPECT_EQ(h.scheduler().Load().cancelled_steps, 1);
  ExpectAsAlone(h, 40, {0, 1, 2});
}

TEST(SchedulerFork, ChoicesTakeTheirPlacesFromTheStart) {
  SteppedEngineOptions o = ForkOptions();
  o.scheduler.max_num_seqs = 4;
  SteppedEngine h(o);
  Request single = Choices(1, 20);
  single.key = 2;
  ASSERT_TRUE(h.Add(single).ok());
  ASSERT_TRUE(h.Add(Choices(4, 20)).ok());
  ASSERT_TRUE(h.Step());
  ASSERT_TRUE(h.Step());
  EXPECT_EQ(h.scheduler().Load().waiting_requests, 1) << "four choices beside one sequence are five";
  h.RunAll();
  ExpectAsAlone(h, 20, {0, 1, 2, 3});
}

TEST(SchedulerFork, ChoicesOfOneRequestPreemptEachOtherHarmlessly) {
  SteppedEngine h(ForkOptions(11));
  Request r = Choices(4, 70);
  ASSERT_TRUE(h.Add(r).ok());
  h.RunAll();
  ExpectAsAlone(h, 70, {0, 1, 2, 3});
  SteppedEngineOptions tight = ForkOptions(11);
  tight.scheduler.max_model_len = 160;
  SteppedEngine longer(tight);
  r.sampling.max_tokens = 80;
  ASSERT_TRUE(longer.Add(r).ok());
  longer.RunAll();
  EXPECT_GT(longer.scheduler().Load().preemptions, 0);
  SteppedEngine roomy(ForkOptions());
  ASSERT_TRUE(roomy.Add(r).ok());
  roomy.RunAll();
  for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ((longer.answers[{1, i}].Text()), (roomy.answers[{1, i}].Text())) << i;
}

}  // namespace
}  // namespace baton::engine
