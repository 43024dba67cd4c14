// What a step holds: decodes first, then chunks, inside the limits on rows, sequences and time.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "tests/engine/step/requests.h"

namespace baton::engine {
namespace {

SteppedEngineOptions StepsOptions(int32_t batched_tokens) {
  SteppedEngineOptions o;
  o.scheduler.max_model_len = 300;
  o.scheduler.max_num_batched_tokens = batched_tokens;
  o.scheduler.max_step_ms = 0;
  return o;
}

Request Long(RequestKey key, int32_t prompt_len, int32_t max_tokens = 50) {
  Request r = MakeRequest(key, RandomTokens(key, prompt_len), max_tokens);
  r.sampling.ignore_eos = true;
  return r;
}

std::vector<int32_t> RowsOf(const StepPlan& plan) {
  std::vector<int32_t> rows;
  for (const SequenceStep& s : plan.sequences) rows.push_back(s.num_tokens);
  return rows;
}

TEST(SchedulerSteps, DecodesComeFirstThenChunksUpToTheTokenBudget) {
  SteppedEngine h(StepsOptions(64));
  ASSERT_TRUE(h.Add(Long(1, 20)).ok());
  ASSERT_TRUE(h.Step());
  ASSERT_TRUE(h.Add(Long(2, 200)).ok());
  ASSERT_TRUE(h.Add(Long(3, 40)).ok());
  ASSERT_TRUE(h.Step());
  // One decode, then whole units of the second, and what is left for the third.
  EXPECT_EQ(RowsOf(h.plan()), (std::vector<int32_t>{1, 48, 15}));
  EXPECT_EQ(h.plan().sequences[0].context, 20);
  EXPECT_TRUE(h.plan().sequences[0].sample);
  EXPECT_FALSE(h.plan().sequences[1].sample);
  ASSERT_TRUE(h.Step());
  EXPECT_EQ(h.plan().sequences[1].context, 48);
  EXPECT_EQ(h.plan().total_tokens, 64);
}

TEST(SchedulerSteps, TheLoadCountsWhatIsLeftOfPrefillsAndNoDecodes) {
  SteppedEngine h(StepsOptions(64));
  ASSERT_TRUE(h.Add(Long(1, 20)).ok());
  ASSERT_TRUE(h.Step());
  EXPECT_EQ(h.scheduler().Load().prefill_tokens_left, 0) << "the first one decodes";
  ASSERT_TRUE(h.Add(Long(2, 200)).ok());
  ASSERT_TRUE(h.Step());
  EXPECT_EQ(h.plan().total_tokens, 49) << "a decode and three units of the prompt";
  EXPECT_EQ(h.scheduler().Load().prefill_tokens_left, 152);
  EXPECT_EQ(h.scheduler().Load().waiting_tokens, 0);
}

TEST(SchedulerSteps, TheLoadCountsStepsBySizeAndTheRoomLeftInBlocks) {
  SteppedEngine h(StepsOptions(64));
  EXPECT_EQ(h.scheduler().Load().empty_tokens, 0);
  ASSERT_TRUE(h.Add(Long(1, 20)).ok());
  ASSERT_TRUE(h.Step());
  const SchedulerLoad first = h.scheduler().Load();
  EXPECT_EQ(first.step_sizes.tokens, 20);
  EXPECT_EQ(first.step_sizes.steps[3], 1) << "17 to 32 tokens";
  const int64_t room = first.empty_tokens + 20;
  EXPECT_EQ(room % first.used_blocks[0], 0);
  EXPECT_LT(first.empty_tokens, room / first.used_blocks[0]) << "less than a block";
  ASSERT_TRUE(h.Step());
  const SchedulerLoad second = h.scheduler().Load();
  EXPECT_EQ(second.step_sizes.tokens, 21);
  EXPECT_EQ(second.step_sizes.steps[0], 1) << "a decode";
  EXPECT_EQ(second.empty_tokens, int64_t{second.used_blocks[0]} * room / first.used_blocks[0] - 21);
  h.scheduler().Cancel(1, h.now);
  h.Step();
  EXPECT_EQ(h.scheduler().Load().empty_tokens, 0);
}

TEST(SchedulerSteps, OfAWindowNoMoreBlocksAreKeptThanItSees) {
  SteppedEngineOptions o;
  o.layout = FakeLayout(16, 32);
  o.num_blocks = {64, 64};
  o.scheduler.max_model_len = 400;
  SteppedEngine h(o);
  ASSERT_TRUE(h.Add(Endless(1, 60, 200)).ok());
  for (int step = 0; step < 150; ++step) ASSERT_TRUE(h.Step());
  EXPECT_GE(h.cache().pool(0).used_blocks(), 13);
  EXPECT_LE(h.cache().pool(1).used_blocks(), 4);
  h.RunAll();
}

TEST(SchedulerSteps, MaxPrefillChunkLimitsASequenceNotTheStep) {
  SteppedEngineOptions o = StepsOptions(128);
  o.scheduler.max_prefill_chunk = 32;
  SteppedEngine h(o);
  ASSERT_TRUE(h.Add(Long(1, 100)).ok());
  ASSERT_TRUE(h.Add(Long(2, 100)).ok());
  ASSERT_TRUE(h.Step());
  EXPECT_EQ(RowsOf(h.plan()), (std::vector<int32_t>{32, 32}));
}

SteppedEngineOptions InParts(int32_t partial, int32_t longer) {
  SteppedEngineOptions o = StepsOptions(128);
  o.scheduler.max_prefill_chunk = 32;
  o.scheduler.max_partial_prefills = partial;
  o.scheduler.max_long_partial_prefills = longer;
  return o;
}

// Keys of the requests with rows in the plan.
std::vector<RequestKey> KeysOf(const StepPlan& plan) {
  std::vector<RequestKey> keys;
  for (const SequenceStep& s : plan.sequences) keys.push_back(s.request_key);
  return keys;
}

TEST(SchedulerSteps, AChunkEndsAtAUnitUnlessThatLeavesMoreThanHalfOfItUnused) {
  SteppedEngineOptions o = StepsOptions(2048);
  o.scheduler.max_prefill_chunk = 11;
  SteppedEngine h(o);
  ASSERT_TRUE(h.Add(Long(1, 100)).ok());
  std::vector<int32_t> chunks;
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(h.Step());
    chunks.push_back(h.plan().total_tokens);
  }
  EXPECT_EQ(chunks, (std::vector<int32_t>{11, 11, 10, 11})) << "up to 16 it would have been 5, up to 32 it is 10";
}

TEST(SchedulerSteps, NoMorePromptsAreComputedInPartsAtOnceThanMay) {
  SteppedEngine h(InParts(2, 0));
  for (RequestKey key = 1; key <= 3; ++key) ASSERT_TRUE(h.Add(Long(key, 96, 1)).ok());
  ASSERT_TRUE(h.Step());
  EXPECT_EQ(KeysOf(h.plan()), (std::vector<RequestKey>{1, 2}));
  ASSERT_TRUE(h.Step());
  EXPECT_EQ(KeysOf(h.plan()), (std::vector<RequestKey>{1, 2}));
  ASSERT_TRUE(h.Step());  // their last parts: what comes behind them is free
  EXPECT_EQ(KeysOf(h.plan()), (std::vector<RequestKey>{1, 2, 3}));
}

TEST(SchedulerSteps, APromptThatFitsWholeIsNoPart) {
  SteppedEngine h(InParts(1, 0));
  ASSERT_TRUE(h.Add(Long(1, 96)).ok());
  ASSERT_TRUE(h.Add(Long(2, 96)).ok());
  ASSERT_TRUE(h.Add(Long(3, 30)).ok());
  ASSERT_TRUE(h.Step());
  EXPECT_EQ(KeysOf(h.plan()), (std::vector<RequestKey>{1, 3}));
}

TEST(SchedulerSteps, OneTokenThatIsLeftIsNoPart) {
  SteppedEngine h(InParts(1, 0));
  ASSERT_TRUE(h.Add(Long(1, 33)).ok());
  ASSERT_TRUE(h.Add(Long(2, 96)).ok());
  ASSERT_TRUE(h.Step());
  EXPECT_EQ(KeysOf(h.plan()), (std::vector<RequestKey>{1, 2}));
}

TEST(SchedulerSteps, ShorterPromptsPassLongOnesThatWaitForALongOne) {
  SteppedEngineOptions o = InParts(3, 1);
  o.scheduler.max_num_batched_tokens = 64;
  SteppedEngine h(o);
  ASSERT_TRUE(h.Add(Long(1, 64, 1)).ok());
  ASSERT_TRUE(h.Add(Long(2, 64, 1)).ok());
  ASSERT_TRUE(h.Add(Long(3, 20, 1)).ok());
  ASSERT_TRUE(h.Step());
  EXPECT_EQ(KeysOf(h.plan()), (std::vector<RequestKey>{1, 3}));
  ASSERT_TRUE(h.Step());
  EXPECT_EQ(KeysOf(h.plan()), (std::vector<RequestKey>{1, 2}));
}

TEST(SchedulerSteps, AShortPromptInPartsKeepsNoLongOneBack) {
  SteppedEngineOptions o = InParts(3, 1);
  o.scheduler.max_num_batched_tokens = 40;
  SteppedEngine h(o);
  ASSERT_TRUE(h.Add(Long(1, 20, 1)).ok());
  ASSERT_TRUE(h.Add(Long(2, 30, 1)).ok());
  ASSERT_TRUE(h.Add(Long(3, 64, 1)).ok());
  ASSERT_TRUE(h.Step());
  EXPECT_EQ(RowsOf(h.plan()), (std::vector<int32_t>{20, 16, 4})) << "the second one is a part, and not long";
}

TEST(SchedulerSteps, NoStepBreaksALimit) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    std::mt19937_64 rng(seed);
    SteppedEngineOptions o = StepsOptions(16 + static_cast<int32_t>(rng() % 100));
    o.num_blocks = {40};
    o.scheduler.max_num_seqs = 4 + static_cast<int32_t>(rng() % 6);
    o.scheduler.max_logit_rows = 20;
    if (seed % 2 == 0) {
      o.scheduler.max_prefill_chunk = 16 * static_cast<int32_t>(1 + rng() % 3);
      o.scheduler.max_partial_prefills = 1 + static_cast<int32_t>(rng() % 3);
      o.scheduler.max_long_partial_prefills = static_cast<int32_t>(rng() % 2);
    }
    SteppedEngine h(o);
    for (RequestKey key = 1; key <= 30; ++key) {
      ASSERT_TRUE(h.Add(MixedRequest(key, rng(), 1 + static_cast<int32_t>(rng() % 150))).ok());
    }
    while (h.Step()) {
      const StepPlan& plan = h.plan();
      std::set<SequenceId> seen;
      int32_t rows = 0, scored = 0;
      bool chunks_began = false;
      for (const SequenceStep& s : plan.sequences) {
        EXPECT_TRUE(seen.insert(s.id).second) << "sequence " << s.id << " twice in step " << plan.step;
        EXPECT_EQ(s.num_tokens == 0, s.logits_from != 0);
        EXPECT_FALSE(chunks_began && s.num_tokens == 1 && s.sample && s.context + 1 > 150) << "a decode behind a chunk";
        chunks_began |= s.num_tokens > 1;
        rows += s.num_tokens;
        scored += s.prompt_logprobs ? s.num_tokens : 0;
        if (s.num_tokens > 0) {
          EXPECT_GE(static_cast<int32_t>(s.block_tables[0].size()) * 16, s.context + s.num_tokens);
        }
      }
      EXPECT_EQ(rows, plan.total_tokens);
      EXPECT_LE(rows, o.scheduler.max_num_batched_tokens);
      EXPECT_LE(scored, o.scheduler.max_logit_rows);
      EXPECT_LE(static_cast<int32_t>(plan.sequences.size()), o.scheduler.max_num_seqs);
    }
    EXPECT_TRUE(h.scheduler().Idle());
  }
}

