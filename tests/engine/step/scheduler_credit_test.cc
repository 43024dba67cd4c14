// Whose readers take nothing keep nobody from being served: they take no place, and give up their blocks to who lacks
// some. What they answer when they are read again is what they would have answered anyway.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/engine/step/requests.h"

namespace baton::engine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

SteppedEngineOptions CreditOptions(int32_t blocks) {
  SteppedEngineOptions o;
  o.num_blocks = {blocks};
  o.scheduler.max_model_len = 160;
  o.scheduler.max_step_ms = 0;
  o.scheduler.max_undelivered_tokens = 6;
  return o;
}

/// Its reader takes nothing.
Request Unread(RequestKey key, int32_t prompt_len, int32_t max_tokens, int32_t n = 1) {
  Request r = Endless(key, prompt_len, max_tokens);
  r.sampling.n = n;
  r.sampling.temperature = 1;
  r.sampling.seed = key;
  r.sampling.logprobs = 1;
  r.credit = prompt_len;
  return r;
}

void StepUntilNothingIsToBeDone(SteppedEngine& h) {
  while (h.Step()) EXPECT_LE(static_cast<int32_t>(h.plan().sequences.size()), h.scheduler().options().max_num_seqs);
}

int64_t Preemptions(SteppedEngine& h) { return h.scheduler().Load().preemptions; }

void Read(SteppedEngine& h, RequestKey key, int32_t n = 1, int32_t position = kUnlimitedCredit) {
  for (uint32_t choice = 0; choice < static_cast<uint32_t>(n); ++choice)
    h.scheduler().SetCredit(key, choice, position, h.now);
  h.Collect(h.scheduler().TakeOutputs());
}

void ExpectAnswerAsAlone(SteppedEngine& h, Request request) {
  SteppedEngine alone(CreditOptions(256));
  request.credit = kUnlimitedCredit;
  ASSERT_TRUE(alone.Add(request).ok());
  alone.RunAll();
  for (uint32_t choice = 0; choice < static_cast<uint32_t>(request.sampling.n); ++choice) {
    const AnswerKey key{request.key, choice};
    EXPECT_EQ(h.answers[key].Text(), alone.answers[key].Text()) << request.key << " choice " << choice;
  }
}

TEST(SchedulerCredit, ASequenceWithoutCreditTakesNoPlace) {
  SteppedEngine h(CreditOptions(2000));
  std::vector<Request> unread;
  for (RequestKey key = 1; key <= 32; ++key) {
    unread.push_back(Unread(key, 20, 100, /*n=*/4));
    ASSERT_TRUE(h.Add(unread.back()).ok());
  }
  StepUntilNothingIsToBeDone(h);
  EXPECT_EQ(h.scheduler().Load().running_sequences, 0);
  EXPECT_EQ(h.scheduler().Load().unread_sequences, h.scheduler().options().max_num_seqs) << "all places, were they any";
  const Request reader = Endless(40, 20, 5);
  ASSERT_TRUE(h.Add(reader).ok());
  for (int step = 0; step < 5; ++step) ASSERT_TRUE(h.Step());
  EXPECT_EQ((h.answers[{40, 0}].finish), FinishReason::kLength) << "a token with each step, from the first on";
  for (RequestKey key = 50; key < 90; ++key) ASSERT_TRUE(h.Add(Endless(key, 20, 30)).ok());
  for (int step = 0; step < 3; ++step) ASSERT_TRUE(h.Step());
  for (const Request& r : unread) Read(h, r.key, 4);
  EXPECT_EQ(h.scheduler().Load().running_sequences, 128 + 40) << "more than a step has places";
  StepUntilNothingIsToBeDone(h);
  EXPECT_TRUE(h.scheduler().Idle());
  EXPECT_EQ(Preemptions(h), 0) << "there was room for all";
  for (const Request& r : unread) ExpectAnswerAsAlone(h, r);
  ExpectAnswerAsAlone(h, reader);
}

