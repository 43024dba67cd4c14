// Too little of something: blocks (preemption), places in the queue (refusals), time (deadlines).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/engine/step/requests.h"

namespace baton::engine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The tenth block and one to copy into: one sequence of 160 tokens and no more.
SteppedEngineOptions Tight(int32_t blocks = 12) {
  SteppedEngineOptions o;
  o.num_blocks = {blocks};
  o.prefix_caching = false;
  o.scheduler.max_model_len = 160;
  o.scheduler.max_step_ms = 0;
  return o;
}

bool Has(const StepPlan& plan, SequenceId id) {
  return std::any_of(plan.sequences.begin(), plan.sequences.end(), [&](const auto& s) { return s.id == id; });
}

std::string Message(const absl::Status& s) { return std::string(s.message()); }

TEST(SchedulerPressure, LowerPriorityRunsFirstThenArrival) {
  SteppedEngineOptions o = Tight(64);
  o.scheduler.max_num_seqs = 1;
  SteppedEngine h(o);
  const std::vector<int32_t> priorities = {2, 1, 1, 0};
  for (size_t i = 0; i < priorities.size(); ++i) {
    Request r = Endless(i + 1, 10, 3);
    r.priority = priorities[i];
    ASSERT_TRUE(h.Add(r).ok());
  }
  std::vector<SequenceId> order;  // ids are given out in order of arrival
  while (h.Step()) {
    for (const SequenceStep& s : h.plan().sequences) {
      if (order.empty() || order.back() != s.id) order.push_back(s.id);
    }
  }
  EXPECT_EQ(order, (std::vector<SequenceId>{4, 2, 3, 1}));
}

TEST(SchedulerPressure, TheJuniorIsPreemptedTheSeniorNeverStops) {
  SteppedEngine h(Tight());
  ASSERT_TRUE(h.Add(Endless(1, 60, 60)).ok());
  ASSERT_TRUE(h.Add(Endless(2, 60, 60)).ok());
  while (h.answers[{1, 0}].finish == FinishReason::kNone) {
    ASSERT_TRUE(h.Step());
    EXPECT_TRUE(Has(h.plan(), 1)) << "step " << h.plan().step;
  }
  EXPECT_EQ(h.scheduler().Load().preemptions, 1);
  h.RunAll();
  for (RequestKey key : {1, 2}) {
    SteppedEngine alone(Tight());
    ASSERT_TRUE(alone.Add(Endless(key, 60, 60)).ok());
    alone.RunAll();
    EXPECT_EQ((h.answers[{key, 0}].Text()), (alone.answers[{key, 0}].Text())) << key;
  }
}

TEST(SchedulerPressure, ASeniorThatStandsStillGivesItsBlocksToTheLastOne) {
  SteppedEngineOptions o = Tight();
  o.scheduler.max_undelivered_tokens = 2;
  SteppedEngine h(o);
  Request senior = Endless(1, 80, 10);
  senior.credit = 80;
  ASSERT_TRUE(h.Add(senior).ok() && h.Add(Endless(2, 60, 60)).ok());
  while (h.answers[{2, 0}].tokens.size() < 37) ASSERT_TRUE(h.Step());
  EXPECT_EQ(h.scheduler().Load().preemptions, 0) << "6 of 12 blocks are full: 96 tokens";
  while (h.Step()) {
  }
  EXPECT_EQ(h.scheduler().Load().preemptions, 1);
  EXPECT_EQ((h.answers[{2, 0}].tokens.size()), 60u);
  h.scheduler().SetCredit(1, 0, kUnlimitedCredit, h.now);
  h.RunAll();
  SteppedEngine alone(o);
  ASSERT_TRUE(alone.Add(Endless(1, 80, 10)).ok());
  alone.RunAll();
  EXPECT_EQ((h.answers[{1, 0}].Text()), (alone.answers[{1, 0}].Text()));
  EXPECT_EQ(h.scheduler().Load().preemptions, 1);
}