TEST(SchedulerSteps, AStepIsPlannedToEndWithinMaxStepMs) {
  SteppedEngineOptions o = StepsOptions(2048);
  o.num_blocks = {400};
  o.scheduler.max_model_len = 4000;
  o.scheduler.max_step_ms = 50;
  o.scheduler.prior_ms_per_token = 1.0;
  SteppedEngine h(o);  // a step takes 0.5 ms and 0.1 ms per row
  ASSERT_TRUE(h.Add(Long(1, 3000, 1)).ok());
  std::vector<int32_t> rows;
  while (h.Step() && !h.plan().sequences.empty()) rows.push_back(h.plan().total_tokens);
  ASSERT_GE(rows.size(), 4u);
  EXPECT_EQ(rows[0], 48) << "nothing was seen yet: the prior of 1 ms per token counts";
  for (size_t i = 3; i + 1 < rows.size(); ++i) {
    const double ms = 0.5 + 0.1 * rows[i];
    EXPECT_LE(ms, 55) << "step " << i;
    EXPECT_GE(ms, 40) << "step " << i << " leaves time unused";
  }
}

// The first prefill of a step gets on in any case: those behind it only where there is time.
TEST(SchedulerSteps, WhereTheTimeIsUsedUpNoOtherPrefillBegins) {
  SteppedEngineOptions o = StepsOptions(2048);
  o.scheduler.max_step_ms = 20;
  o.scheduler.prior_ms_per_token = 1.0;
  SteppedEngine h(o);
  for (RequestKey key = 1; key <= 3; ++key) ASSERT_TRUE(h.Add(Long(key, 100)).ok());
  ASSERT_TRUE(h.Step());
  EXPECT_EQ(RowsOf(h.plan()), (std::vector<int32_t>{16, 4}));
}