TEST(SchedulerCredit, ItsBlocksGoToWhoLacksSomeAndToNobodyElse) {
  SteppedEngine h(CreditOptions(24));
  std::vector<Request> unread;
  for (RequestKey key = 1; key <= 4; ++key) {
    unread.push_back(Unread(key, 60, 80));
    ASSERT_TRUE(h.Add(unread.back()).ok());
    StepUntilNothingIsToBeDone(h);
  }
  EXPECT_EQ(h.cache().pool(0).available_blocks(), 4) << "each has 65 tokens in 5 blocks";
  const Request reader = Endless(9, 140, 5);  // 9 blocks
  ASSERT_TRUE(h.Add(reader).ok());
  for (int step = 0; step < 5; ++step) ASSERT_TRUE(h.Step());
  EXPECT_EQ((h.answers[{9, 0}].finish), FinishReason::kLength);
  EXPECT_EQ(Preemptions(h), 1) << "4 and 5 blocks are enough";
  EXPECT_EQ(h.scheduler().Load().unread_sequences, 4);
  EXPECT_EQ(h.scheduler().Load().waiting_requests, 0) << "the one that gave up its blocks is in nobody's way";
  for (const Request& r : unread) Read(h, r.key);
  h.RunAll();
  for (const Request& r : unread) ExpectAnswerAsAlone(h, r);
  ExpectAnswerAsAlone(h, reader);
}

TEST(SchedulerCredit, WhoseReaderTookNothingForTheLongestLosesItsBlocksFirst) {
  SteppedEngine h(CreditOptions(13));
  ASSERT_TRUE(h.Add(Unread(1, 60, 80)).ok() && h.Add(Unread(2, 60, 80)).ok());
  StepUntilNothingIsToBeDone(h);
  Read(h, 1, 1, 62);
  StepUntilNothingIsToBeDone(h);
  ASSERT_TRUE(h.Add(Endless(3, 60, 5)).ok());  // sequences are numbered in order of arrival
  ASSERT_TRUE(h.Step());
  EXPECT_EQ(h.plan().forget, (std::vector<SequenceId>{2}));
  h.scheduler().CancelAll(h.now);
  h.Collect(h.scheduler().TakeOutputs());
}

TEST(SchedulerCredit, NobodyComesBackBeforeAllIsTaken) {
  SteppedEngine h(CreditOptions(12));
  const Request unread = Unread(1, 100, 40), reader = Endless(2, 140, 5);
  ASSERT_TRUE(h.Add(unread).ok());
  StepUntilNothingIsToBeDone(h);
  ASSERT_TRUE(h.Add(reader).ok());
  StepUntilNothingIsToBeDone(h);
  ASSERT_EQ(Preemptions(h), 1);
  const int64_t rows = h.fake().rows_run;
  for (int32_t position = 101; position < 106; ++position) {
    Read(h, 1, 1, position);
    StepUntilNothingIsToBeDone(h);
  }
  EXPECT_EQ((h.answers[{1, 0}].tokens.size()), 5u) << "what is there comes without a step";
  EXPECT_EQ(h.fake().rows_run, rows) << "and nothing is computed for one token more";
  Read(h, 1, 1, 106);
  StepUntilNothingIsToBeDone(h);
  EXPECT_GT(h.fake().rows_run, rows);
  Read(h, 1);
  h.RunAll();
  ExpectAnswerAsAlone(h, unread);
  ExpectAnswerAsAlone(h, reader);
}

TEST(SchedulerCredit, HoweverManyComeEachLosesItsBlocksOnce) {
  SteppedEngineOptions o = CreditOptions(40);
  o.scheduler.max_waiting_requests = 3;
  SteppedEngine h(o);
  std::vector<Request> asked;
  for (RequestKey key = 1; key <= 6; ++key) {
    asked.push_back(Unread(key, 60, 80));
    ASSERT_TRUE(h.Add(asked.back()).ok());
    StepUntilNothingIsToBeDone(h);
  }
  for (RequestKey key = 11; key <= 40; ++key) {
    asked.push_back(Endless(key, 100, 30));
    const absl::Status added = h.Add(asked.back());
    ASSERT_TRUE(added.ok()) << added << ": those without blocks count as waiting";
    if (key % 3 == 0) StepUntilNothingIsToBeDone(h);
  }
  StepUntilNothingIsToBeDone(h);
  EXPECT_LE(Preemptions(h), 6);
  EXPECT_GE(Preemptions(h), 1);
  for (RequestKey key = 1; key <= 6; ++key) Read(h, key);
  h.RunAll();
  for (const Request& r : asked) ExpectAnswerAsAlone(h, r);
}

