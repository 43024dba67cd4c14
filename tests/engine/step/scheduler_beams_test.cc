// Beam search in the scheduler: beams fork and are pruned on copy-on-write blocks, alone and among others, preempted,
// cancelled, handed over; nothing is output before the search is over, and no block stays behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/engine/step/requests.h"

namespace baton::engine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Conditions {
  int32_t blocks = 400;
  int32_t tokens_per_block = 16;
  int32_t window = 0;
  int32_t chunk = 2048;
  bool prefix_caching = false;
  int32_t max_seqs = 64;
  int32_t more_tokens = 0;  ///< than the requests' own, and no eos
  bool cancel_steps = false;
};

SteppedEngineOptions Options(const Conditions& conditions = {}) {
  SteppedEngineOptions o;
  o.layout = FakeLayout(conditions.tokens_per_block, conditions.window);
  o.num_blocks.assign(o.layout.groups.size(), conditions.blocks);
  o.prefix_caching = conditions.prefix_caching;
  o.scheduler.max_model_len = 160;
  o.scheduler.max_num_batched_tokens = conditions.chunk;
  o.scheduler.max_num_seqs = conditions.max_seqs;
  o.scheduler.max_step_ms = 0;
  return o;
}

Request Beams(RequestKey key, int32_t width, int32_t n, int32_t prompt_len, int32_t max_tokens) {
  Request r = MakeRequest(key, RandomTokens(key, prompt_len), max_tokens);
  r.sampling.use_beam_search = true;
  r.sampling.n = n;
  r.sampling.best_of = width;
  r.sampling.eos_token_ids = {3, 7, 11};
  r.sampling.logprobs = 2;
  return r;
}

Request EndlessBeams(RequestKey key, int32_t width, int32_t n, int32_t prompt_len, int32_t max_tokens) {
  Request r = Beams(key, width, n, prompt_len, max_tokens);
  r.sampling.ignore_eos = true;
  return r;
}

// Of mixed terms.
Request BeamsNumber(int i) {
  Request r = Beams(static_cast<RequestKey>(i + 1), 2 + i % 4, 1 + i % 2, 3 + (i * 37) % 90, 5 + (i * 11) % 30);
  r.sampling.length_penalty = i % 3 == 0 ? 2.0f : 1.0f;
  r.sampling.early_stopping = i % 3;
  r.sampling.min_tokens = i % 5;
  r.sampling.logprobs = i % 3 - 1;
  r.priority = i % 2;
  if (i % 4 == 3) r.sampling.ignore_eos = true;
  return r;
}

std::map<AnswerKey, std::string> Texts(const SteppedEngine& h) {
  std::map<AnswerKey, std::string> texts;
  for (const auto& [key, answer] : h.answers) texts[key] = answer.Text();
  return texts;
}

std::map<AnswerKey, std::string> Alone(const Request& request, const Conditions& conditions = {}) {
  SteppedEngine h(Options({.window = conditions.window}));
  EXPECT_TRUE(h.Add(request).ok());
  h.RunAll();
  return Texts(h);
}

int32_t UsedBlocks(SteppedEngine& h) {
  int32_t used = 0;
  for (const int32_t of_group : h.scheduler().Load().used_blocks) used += of_group;
  return used;
}

TEST(SchedulerBeams, OneBeamIsTheGreedyText) {
  Request greedy = MakeRequest(1, RandomTokens(1, 40), 12), beam = Beams(1, 1, 1, 40, 12);
  greedy.sampling.logprobs = beam.sampling.logprobs;
  greedy.sampling.ignore_eos = beam.sampling.ignore_eos = true;
  EXPECT_EQ(Alone(beam), Alone(greedy));
}