// A step takes 0.5 ms and 0.1 ms per row; the options are the defaults but for the model's length.
TEST(SchedulerSteps, AStreamWaitsALittleForAPrefillByDefault) {
  SteppedEngineOptions o;
  o.num_blocks = {800};
  o.scheduler.max_model_len = 8000;
  SteppedEngine h(o);
  ASSERT_TRUE(h.Add(Long(1, 8, 200)).ok());
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(h.Step());
  ASSERT_TRUE(h.Add(Long(2, 6000, 1)).ok());
  std::vector<double> gaps_ms;
  while (h.Step() && h.plan().sequences.size() == 2) gaps_ms.push_back(0.5 + 0.1 * h.plan().total_tokens);
  ASSERT_GE(gaps_ms.size(), 5u);
  EXPECT_LE(gaps_ms.size(), 20u) << "chunks are as long as the time allows";
  for (double ms : gaps_ms) EXPECT_LE(ms, 90) << "of the 100 ms that a stream may stall";
}

TEST(SchedulerSteps, APrefillAloneTakesTheWholeStep) {
  SteppedEngineOptions o;
  o.num_blocks = {800};
  o.scheduler.max_model_len = 8000;
  o.scheduler.prior_ms_per_token = 0.1;
  SteppedEngine h(o);
  ASSERT_TRUE(h.Add(Long(1, 6000, 1)).ok());
  ASSERT_TRUE(h.Step());
  EXPECT_GE(h.plan().total_tokens, 1900) << "of 2,048 and 200 ms";
}