TEST(SchedulerCredit, AllOfThemGiveWayToOneThatNeedsThePool) {
  SteppedEngine h(CreditOptions(12));
  ASSERT_TRUE(h.Add(Unread(1, 30, 80)).ok());
  StepUntilNothingIsToBeDone(h);
  ASSERT_TRUE(h.Add(Unread(2, 60, 80, /*n=*/2)).ok());
  StepUntilNothingIsToBeDone(h);
  EXPECT_EQ(h.scheduler().Load().unread_sequences, 3);
  const Request whole = Endless(3, 155, 5);
  ASSERT_TRUE(h.Add(whole).ok());
  StepUntilNothingIsToBeDone(h);
  EXPECT_EQ((h.answers[{3, 0}].finish), FinishReason::kLength);
  for (RequestKey key : {1, 2}) Read(h, key, 2);
  h.RunAll();
  ExpectAnswerAsAlone(h, Unread(1, 30, 80));
  ExpectAnswerAsAlone(h, Unread(2, 60, 80, 2));
}

TEST(SchedulerCredit, TheQueueOfWhoDoesNotFitCostsThemNothing) {
  SteppedEngine h(CreditOptions(24));
  ASSERT_TRUE(h.Add(Unread(1, 30, 80)).ok());  // 3 blocks
  StepUntilNothingIsToBeDone(h);
  ASSERT_TRUE(h.Add(Endless(2, 110, 40)).ok());
  ASSERT_TRUE(h.Step());
  ASSERT_TRUE(h.Add(Endless(3, 150, 5)).ok());  // 10 blocks, and one for the second: there are 14
  ASSERT_TRUE(h.Add(Endless(4, 150, 5)).ok());  // there are 4, and 3 of who has no credit
  ASSERT_TRUE(h.Step());
  EXPECT_EQ(h.scheduler().Load().waiting_requests, 1);
  EXPECT_EQ(Preemptions(h), 0);
  h.scheduler().Cancel(1, h.now);
  h.RunAll();
}

class ReadersRole final : public RolePolicy {
 public:
  bool HoldAfterFirstToken(RequestKey key) const override { return key == hold; }
  bool ReleasePins() override {
    ++asked;
    return false;
  }
  bool HandBackPreempted(RequestKey, int32_t) const override { return hand_back; }
  RequestKey hold = 0;
  bool hand_back = false;
  int asked = 0;
};

TEST(SchedulerCredit, RunningOnesTakeItsBlocksBeforePinsAndJuniorsAndItIsNotHandedBack) {
  ReadersRole role;
  role.hand_back = true;
  SteppedEngine h(CreditOptions(12), &role);
  const Request unread = Unread(1, 80, 40), senior = Endless(2, 30, 60), junior = Endless(3, 10, 60);
  ASSERT_TRUE(h.Add(unread).ok());
  StepUntilNothingIsToBeDone(h);
  ASSERT_TRUE(h.Add(senior).ok() && h.Add(junior).ok());
  StepUntilNothingIsToBeDone(h);
  EXPECT_EQ((h.answers[{2, 0}].finish), FinishReason::kLength);
  EXPECT_EQ((h.answers[{3, 0}].finish), FinishReason::kLength);
  EXPECT_EQ((h.answers[{1, 0}].finish), FinishReason::kNone) << "no other worker has to compute it for nobody";
  EXPECT_EQ(Preemptions(h), 1);
  EXPECT_EQ(role.asked, 0);
  Read(h, 1);
  h.RunAll();
  for (const Request& r : {unread, senior, junior}) ExpectAnswerAsAlone(h, r);
}