TEST(SchedulerBeams, TheBestAnswerIsLikelierThanTheGreedyOne) {
  const auto logprob = [](const Answer& a) {
    double sum = 0;
    for (const auto& t : a.tokens) sum += static_cast<double>(t.chosen.logprob);
    return sum;
  };
  SteppedEngine h(Options());
  Request greedy = MakeRequest(1, RandomTokens(2, 40), 12);
  greedy.sampling.logprobs = 0;
  greedy.sampling.ignore_eos = true;
  Request beams = Beams(2, 6, 2, 40, 12);
  beams.sampling.ignore_eos = true;
  ASSERT_TRUE(h.Add(greedy).ok() && h.Add(beams).ok());
  h.RunAll();
  EXPECT_GT(logprob(h.answers[{2, 0}]), logprob(h.answers[{1, 0}]));
  EXPECT_GT(logprob(h.answers[{2, 0}]), logprob(h.answers[{2, 1}])) << "the best one first";
}

TEST(SchedulerBeams, NothingIsOutputBeforeTheSearchIsOver) {
  SteppedEngine h(Options());
  Request r = EndlessBeams(1, 4, 3, 40, 12);
  ASSERT_TRUE(h.Add(r).ok());
  for (int step = 0; step < 12; ++step) {
    for (const auto& [key, answer] : h.answers) EXPECT_TRUE(answer.tokens.empty()) << "step " << step;
    EXPECT_EQ(h.answers.size(), step == 0 ? 0u : 1u) << "that the prompt is computed is said";
    ASSERT_TRUE(h.Step());
  }
  ASSERT_EQ(h.answers.size(), 3u);
  for (const auto& [key, answer] : h.answers) EXPECT_EQ(answer.finish, FinishReason::kLength);
  h.RunAll();
}

TEST(SchedulerBeams, AnswersWaitForCredit) {
  SteppedEngine h(Options());
  Request r = EndlessBeams(1, 4, 2, 40, 12);
  r.credit = 45;
  ASSERT_TRUE(h.Add(r).ok());
  while (h.Step()) {
  }
  EXPECT_EQ((h.answers[{1, 1}].tokens.size()), 5u);
  EXPECT_EQ((h.answers[{1, 1}].finish), FinishReason::kNone);
  EXPECT_EQ(UsedBlocks(h), 0) << "what is over has no blocks";
  for (const uint32_t choice : {1u, 0u}) h.scheduler().SetCredit(1, choice, kUnlimitedCredit, h.now);
  h.Collect(h.scheduler().TakeOutputs());
  r.credit = kUnlimitedCredit;
  EXPECT_EQ(Texts(h), Alone(r));
  EXPECT_TRUE(h.scheduler().Idle());
}

TEST(SchedulerBeams, AnAnswerThatWaitsForCreditMayBeCancelledByItself) {
  SteppedEngine h(Options());
  Request r = EndlessBeams(1, 4, 2, 40, 12);
  r.credit = 45;
  ASSERT_TRUE(h.Add(r).ok());
  while (h.Step()) {
  }
  EXPECT_EQ(h.scheduler().Load().generated_tokens, 2 * 12);
  ASSERT_TRUE(h.scheduler().CancelSequence(1, 0, h.now));
  h.scheduler().SetCredit(1, 1, kUnlimitedCredit, h.now);
  h.Collect(h.scheduler().TakeOutputs());
  EXPECT_EQ((h.answers[{1, 0}].finish), FinishReason::kAbort);
  EXPECT_EQ((h.answers[{1, 1}].tokens.size()), 12u);
  EXPECT_TRUE(h.scheduler().Idle()) << "nothing of the other one is left";
}

TEST(SchedulerBeams, ASearchOfOneTokenWaitsForCreditToo) {
  SteppedEngine h(Options());
  Request r = Beams(1, 4, 2, 40, 1);
  r.credit = 40;
  ASSERT_TRUE(h.Add(r).ok());
  while (h.Step()) {
  }
  EXPECT_EQ((h.answers[{1, 0}].finish), FinishReason::kNone);
  for (const uint32_t choice : {0u, 1u}) h.scheduler().SetCredit(1, choice, 41, h.now);
  h.Collect(h.scheduler().TakeOutputs());
  r.credit = kUnlimitedCredit;
  EXPECT_EQ(Texts(h), Alone(r));
  EXPECT_TRUE(h.scheduler().Idle());
}