TEST(SchedulerPressure, AnAdmittedRequestLeavesABlockToEachThatRuns) {
  for (const auto& [prompt_len, admitted] : {std::pair{150, false}, std::pair{140, true}}) {
    SteppedEngine h(Tight());
    ASSERT_TRUE(h.Add(Endless(1, 28, 20)).ok());
    ASSERT_TRUE(h.Step());
    ASSERT_TRUE(h.Add(Endless(2, prompt_len, 3)).ok());  // 10 blocks or 9; the first one has 2 of 12
    ASSERT_TRUE(h.Step());
    EXPECT_EQ(Has(h.plan(), 2), admitted) << prompt_len;
    h.RunAll();
    EXPECT_EQ(h.scheduler().Load().preemptions, 0) << prompt_len;
  }
}

TEST(SchedulerPressure, NobodyIsAdmittedInTheStepThatPreempts) {
  SteppedEngine h(Tight());
  Request urgent = Endless(1, 30, 60), lazy = Endless(2, 100, 50), waits = Endless(3, 90, 5);
  lazy.priority = 2, waits.priority = 1;
  ASSERT_TRUE(h.Add(urgent).ok() && h.Add(lazy).ok());
  ASSERT_TRUE(h.Step());
  ASSERT_TRUE(h.Add(waits).ok());
  while (h.scheduler().Load().preemptions == 0) {
    ASSERT_TRUE(h.Step());
    EXPECT_FALSE(Has(h.plan(), 3)) << "step " << h.plan().step << ": what was freed is not given away at once";
  }
  ASSERT_TRUE(h.Step());
  EXPECT_TRUE(Has(h.plan(), 3)) << "it is the first in line then";
  h.RunAll();
}

TEST(SchedulerPressure, WhatAPreemptedRequestFindsOfItsOwnIsNotCalledCached) {
  SteppedEngineOptions o = Tight();
  o.prefix_caching = true;
  SteppedEngine h(o);
  ASSERT_TRUE(h.Add(Endless(1, 60, 60)).ok() && h.Add(Endless(2, 60, 60)).ok());
  int32_t found = 0;
  while (h.Step()) {
    for (const NewSequence& add : h.plan().add) {
      for (const SequenceStep& s : h.plan().sequences) found += s.id == add.id && add.id == 2 ? s.context : 0;
    }
  }
  EXPECT_EQ(h.scheduler().Load().preemptions, 1);
  EXPECT_GT(found, 0) << "a part of its prompt was still there when it came back";
  EXPECT_EQ((h.answers[{2, 0}].cached_tokens), 0);
  EXPECT_EQ(h.scheduler().Load().cached_tokens, 0);
}

TEST(SchedulerPressure, ThePreemptedIsTheLessUrgentNotTheLaterOne) {
  SteppedEngine h(Tight());
  Request lazy = Endless(1, 60, 60), urgent = Endless(2, 60, 60);
  lazy.priority = 1;
  ASSERT_TRUE(h.Add(lazy).ok());
  ASSERT_TRUE(h.Step());
  ASSERT_TRUE(h.Add(urgent).ok());
  ASSERT_TRUE(h.Step());
  while (h.answers[{2, 0}].finish == FinishReason::kNone) {
    ASSERT_TRUE(h.Step());
    EXPECT_TRUE(Has(h.plan(), 2)) << "step " << h.plan().step;
  }
  EXPECT_EQ(h.scheduler().Load().preemptions, 1);
}

TEST(SchedulerPressure, APreemptedRequestKeepsItsPlaceBeforeLaterOnes) {
  SteppedEngine h(Tight());
  for (RequestKey key : {1, 2, 3}) ASSERT_TRUE(h.Add(Endless(key, 60, 60)).ok());
  std::vector<RequestKey> ended;
  while (h.Step()) {
    for (RequestKey key : {1, 2, 3}) {
      const bool now = h.answers[{key, 0}].finish != FinishReason::kNone;
      if (now && std::find(ended.begin(), ended.end(), key) == ended.end()) ended.push_back(key);
    }
  }
  EXPECT_GT(h.scheduler().Load().preemptions, 0);
  EXPECT_EQ(ended, (std::vector<RequestKey>{1, 2, 3}));
}