TEST(SchedulerCredit, AHandoffTakesItsBlocksWhereTheyAreEnough) {
  SteppedEngine h(CreditOptions(14));
  const Request unread = Unread(1, 60, 40), running = Endless(2, 60, 40);
  ASSERT_TRUE(h.Add(unread).ok());
  StepUntilNothingIsToBeDone(h);
  ASSERT_TRUE(h.Add(running).ok());
  ASSERT_TRUE(h.Begin());  // blocks are bound while a step runs
  EXPECT_EQ(h.cache().pool(0).available_blocks(), 5);
  SequenceKv arriving = h.cache().Start("", "");
  const absl::Status s = h.scheduler().BindForHandoff(arriving, 10 * 16);
  EXPECT_TRUE(absl::IsResourceExhausted(s));
  EXPECT_THAT(std::string(s.message()), AllOf(HasSubstr("need 10 KV blocks"), HasSubstr("4 free")));
  EXPECT_EQ(Preemptions(h), 0) << "for nothing nobody gives up anything";
  EXPECT_TRUE(h.scheduler().BindForHandoff(arriving, 9 * 16).ok());
  EXPECT_EQ(Preemptions(h), 1);
  EXPECT_EQ(h.cache().pool(0).available_blocks(), 1) << "for the one that runs";
  h.pinned = arriving.tables[0].owned();
  h.Finish();
  arriving.Clear();
  h.pinned = 0;
  Read(h, 1);
  h.RunAll();
  ExpectAnswerAsAlone(h, unread);
  ExpectAnswerAsAlone(h, running);
}

TEST(SchedulerCredit, WhatWasHandedOverIsComputedHereWhenItIsReadAgain) {
  ReadersRole role;
  role.hold = 1;
  SteppedEngine alone(CreditOptions(256), &role), h(CreditOptions(14), &role);
  for (SteppedEngine* e : {&alone, &h}) {
    AttachedRequest attached;
    attached.request = Unread(1, 60, 40, /*n=*/2);
    attached.request.credit = kUnlimitedCredit;
    ASSERT_TRUE(e->Add(attached.request).ok());
    while (e->scheduler().Load().held_requests < 2) ASSERT_TRUE(e->Step());
    attached.kv = e->scheduler().Kv(1)->Share();
    for (uint32_t i : {0u, 1u}) attached.first.push_back({i, e->answers[{1, i}].tokens[0].token});
    attached.request.key = 2;
    if (e == &h) attached.request.credit = 61;
    ASSERT_TRUE(e->scheduler().AttachRequest(std::move(attached), e->now).ok());
    ASSERT_TRUE(e->scheduler().ReleaseHeld(1));
    StepUntilNothingIsToBeDone(*e);
  }
  const Request reader = Endless(3, 155, 5);
  ASSERT_TRUE(h.Add(reader).ok());
  StepUntilNothingIsToBeDone(h);
  EXPECT_EQ((h.answers[{3, 0}].finish), FinishReason::kLength);
  EXPECT_EQ(Preemptions(h), 2);
  Read(h, 2, 2);
  h.RunAll();
  for (uint32_t i : {0u, 1u}) EXPECT_EQ((h.answers[{2, i}].Text()), (alone.answers[{2, i}].Text())) << i;
  ExpectAnswerAsAlone(h, reader);
}

TEST(SchedulerCredit, ABeamSearchTakesItsBlocksToo) {
  SteppedEngine h(CreditOptions(13));  // 7 of them are those of 105 tokens
  const Request unread = Unread(1, 100, 40);
  ASSERT_TRUE(h.Add(unread).ok());
  StepUntilNothingIsToBeDone(h);
  Request beams = Endless(2, 60, 30);
  beams.sampling.use_beam_search = true;
  beams.sampling.n = 2;
  beams.sampling.best_of = 3;
  ASSERT_TRUE(h.Add(beams).ok());
  StepUntilNothingIsToBeDone(h);
  EXPECT_EQ((h.answers[{2, 0}].finish), FinishReason::kLength);
  EXPECT_EQ(Preemptions(h), 1) << "the search was not computed again";
  Read(h, 1);
  h.RunAll();
  ExpectAnswerAsAlone(h, unread);
  ExpectAnswerAsAlone(h, beams);
}

TEST(SchedulerCredit, StepsArePlannedAheadBesideThem) {
  SteppedEngineOptions o = CreditOptions(24);
  o.ahead = true;
  SteppedEngine h(o);
  for (RequestKey key = 1; key <= 4; ++key) {
    ASSERT_TRUE(h.Add(Unread(key, 60, 80)).ok());
    StepUntilNothingIsToBeDone(h);
  }
  const int64_t before = h.steps_ahead;
  ASSERT_TRUE(h.Add(Endless(9, 100, 40)).ok());
  StepUntilNothingIsToBeDone(h);
  EXPECT_EQ(Preemptions(h), 1);
  EXPECT_EQ(h.steps_ahead - before, 38) << "all but the prefill and the first decode";
  for (RequestKey key = 1; key <= 4; ++key) Read(h, key);
  h.RunAll();
  for (RequestKey key = 1; key <= 4; ++key) ExpectAnswerAsAlone(h, Unread(key, 60, 80));
}