TEST(SchedulerBeams, BeamsTakeTurnsWithOthersWhereNotAllFitAStep) {
  SteppedEngine h(Options({.chunk = 4}));
  Request r = EndlessBeams(1, 4, 1, 20, 40);
  ASSERT_TRUE(h.Add(Endless(2, 8, 30)).ok() && h.Add(r).ok());
  while (h.answers[{2, 0}].finish == FinishReason::kNone) ASSERT_TRUE(h.Step());
  EXPECT_EQ((h.answers[{1, 0}].finish), FinishReason::kNone) << "the search is not over before the others get on";
  h.RunAll();
}

TEST(SchedulerBeams, BeamsShareTheBlocksOfTheirCommonPast) {
  SteppedEngine h(Options());
  Request r = EndlessBeams(1, 4, 1, 64, 40);
  ASSERT_TRUE(h.Add(r).ok());
  int32_t shared = 0, used = 0;
  while (h.Step()) {
    shared = std::max(shared, h.scheduler().Load().shared_blocks);
    used = std::max(used, UsedBlocks(h));
  }
  EXPECT_GE(shared, 4) << "the prompt's, at least";
  EXPECT_LE(used, 4 + 4 * 3) << "private are only blocks of what was generated";
  EXPECT_EQ(h.scheduler().Load().shared_blocks, 0);
  EXPECT_EQ(UsedBlocks(h), 0);
}

// Beams among beams and sampled requests.
struct Seen {
  int64_t preemptions = 0, cancelled_steps = 0;
};
Seen ExpectSameTogether(const Conditions& conditions) {
  constexpr int kRequests = 24;
  std::map<AnswerKey, std::string> alone;
  SteppedEngine h(Options(conditions));
  std::mt19937 rng(static_cast<unsigned>(conditions.chunk + conditions.blocks));
  for (int i = 0; i < kRequests; ++i) {
    Request r = i % 3 == 1 ? MixedRequest(static_cast<RequestKey>(i + 1), 300 + static_cast<uint64_t>(i), 3 + i * 5)
                           : BeamsNumber(i);
    r.sampling.max_tokens += conditions.more_tokens;
    r.sampling.ignore_eos = r.sampling.ignore_eos || conditions.more_tokens > 0;
    alone.merge(Alone(r, conditions));
    const absl::Status added = h.Add(std::move(r));
    EXPECT_TRUE(added.ok()) << added;
    if (rng() % 2 == 0) h.Step();
  }
  while (!h.scheduler().Idle()) {
    h.fake().before_forward = nullptr;
    if (conditions.cancel_steps && rng() % 3 == 0) {
      h.fake().before_forward = [&h] {
        h.executor().Cancel();
        return absl::OkStatus();
      };
    }
    h.Step();
  }
  const auto together = Texts(h);
  EXPECT_EQ(together.size(), alone.size());
  for (const auto& [key, text] : together) EXPECT_EQ(text, alone[key]) << key.first << " choice " << key.second;
  EXPECT_EQ(UsedBlocks(h), 0);
  EXPECT_EQ(h.scheduler().Load().shared_blocks, 0);
  const SchedulerLoad load = h.scheduler().Load();
  return {load.preemptions, load.cancelled_steps};
}

TEST(SchedulerBeams, TogetherIsAloneAtEveryChunkBlockSizeAndWindow) {
  for (const int32_t chunk : {16, 40, 2048}) ExpectSameTogether({.chunk = chunk});
  for (const int32_t tokens_per_block : {16, 64}) {
    ExpectSameTogether({.tokens_per_block = tokens_per_block, .prefix_caching = true});
    ExpectSameTogether({.tokens_per_block = tokens_per_block, .window = 24});
  }
}