// Each preemption throws work away; what is recomputed must stay a small multiple of the work itself.
TEST(SchedulerPressure, OnePoolOfOneSequenceLivelocksNobody) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    std::mt19937_64 rng(seed);
    SteppedEngineOptions o = Tight(11);
    o.scheduler.max_num_batched_tokens = 8 + static_cast<int32_t>(rng() % 200);
    SteppedEngine h(o);
    int64_t rows = 0;
    for (RequestKey key = 1; key <= 24; ++key) {
      const auto prompt = 1 + static_cast<int32_t>(rng() % 100);
      const auto more = 1 + static_cast<int32_t>(rng() % 59);
      Request r = Endless(key, prompt, more);
      r.priority = static_cast<int32_t>(rng() % 3);
      rows += prompt + more - 1;
      ASSERT_TRUE(h.Add(r).ok());
    }
    h.RunAll(static_cast<int>(rows));
    EXPECT_LE(h.fake().rows_run, 3 * rows) << "seed " << seed;
    EXPECT_EQ(h.cache().pool(0).used_blocks(), 0);
  }
}

TEST(SchedulerPressure, AFullQueueRefusesWithLengthLimitAndWait) {
  SteppedEngineOptions o = Tight();
  o.scheduler.max_waiting_requests = 2;
  SteppedEngine h(o);
  ASSERT_TRUE(h.Add(Endless(1, 10, 5)).ok());
  ASSERT_TRUE(h.Add(Endless(2, 10, 5)).ok());
  const absl::Status full = h.Add(Endless(3, 10, 5));
  EXPECT_TRUE(absl::IsResourceExhausted(full));
  EXPECT_THAT(Message(full), AllOf(HasSubstr("2 requests with 20 tokens wait"), HasSubstr("--max-waiting-requests"),
                                   HasSubstr("predicted wait 20 ms")));
  h.RunAll();
  EXPECT_TRUE(h.Add(Endless(3, 10, 5)).ok()) << "there is room again";
  h.RunAll();
}

TEST(SchedulerPressure, QueuedTokensAreBoundedToo) {
  SteppedEngineOptions o = Tight();
  o.scheduler.max_waiting_tokens = 100;
  SteppedEngine h(o);
  ASSERT_TRUE(h.Add(Endless(1, 60, 5)).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(h.Add(Endless(2, 60, 5))));
  ASSERT_TRUE(h.Add(Endless(2, 40, 5)).ok());
  h.RunAll();
}

TEST(SchedulerPressure, RefusalsNameWhatIsWrong) {
  SteppedEngine h(Tight());
  const auto why = [&](Request r) {
    const absl::Status s = h.Add(std::move(r));
    EXPECT_EQ(s.code(), absl::StatusCode::kInvalidArgument) << s;
    return Message(s);
  };
  EXPECT_THAT(why(Endless(1, 160, 1)), AllOf(HasSubstr("160 tokens"), HasSubstr("--max-model-len")));
  Request r = Endless(1, 10, 5);
  r.tokens[7] = kFakeVocab;
  EXPECT_THAT(why(r), AllOf(HasSubstr("token 7"), HasSubstr("48")));
  r = Endless(1, 10, 5);
  r.prompt_len = 4;
  EXPECT_THAT(why(r), HasSubstr("6 tokens were generated already, max_tokens is 5"));
  r.prompt_len = 5;
  EXPECT_THAT(why(r), HasSubstr("5 tokens were generated already, max_tokens is 5"));
  r = Endless(1, 10, 5);
  r.sampling.n = 129;
  EXPECT_THAT(why(r), HasSubstr("129 choices, at most 128"));
  ASSERT_TRUE(h.Add(Endless(1, 10, 5)).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(h.Add(Endless(1, 10, 5))));
  h.RunAll();
}