// Where decodes alone take longer than the gap allows, the gap is what they take: a prefill may double it.
TEST(SchedulerSteps, SlowDecodesShareTheirStepWithAPrefill) {
  SteppedEngineOptions o;
  o.num_blocks = {800};
  o.scheduler.max_model_len = 8000;
  o.scheduler.max_step_ms = 200;
  o.scheduler.max_stall_ms = 2;  // forty decodes: 4.5 ms
  SteppedEngine h(o);
  for (RequestKey key = 1; key <= 40; ++key) ASSERT_TRUE(h.Add(Long(key, 8, 100)).ok());
  for (int i = 0; i < 30; ++i) ASSERT_TRUE(h.Step());
  ASSERT_TRUE(h.Add(Long(50, 2000, 1)).ok());
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(h.Step());
    ASSERT_EQ(h.plan().sequences.size(), 41u);
    EXPECT_GE(h.plan().sequences.back().num_tokens, 32);
    EXPECT_LE(h.plan().sequences.back().num_tokens, 48);
  }
}

TEST(SchedulerSteps, DecodesThatFillTheStepTimeDoNotStarveAPrefill) {
  SteppedEngineOptions o = StepsOptions(2048);
  o.scheduler.max_step_ms = 0.001;  // even one decode takes longer
  SteppedEngine h(o);
  for (RequestKey key = 1; key <= 4; ++key) ASSERT_TRUE(h.Add(Long(key, 10, 200)).ok());
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(h.Step());
  ASSERT_TRUE(h.Add(Long(5, 160)).ok());
  for (int32_t i = 0; i < 10; ++i) {
    ASSERT_TRUE(h.Step());
    ASSERT_EQ(h.plan().sequences.size(), 5u);
    EXPECT_EQ(h.plan().sequences.back().num_tokens, 16);
    EXPECT_EQ(h.plan().sequences.back().context, 16 * i);
  }
}

// Handoffs bring more sequences than a step has rows.
TEST(SchedulerSteps, AStopTokenIsNamedAndAnEosIsNot) {
  SteppedEngine all(StepsOptions(64));
  ASSERT_TRUE(all.Add(Endless(1, 20, 8)).ok());
  all.RunAll();
  const int32_t last = all.answers[{1, 0}].tokens.back().token;
  SteppedEngine h(StepsOptions(64));
  Request stops = Endless(1, 20, 50), ends = Endless(1, 20, 50);
  stops.sampling.stop_token_ids = {last};
  ends.key = 2;
  ends.sampling.eos_token_ids = {last};
  ends.sampling.ignore_eos = false;
  ASSERT_TRUE(h.Add(stops).ok() && h.Add(ends).ok());
  h.RunAll();
  for (const RequestKey key : {1, 2}) {
    const Answer& answer = h.answers[{key, 0}];
    EXPECT_EQ(answer.finish, FinishReason::kStop);
    EXPECT_EQ(answer.tokens.back().token, last);
    EXPECT_EQ(answer.stop_token, key == 1 ? std::optional(last) : std::nullopt);
  }
}