// Together they outgrow the pool, whoever comes first.
void ExpectPreemptedAndTheSame(const std::vector<Request>& requests, const Conditions& conditions) {
  SteppedEngine h(Options(conditions));
  std::map<AnswerKey, std::string> alone;
  for (const Request& r : requests) {
    alone.merge(Alone(r, conditions));
    const absl::Status added = h.Add(r);
    ASSERT_TRUE(added.ok()) << added;
  }
  h.RunAll();
  EXPECT_EQ(Texts(h), alone);
  EXPECT_GT(h.scheduler().Load().preemptions, 0);
  EXPECT_EQ(UsedBlocks(h), 0);
}

TEST(SchedulerBeams, PreemptedTogetherTheyComeToTheSameAnswers) {
  const std::vector<Request> beams_last = {Endless(1, 60, 90), Endless(2, 60, 90), EndlessBeams(3, 3, 2, 60, 60),
                                           EndlessBeams(4, 2, 1, 50, 60)};
  const std::vector<Request> beams_first = {EndlessBeams(1, 4, 2, 60, 60), Endless(2, 60, 90), Endless(3, 60, 90)};
  for (const bool caching : {false, true}) {
    ExpectPreemptedAndTheSame(beams_last, {.blocks = 20, .prefix_caching = caching});
    ExpectPreemptedAndTheSame(beams_last, {.blocks = 20, .window = 24, .chunk = 40, .prefix_caching = caching});
    ExpectPreemptedAndTheSame(beams_first, {.blocks = 24, .prefix_caching = caching});
  }
  for (const int32_t window : {0, 40}) {
    ExpectSameTogether({.blocks = 37, .window = window, .chunk = 64, .more_tokens = 60});
  }
}

TEST(SchedulerBeams, BeamsThatDoNotFitOneStepWaitForEachOther) { ExpectSameTogether({.max_seqs = 5}); }

TEST(SchedulerBeams, StepsCancelledHalfWayChangeNothing) {
  EXPECT_GT(ExpectSameTogether({.chunk = 64, .cancel_steps = true}).cancelled_steps, 0);
  const Conditions tight{.blocks = 44, .window = 24, .chunk = 64, .more_tokens = 30, .cancel_steps = true};
  EXPECT_GT(ExpectSameTogether(tight).cancelled_steps, 0);
}

TEST(SchedulerBeams, CancelledAtAnyStepTheyLeaveNothing) {
  for (int after = 0; after < 9; ++after) {
    for (const bool running : {false, true}) {
      SteppedEngine h(Options());
      Request r = Beams(1, 4, 2, 60, 12);
      r.sampling.ignore_eos = true;
      ASSERT_TRUE(h.Add(r).ok());
      for (int step = 0; step < after; ++step) ASSERT_TRUE(h.Step());
      if (running) {
        ASSERT_TRUE(h.Begin());
      }
      EXPECT_TRUE(h.scheduler().CancelSequence(1, 0, h.now)) << "one answer: the search goes on";
      EXPECT_EQ(h.scheduler().Load().used_blocks[0] > 0, after > 0 || running);
      EXPECT_TRUE(h.scheduler().Cancel(1, h.now));
      if (running) h.Finish();
      h.Collect(h.scheduler().TakeOutputs());
      h.RunAll();
      EXPECT_EQ((h.answers[{1, 0}].finish), FinishReason::kAbort);
      EXPECT_EQ((h.answers[{1, 1}].finish), FinishReason::kAbort);
      EXPECT_EQ(UsedBlocks(h), 0);
      EXPECT_EQ(h.executor().sequences(), 0u) << "the executor has forgotten them";
    }
  }
}

TEST(SchedulerBeams, AnAnswerThatNobodyWantsIsLeftOut) {
  const Request r = Beams(1, 4, 2, 60, 12);
  SteppedEngine h(Options());
  ASSERT_TRUE(h.Add(r).ok() && h.Step());
  ASSERT_TRUE(h.scheduler().CancelSequence(1, 0, h.now));
  h.RunAll();
  EXPECT_EQ((h.answers[{1, 1}].Text()), Alone(r)[AnswerKey(1, 1)]);
  EXPECT_EQ((h.answers[{1, 0}].finish), FinishReason::kAbort);
}

