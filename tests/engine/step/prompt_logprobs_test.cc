// Scores of the prompt (prompt_logprobs, echo): every prompt token but the first, once, in order, whatever the chunks.
#include <gtest/gtest.h>

#include "sim/stepped_engine.h"

namespace baton::engine {
namespace {

SteppedEngineOptions ScoredOptions(int32_t batched_tokens = 2048, int32_t blocks = 64) {
  SteppedEngineOptions o;
  o.num_blocks = {blocks};
  o.scheduler.max_model_len = 160;
  o.scheduler.max_num_batched_tokens = batched_tokens;
  o.scheduler.max_step_ms = 0;
  return o;
}

Request Scored(RequestKey key, int32_t prompt_len, int32_t k = 2, int32_t max_tokens = 5) {
  Request r = MakeRequest(key, RandomTokens(key, prompt_len), max_tokens);
  r.sampling.ignore_eos = true;
  r.sampling.prompt_logprobs = k;
  return r;
}

TEST(PromptLogprobs, EveryPromptTokenButTheFirstIsScoredWhateverTheChunks) {
  std::string expected;
  for (const int32_t chunk : {2048, 16, 17, 7, 64}) {
    for (const int32_t logit_rows : {128, 5}) {
      SteppedEngineOptions o = ScoredOptions(chunk);
      o.scheduler.max_logit_rows = logit_rows;
      SteppedEngine h(o);
      const Request r = Scored(1, 100);
      ASSERT_TRUE(h.Add(r).ok());
      h.RunAll();
      const Answer& a = h.answers[{1, 0}];  // the harness checks that they come in order and before the first token
      EXPECT_EQ(a.first_score, 1);
      ASSERT_EQ(a.prompt_logprobs.size(), 99u);
      for (size_t i = 0; i < 99; ++i) {
        EXPECT_EQ(a.prompt_logprobs[i].token, r.tokens[i + 1]) << i;
        EXPECT_EQ(a.prompt_logprobs[i].top.size(), 2u);
      }
      if (expected.empty()) expected = a.Text();
      EXPECT_EQ(a.Text(), expected) << "chunk " << chunk << ", " << logit_rows << " rows";
    }
  }
}

TEST(PromptLogprobs, APromptOfOneTokenHasNone) {
  SteppedEngine h(ScoredOptions());
  ASSERT_TRUE(h.Add(Scored(1, 1)).ok());
  h.RunAll();
  EXPECT_TRUE(h.answers[(AnswerKey{1, 0})].prompt_logprobs.empty());
  EXPECT_EQ((h.answers[{1, 0}].tokens.size()), 5u);
}

TEST(PromptLogprobs, SuchARequestFillsTheCacheButDoesNotReadIt) {
  SteppedEngine h(ScoredOptions());
  for (RequestKey key : {1, 2, 3}) {
    Request r = Scored(7, 100, key == 3 ? -1 : 0);
    r.key = key;
    ASSERT_TRUE(h.Add(r).ok());
    h.RunAll();
  }
  EXPECT_EQ((h.answers[{2, 0}].cached_tokens), 0);
  EXPECT_EQ((h.answers[{2, 0}].Text()), (h.answers[{1, 0}].Text()));
  EXPECT_EQ((h.answers[{3, 0}].cached_tokens), 96);
}

TEST(PromptLogprobs, APreemptedPromptScoresNothingTwice) {
  SteppedEngineOptions o = ScoredOptions(24, 12);
  o.prefix_caching = false;
  SteppedEngine h(o);
  ASSERT_TRUE(h.Add(Scored(1, 20, 2, 130)).ok());
  ASSERT_TRUE(h.Step());
  ASSERT_TRUE(h.Add(Scored(2, 100, 2, 40)).ok());
  h.RunAll();
  EXPECT_GT(h.scheduler().Load().preemptions, 0);
  for (RequestKey key : {1, 2}) {
    SteppedEngine alone(ScoredOptions());
    ASSERT_TRUE(alone.Add(key == 1 ? Scored(1, 20, 2, 130) : Scored(2, 100, 2, 40)).ok());
    alone.RunAll();
    EXPECT_EQ((h.answers[{key, 0}].Text()), (alone.answers[{key, 0}].Text())) << key;
  }
}

TEST(PromptLogprobs, OneChoiceOfNBringsThem) {
  SteppedEngine h(ScoredOptions(32));
  Request r = Scored(1, 60);
  r.sampling.n = 3;
  r.sampling.temperature = 1;
  ASSERT_TRUE(h.Add(r).ok());
  h.RunAll();
  EXPECT_EQ((h.answers[{1, 0}].prompt_logprobs.size()), 59u);
  EXPECT_TRUE(h.answers[(AnswerKey{1, 1})].prompt_logprobs.empty());
  EXPECT_TRUE(h.answers[(AnswerKey{1, 2})].prompt_logprobs.empty());
}

TEST(PromptLogprobs, TheRestGoesToTheFirstLivingChoice) {
  for (const bool while_it_runs : {false, true}) {
    SteppedEngine h(ScoredOptions(32));
    Request r = Scored(1, 60);
    r.sampling.n = 2;
    ASSERT_TRUE(h.Add(r).ok());
    ASSERT_TRUE(h.Step());
    EXPECT_EQ((h.answers[{1, 0}].prompt_logprobs.size()), 32u);
    if (while_it_runs) {
      ASSERT_TRUE(h.Begin());
    }
    EXPECT_TRUE(h.scheduler().CancelSequence(1, 0, h.now));
    h.Collect(h.scheduler().TakeOutputs());
    if (while_it_runs) h.Finish();
    h.RunAll();
    EXPECT_EQ((h.answers[{1, 1}].first_score), 33);
    EXPECT_EQ((h.answers[{1, 1}].prompt_logprobs.size()), 27u);
    EXPECT_EQ((h.answers[{1, 1}].tokens.size()), 5u);
  }
}

TEST(PromptLogprobs, NobodyWaitsForScoresWhenAllChoicesAreGone) {
  SteppedEngine h(ScoredOptions());
  Request r = Scored(1, 60);
  r.sampling.n = 2;
  ASSERT_TRUE(h.Add(r).ok());
  ASSERT_TRUE(h.Begin());
  EXPECT_TRUE(h.scheduler().CancelSequence(1, 0, h.now));
  EXPECT_FALSE(h.scheduler().RunningPlanAbandoned());
  EXPECT_TRUE(h.scheduler().CancelSequence(1, 1, h.now));
  EXPECT_TRUE(h.scheduler().RunningPlanAbandoned());
  EXPECT_FALSE(h.scheduler().Cancel(1, h.now));
  h.Finish();
  EXPECT_EQ(h.cache().pool(0).used_blocks(), 0);
}

TEST(PromptLogprobs, ManyScoredPromptsShareTheRowsOfAStep) {
  SteppedEngineOptions o = ScoredOptions();
  o.scheduler.max_logit_rows = 40;
  SteppedEngine h(o);
  for (RequestKey key = 1; key <= 3; ++key) ASSERT_TRUE(h.Add(Scored(key, 50)).ok());
  Request plain = Scored(4, 50, -1);
  ASSERT_TRUE(h.Add(plain).ok());
  while (h.Step()) {
    int32_t scored = 0;
    for (const SequenceStep& s : h.plan().sequences) scored += s.prompt_logprobs ? s.num_tokens : 0;
    EXPECT_LE(scored, 40);
  }
  for (RequestKey key = 1; key <= 3; ++key) EXPECT_EQ((h.answers[{key, 0}].prompt_logprobs.size()), 49u);
}

TEST(PromptLogprobs, WhoStandsStillForWantOfRowsKeepsItsPlace) {
  SteppedEngineOptions o = ScoredOptions();
  o.scheduler.max_logit_rows = 16;
  o.scheduler.max_num_seqs = 5;
  SteppedEngine h(o);
  for (RequestKey key : {1, 2}) ASSERT_TRUE(h.Add(Scored(key, 100)).ok());
  ASSERT_TRUE(h.Step());
  for (RequestKey key : {3, 4}) {
    Request two = Scored(key, 20, -1);
    two.sampling.n = 2;
    ASSERT_TRUE(h.Add(two).ok());
  }
  ASSERT_TRUE(h.Step());
  EXPECT_EQ(h.plan().sequences.size(), 3u) << "the first one and two choices: the second one has no rows";
  EXPECT_EQ(h.scheduler().Load().waiting_requests, 1) << "it and the first, and twice two choices, are six";
}

}  // namespace
}  // namespace baton::engine