TEST(SchedulerSteps, WhereNoTokenMayBeDrawnTheAnswerEnds) {
  for (const bool later : {false, true}) {
    SteppedEngineOptions o = StepsOptions(2048);
    o.later = later;
    SteppedEngine h(o);
    Request none = Long(1, 20);
    none.sampling.allowed_token_ids = {7};
    none.sampling.bad_words = {7, -1};
    ASSERT_TRUE(h.Add(none).ok());
    ASSERT_TRUE(h.Add(Long(2, 20, 4)).ok());
    h.RunAll();
    const Answer& a = h.answers[{1, 0}];
    EXPECT_TRUE(a.tokens.empty() && a.nothing_allowed && a.finish == FinishReason::kStop) << "later: " << later;
    EXPECT_EQ((h.answers[{2, 0}].tokens.size()), 4u);
  }
}

TEST(SchedulerSteps, WhenNotAllDecodesFitEverySequenceGetsItsTurn) {
  SteppedEngine h(StepsOptions(4));
  for (RequestKey key = 1; key <= 10; ++key) {
    ASSERT_TRUE(AttachComputed(h, Long(key, 20, 100), {{0, 1}}).ok());
  }
  for (int i = 0; i < 25; ++i) {  // 100 rows for 10 sequences
    ASSERT_TRUE(h.Step());
    EXPECT_EQ(h.plan().total_tokens, 4);
    EXPECT_TRUE(std::ranges::is_sorted(KeysOf(h.plan()))) << "the senior ones come first, whoever waited longest";
  }
  for (RequestKey key = 1; key <= 10; ++key) EXPECT_EQ((h.answers[{key, 0}].tokens.size()), 10u) << key;
  h.RunAll();
}

TEST(SchedulerSteps, APromptThatBeginsAsAnotherDidReadsTheCache) {
  SteppedEngine h(StepsOptions(2048));
  Request first = Long(1, 100, 4);
  ASSERT_TRUE(h.Add(first).ok());
  h.RunAll();
  Request longer = Long(2, 130, 4);
  std::copy(first.tokens.begin(), first.tokens.end(), longer.tokens.begin());
  ASSERT_TRUE(h.Add(longer).ok());
  ASSERT_TRUE(h.Step());
  EXPECT_EQ(h.plan().sequences[0].context, 96);
  EXPECT_EQ(h.plan().sequences[0].num_tokens, 34);
  h.RunAll();
  EXPECT_EQ((h.answers[{2, 0}].cached_tokens), 96);
  EXPECT_EQ(h.scheduler().Load().cached_tokens, 96);
}

TEST(SchedulerSteps, AWhollyCachedPromptStillComputesItsLastUnit) {
  SteppedEngine h(StepsOptions(2048));
  for (RequestKey key = 1; key <= 2; ++key) {
    Request r = Long(1, 64, 8);
    r.key = key;
    ASSERT_TRUE(h.Add(r).ok());
    h.RunAll();
  }
  EXPECT_EQ((h.answers[{2, 0}].cached_tokens), 48);
  EXPECT_EQ((h.answers[{1, 0}].Text()), (h.answers[{2, 0}].Text()));
}

TEST(SchedulerSteps, AResumedRequestReadsWhatItGeneratedBefore) {
  SteppedEngine h(StepsOptions(2048));
  Request whole = Long(1, 40, 30);
  ASSERT_TRUE(h.Add(whole).ok());
  h.RunAll();
  const std::vector<kernels::SampleResult> drawn = h.answers[{1, 0}].tokens;
  Request rest = whole;
  rest.key = 2;
  for (size_t i = 0; i < 12; ++i) rest.tokens.push_back(drawn[i].token);
  ASSERT_TRUE(h.Add(rest).ok());
  h.RunAll();
  const Answer& resumed = h.answers[{2, 0}];
  EXPECT_EQ(resumed.first_position, 52);
  EXPECT_EQ(resumed.cached_tokens, 40) << "of the prompt; the cache held 48 of its 52 tokens";
  ASSERT_EQ(resumed.tokens.size(), 18u);
  for (size_t i = 0; i < 18; ++i) EXPECT_EQ(resumed.tokens[i].token, drawn[12 + i].token) << i;
}

}  // namespace
}  // namespace baton::engine