TEST(SchedulerBeams, ADeadlineEndsAllBeams) {
  SteppedEngine h(Options());
  Request r = EndlessBeams(1, 4, 2, 60, 30);
  r.deadline = h.now + std::chrono::milliseconds(20);
  ASSERT_TRUE(h.Add(r).ok());
  h.RunAll();
  for (const uint32_t choice : {0u, 1u})
    EXPECT_TRUE(absl::IsDeadlineExceeded(h.answers[AnswerKey(1, choice)].error)) << choice;
  EXPECT_EQ(UsedBlocks(h), 0);
}

TEST(SchedulerBeams, AFailedStepEndsTheWholeSearch) {
  SteppedEngine h(Options());
  ASSERT_TRUE(h.Add(Beams(1, 4, 2, 60, 30)).ok());
  ASSERT_TRUE(h.Step() && h.Step());
  const StepPlan plan = h.scheduler().PlanStep(h.now);
  ASSERT_EQ(plan.sequences.size(), 4u);
  h.Collect(h.scheduler().CommitFailure(plan, absl::InternalError("device lost"), h.now));
  EXPECT_EQ((h.answers[{1, 1}].error.message()), "device lost");
  EXPECT_TRUE(h.scheduler().Idle());
  EXPECT_EQ(UsedBlocks(h), 0);
}

TEST(SchedulerBeams, EchoedPromptsAreScoredOnce) {
  Request r = Beams(1, 3, 2, 50, 8);
  r.sampling.prompt_logprobs = 1;
  SteppedEngine h(Options({.chunk = 16}));
  ASSERT_TRUE(h.Add(r).ok());
  h.RunAll();
  EXPECT_EQ((h.answers[{1, 0}].prompt_logprobs.size()), 49u);
  EXPECT_EQ((h.answers[{1, 1}].prompt_logprobs.size()), 0u);
}

TEST(SchedulerBeams, EchoedPromptsAreScoredOnceThoughTheyAreComputedAgain) {
  SteppedEngine h(Options({.blocks = 20}));
  Request r = EndlessBeams(2, 3, 2, 60, 60);
  r.sampling.prompt_logprobs = 1;
  for (const Request& one : {Endless(1, 60, 90), Endless(3, 60, 90), r}) ASSERT_TRUE(h.Add(one).ok());
  h.RunAll();
  EXPECT_GT(h.scheduler().Load().preemptions, 0);
  EXPECT_EQ((h.answers[{2, 0}].prompt_logprobs.size()), 59u);
}

// ---- handed over

class HoldsOne final : public RolePolicy {
 public:
  bool HoldAfterFirstToken(RequestKey key) const override { return key == 1; }
};

TEST(SchedulerBeams, OneShipmentAndTheFirstCandidatesGoOnElsewhere) {
  const Request whole = Beams(2, 4, 3, 70, 12);
  HoldsOne policy;
  SteppedEngine h(Options(), &policy);
  Request prompt = whole;
  prompt.key = 1;
  prompt.sampling.n = 1;
  prompt.sampling.max_tokens = 1;
  ASSERT_TRUE(h.Add(prompt).ok());
  h.RunAll();
  const Answer& held = h.answers[{1, 0}];
  ASSERT_EQ(held.finish, FinishReason::kHeld);
  ASSERT_EQ(held.tokens.size(), 1u);
  AttachedRequest attached{whole, h.scheduler().Kv(1)->Share(), {{0, held.tokens[0].token, held.tokens[0].top}}};
  ASSERT_TRUE(h.scheduler().AttachRequest(std::move(attached), h.now).ok());
  ASSERT_TRUE(h.scheduler().ReleaseHeld(1));
  std::vector<SequenceOutput> told = h.scheduler().TakeOutputs();
  ASSERT_EQ(told.size(), 1u) << "the prompt is computed";
  EXPECT_TRUE(told[0].tokens.empty() && told[0].finish == FinishReason::kNone);
  h.Collect(std::move(told));
  h.RunAll();
  h.answers.erase({1, 0});
  EXPECT_EQ(Texts(h), Alone(whole));
  EXPECT_EQ(UsedBlocks(h), 0);
}