TEST(SchedulerPressure, TimeInTheQueueIsTimeUntilTheFirstStep) {
  SteppedEngineOptions o = Tight();
  o.scheduler.max_num_seqs = 1;
  SteppedEngine h(o);
  for (const RequestKey key : {1, 2}) ASSERT_TRUE(h.Add(Endless(key, 20, 5)).ok());
  h.RunAll();
  const Timings first = h.answers[{1, 0}].timings, second = h.answers[{2, 0}].timings;
  EXPECT_EQ(first.queued, Duration::zero());
  EXPECT_EQ(second.queued, first.total) << "it began when the first had ended";
  EXPECT_EQ(second.total, 2 * first.total);
  EXPECT_GT(second.prefill, Duration::zero());
}

TEST(SchedulerPressure, ADeadlineEndsARequestAtEveryStageAndSaysWhich) {
  SteppedEngineOptions o = Tight(32);
  o.scheduler.max_num_seqs = 2;
  o.scheduler.max_num_batched_tokens = 16;
  SteppedEngine h(o);
  const TimePoint deadline = h.now + std::chrono::milliseconds(5);
  std::vector<Request> requests = {Endless(1, 10, 100), Endless(2, 150, 5), Endless(3, 10, 5)};
  for (Request& r : requests) {
    r.deadline = deadline;
    ASSERT_TRUE(h.Add(r).ok());
  }
  EXPECT_EQ(h.scheduler().NextDeadline(), deadline);
  ASSERT_TRUE(h.Step());
  ASSERT_TRUE(h.Step());
  h.now = deadline;
  h.Step();
  const std::vector<std::string> stages = {"decoding", "in prefill", "waiting"};
  for (RequestKey key = 1; key <= 3; ++key) {
    const Answer& a = h.answers[{key, 0}];
    EXPECT_EQ(a.finish, FinishReason::kError);
    EXPECT_TRUE(absl::IsDeadlineExceeded(a.error)) << a.error;
    EXPECT_THAT(Message(a.error), HasSubstr("the deadline passed while " + stages[key - 1])) << key;
  }
  EXPECT_TRUE(h.scheduler().Idle());
  EXPECT_EQ(h.scheduler().NextDeadline(), TimePoint::max());
  EXPECT_EQ(h.cache().pool(0).used_blocks(), 0);
  requests[0].key = 4;
  EXPECT_TRUE(absl::IsDeadlineExceeded(h.Add(requests[0])));
}

TEST(SchedulerPressure, WhoIsInTheStepAlreadyIsNotPreemptedForIt) {
  SteppedEngineOptions o;
  o.prefix_caching = false;
  o.scheduler.max_model_len = 200;
  o.scheduler.max_prefill_chunk = 16;
  std::vector<Request> requests = {Endless(1, 100, 4), Endless(2, 100, 4), Endless(3, 17, 12)};
  requests[0].priority = -2;
  requests[1].priority = -1;
  SteppedEngine h(o);
  ASSERT_TRUE(h.Add(requests[2]).ok());
  ASSERT_TRUE(h.Step() && h.Step());
  ASSERT_TRUE(h.Add(requests[0]).ok() && h.Add(requests[1]).ok());
  ASSERT_TRUE(h.Step());
  SequenceKv others = h.cache().Start("", "");
  h.pinned = h.cache().pool(0).available_blocks();
  ASSERT_TRUE(h.cache().Grow(others, static_cast<int32_t>(h.pinned) * 16));
  ASSERT_TRUE(h.Step());
  ASSERT_EQ(h.plan().sequences.size(), 2u);
  EXPECT_EQ(h.plan().sequences[0].request_key, 3u) << "the last in order decodes, as it did";
  EXPECT_EQ(h.plan().sequences[1].request_key, 1u) << "the first has the block of the second";
  EXPECT_EQ(h.scheduler().Load().preemptions, 1);
  others.Clear();
  h.pinned = 0;
  h.RunAll();
  for (const Request& r : requests) {
    SteppedEngine alone(o);
    ASSERT_TRUE(alone.Add(r).ok());
    alone.RunAll();
    EXPECT_EQ((h.answers[{r.key, 0}].Text()), (alone.answers[{r.key, 0}].Text())) << r.key;
  }
}

}  // namespace
}  // namespace baton::engine