// Four places and prefills in parts of 16 tokens.
SteppedEngineOptions FourPlaces() {
  SteppedEngineOptions o = CreditOptions(200);
  o.scheduler.max_num_seqs = 4;
  o.scheduler.max_prefill_chunk = 16;
  return o;
}

// Six answers that stood still are read again when the first part of `other` is computed.
void ReadSixAgainBeside(SteppedEngine& h, const Request& other) {
  for (RequestKey key = 1; key <= 6; ++key) ASSERT_TRUE(h.Add(Unread(key, 20, 100)).ok());
  StepUntilNothingIsToBeDone(h);
  ASSERT_TRUE(h.Add(other).ok());
  ASSERT_TRUE(h.Step());
  for (RequestKey key = 1; key <= 6; ++key) Read(h, key);
}

TEST(SchedulerCredit, APrefillGoesOnWhereMoreAreReadAgainThanAStepHasPlacesFor) {
  SteppedEngine h(FourPlaces());
  ReadSixAgainBeside(h, Endless(9, 140, 5));
  for (int32_t chunk = 1; chunk < 9; ++chunk) {
    ASSERT_TRUE(h.Step());
    ASSERT_EQ(h.plan().sequences.size(), 4u);
    EXPECT_EQ(h.plan().sequences.back().context, 16 * chunk);
  }
  EXPECT_EQ((h.answers[{9, 0}].tokens.size()), 1u);
  h.RunAll();
}

TEST(SchedulerCredit, SoDoesOneOfAsManyChoicesAsHalfOfThePlaces) {
  SteppedEngine h(FourPlaces());
  Request two = Endless(9, 140, 5);
  two.sampling.n = 2;
  ReadSixAgainBeside(h, two);
  for (int32_t chunk = 1; chunk < 9; ++chunk) {
    ASSERT_TRUE(h.Step());
    ASSERT_TRUE(std::ranges::any_of(h.plan().sequences, [](const auto& s) { return s.request_key == 9; })) << chunk;
  }
  EXPECT_EQ((h.answers[{9, 1}].tokens.size()), 1u);
  h.RunAll();
}

TEST(SchedulerCredit, OneThatGaveUpItsBlocksEndsAsOthersDo) {
  SteppedEngine h(CreditOptions(12));
  Request late = Unread(1, 60, 80);
  late.deadline = h.now + std::chrono::seconds(1000);
  ASSERT_TRUE(h.Add(late).ok());
  StepUntilNothingIsToBeDone(h);
  ASSERT_TRUE(h.Add(Unread(2, 60, 80)).ok());
  StepUntilNothingIsToBeDone(h);
  ASSERT_TRUE(h.Add(Endless(3, 155, 5)).ok());
  StepUntilNothingIsToBeDone(h);
  ASSERT_EQ(Preemptions(h), 2);
  EXPECT_TRUE(h.scheduler().Cancel(2, h.now));
  const std::vector<SequenceOutput> outputs = h.scheduler().TakeOutputs();
  ASSERT_EQ(outputs.size(), 1u);
  EXPECT_EQ(outputs[0].finish, FinishReason::kAbort);
  EXPECT_EQ(outputs[0].position, 60) << "where its client stands";
  EXPECT_EQ(h.scheduler().Load().unread_sequences, 1);
  EXPECT_EQ(h.scheduler().NextDeadline(), late.deadline);
  h.now = late.deadline;
  h.Step();
  EXPECT_TRUE(absl::IsDeadlineExceeded(h.answers[(AnswerKey{1, 0})].error));
  EXPECT_TRUE(h.scheduler().Idle());
  EXPECT_EQ(h.scheduler().Load().unread_sequences, 0);
  EXPECT_EQ(h.cache().pool(0).used_blocks(), 0);
}

}  // namespace
}  // namespace baton::engine