TEST(SchedulerBeams, ASearchOfOneTokenIsOverWhereItArrives) {
  Request r = Beams(2, 3, 2, 40, 1);
  SteppedEngine h(Options());
  FirstToken first{0, 5, {}};
  for (int32_t t = 0; t < 6; ++t) first.candidates.push_back({t, -0.5f * static_cast<float>(t + 1), t + 1});
  ASSERT_TRUE(AttachComputed(h, r, {first}).ok());
  h.Collect(h.scheduler().TakeOutputs());
  EXPECT_EQ((h.answers[{2, 1}].tokens[0].token), 1);
  EXPECT_TRUE(h.scheduler().Idle());
  EXPECT_EQ(UsedBlocks(h), 0);
  h.scheduler().CheckInvariants();
  EXPECT_TRUE(AttachComputed(h, r, {first}).ok()) << "the key is free again";
}

TEST(SchedulerBeams, CandidatesMustCome) {
  SteppedEngine h(Options());
  EXPECT_THAT(AttachComputed(h, Beams(2, 3, 2, 40, 4), {{0, 5, {}}}).message(), HasSubstr("first candidates"));
  EXPECT_THAT(AttachComputed(h, Beams(2, 3, 2, 40, 4), {{0, 5, {{kFakeVocab, -1, 1}}}}).message(),
              HasSubstr("candidate 48"));
}

class HandsBack final : public RolePolicy {
 public:
  bool HandBackPreempted(RequestKey, int32_t) const override { return true; }
};

TEST(SchedulerBeams, PreemptedOnADecodeWorkerTheyAreHandedBackWhole) {
  HandsBack policy;
  SteppedEngine h(Options({.blocks = 20}), &policy);
  for (const Request& r : {Endless(1, 60, 90), Endless(3, 60, 90), EndlessBeams(2, 3, 2, 60, 60)})
    ASSERT_TRUE(h.Add(r).ok());
  h.RunAll();
  for (const uint32_t choice : {0u, 1u})
    EXPECT_TRUE(absl::IsUnavailable(h.answers[AnswerKey(2, choice)].error)) << choice;
  EXPECT_EQ((h.answers[{1, 0}].tokens.size()), 90u);
}

// ---- refused

TEST(SchedulerBeams, WhatCannotBeIsRefusedWithItsNumbers) {
  const auto refused = [](auto&& change) {
    SteppedEngine h(Options({.blocks = 24, .max_seqs = 6}));
    Request r = Beams(1, 4, 2, 60, 20);
    change(r);
    const absl::Status status = h.Add(r);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refused([](Request& r) { r.sampling.n = 5; }), AllOf(HasSubstr("n = 5"), HasSubstr("4 beams")));
  EXPECT_THAT(refused([](Request& r) { r.sampling.best_of = 7; }), AllOf(HasSubstr("7 beams"), HasSubstr("at most 6")));
  EXPECT_THAT(refused([](Request& r) { r.sampling.n = 1, r.prompt_len -= 1; }), HasSubstr("no output so far"));
  EXPECT_THAT(refused([](Request& r) { r.sampling.max_tokens = 90; }),
              AllOf(HasSubstr("4 beams of 150 tokens"), HasSubstr("need 32"), HasSubstr("there are 24")));
  EXPECT_THAT(refused([](Request& r) { r.sampling.early_stopping = 3; }), HasSubstr("early_stopping"));
}

}  // namespace
}  // namespace baton::engine
