// What the roles of a handoff ask of the scheduler: hold after the first token, bind, attach, and give up pins.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/engine/step/requests.h"

namespace baton::engine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Role final : public RolePolicy {
 public:
  int32_t PrefillBudget(int32_t decode_rows, int32_t budget) const override {
    return decode_rows > 0 ? std::min(budget, budget_beside_decodes) : budget;
  }
  bool HoldAfterFirstToken(RequestKey key) const override { return hold.contains(key); }
  bool ReleasePins() override {
    ++asked;
    const bool any = !pins.empty();
    pins.clear();
    return any;
  }
  bool HandBackPreempted(RequestKey, int32_t computed) const override {
    computed_when_preempted.push_back(computed);
    return hand_back;
  }

  std::set<RequestKey> hold;
  std::vector<SequenceKv> pins;
  int asked = 0;
  bool hand_back = false;
  mutable std::vector<int32_t> computed_when_preempted;
  int32_t budget_beside_decodes = 1 << 20;
};

SteppedEngineOptions HandoffOptions(int32_t blocks = 64) {
  SteppedEngineOptions o;
  o.num_blocks = {blocks};
  o.scheduler.max_model_len = 160;
  o.scheduler.max_step_ms = 0;
  return o;
}

Request EndlessSeeded(RequestKey key, int32_t prompt_len, int32_t max_tokens, int32_t n = 1) {
  Request r = MakeRequest(key, RandomTokens(5, prompt_len), max_tokens);
  r.sampling.ignore_eos = true;
  r.sampling.temperature = 1;
  r.sampling.seed = 12;
  r.sampling.n = n;
  return r;
}

std::string Tokens(const Answer& a) {
  std::string text;
  for (const auto& t : a.tokens) text += " " + std::to_string(t.token);
  return text;
}

// Prefills under key 1, hands the KV over to key 2 in the same cache, lets go of the first.
void HandOver(SteppedEngine& h, const Request& request) {
  ASSERT_TRUE(h.Add(request).ok());
  while (h.scheduler().Load().held_requests < request.sampling.n) ASSERT_TRUE(h.Step());
  EXPECT_TRUE(h.scheduler().Idle()) << "what is held does not count";
  const SequenceKv* kv = h.scheduler().Kv(1);
  ASSERT_NE(kv, nullptr);
  AttachedRequest attached;
  attached.request = request;
  attached.request.key = 2;
  attached.kv = kv->Share();
  for (uint32_t i = 0; i < static_cast<uint32_t>(request.sampling.n); ++i) {
    const Answer& prefill = h.answers[{1, i}];
    EXPECT_EQ(prefill.finish, FinishReason::kHeld);
    ASSERT_EQ(prefill.tokens.size(), 1u);
    attached.first.push_back({i, prefill.tokens[0].token});
  }
  const absl::Status s = h.scheduler().AttachRequest(std::move(attached), h.now);
  ASSERT_TRUE(s.ok()) << s;
  EXPECT_TRUE(h.scheduler().ReleaseHeld(1));
  EXPECT_FALSE(h.scheduler().ReleaseHeld(1));
  EXPECT_EQ(h.scheduler().Load().held_requests, 0);
}

TEST(SchedulerHandoff, PrefillThenAttachIsTheWholeAnswer) {
  for (const int32_t n : {1, 3}) {
    for (const int32_t prompt : {40, 48}) {
      Role role;
      role.hold = {1};
      SteppedEngine h(HandoffOptions(), &role);
      HandOver(h, EndlessSeeded(1, prompt, 20, n));
      ASSERT_TRUE(h.Step());
      EXPECT_EQ(h.plan().sequences[0].context, prompt) << "no prompt token is computed again";
      EXPECT_EQ(h.plan().sequences[0].num_tokens, 1);
      h.RunAll();
      SteppedEngine whole(HandoffOptions());
      ASSERT_TRUE(whole.Add(EndlessSeeded(1, prompt, 20, n)).ok());
      whole.RunAll();
      for (uint32_t i = 0; i < static_cast<uint32_t>(n); ++i) {
        EXPECT_EQ((Tokens(h.answers[{1, i}]) + Tokens(h.answers[{2, i}])), (Tokens(whole.answers[{1, i}])))
            << n << " " << i;
        EXPECT_EQ((h.answers[{2, i}].first_position), prompt + 1);
        EXPECT_EQ((h.answers[{2, i}].finish), FinishReason::kLength);
      }
      EXPECT_EQ(h.cache().pool(0).used_blocks(), 0);
    }
  }
}

TEST(SchedulerHandoff, KvThatWasHandedOverIsFoundByTheNextPrompt) {
  SteppedEngine h(HandoffOptions());
  AttachedRequest attached;
  attached.request = EndlessSeeded(1, 40, 20);
  attached.kv = h.cache().Start("", "");
  ASSERT_TRUE(h.cache().Grow(attached.kv, 40));
  attached.first = {{0, 7}};
  const std::vector<int32_t> prompt = attached.request.tokens;
  ASSERT_TRUE(h.scheduler().AttachRequest(std::move(attached), h.now).ok());
  EXPECT_EQ(h.cache().Match("", "", prompt, 39).tokens, 32);
  h.RunAll();
}

TEST(SchedulerHandoff, AFirstTokenThatEndsTheRequestIsNeverDecoded) {
  SteppedEngine h(HandoffOptions());
  ASSERT_TRUE(AttachComputed(h, EndlessSeeded(1, 32, 1), {{0, 11}}).ok());
  h.Collect(h.scheduler().TakeOutputs());
  EXPECT_EQ((h.answers[{1, 0}].finish), FinishReason::kLength);
  EXPECT_TRUE(h.answers[(AnswerKey{1, 0})].tokens.empty()) << "the prefill side delivered it";
  EXPECT_TRUE(h.scheduler().Idle());
  EXPECT_EQ(h.cache().pool(0).used_blocks(), 0);
  h.scheduler().CheckInvariants();
  EXPECT_TRUE(AttachComputed(h, EndlessSeeded(1, 32, 1), {{0, 11}}).ok()) << "the key is free again";
}

TEST(SchedulerHandoff, OnlyChoicesWithAFirstTokenLive) {
  SteppedEngine h(HandoffOptions());
  ASSERT_TRUE(AttachComputed(h, EndlessSeeded(1, 32, 10, 3), {{1, 11}, {2, 12}}).ok());
  EXPECT_FALSE(h.scheduler().CancelSequence(1, 0, h.now)) << "it ended on the prefill side";
  h.RunAll();
  EXPECT_EQ(h.answers.size(), 2u);
  EXPECT_EQ((h.answers[{1, 1}].tokens.size()), 9u);
}

TEST(SchedulerHandoff, AChoiceThatIsNamedTwiceLivesOnce) {
  SteppedEngine h(HandoffOptions());
  ASSERT_TRUE(AttachComputed(h, EndlessSeeded(1, 32, 10, 2), {{1, 11}, {1, 12}}).ok());
  EXPECT_EQ(h.scheduler().Load().running_sequences, 1);
  h.RunAll();
  EXPECT_EQ((h.answers[{1, 1}].tokens.size()), 9u);
  EXPECT_EQ(h.cache().pool(0).used_blocks(), 0);
}

TEST(SchedulerHandoff, TheDeadlineOfWhatIsHeldWakesNobody) {
  Role role;
  role.hold = {1};
  SteppedEngine h(HandoffOptions(), &role);
  Request r = EndlessSeeded(1, 20, 10);
  r.deadline = h.now + std::chrono::seconds(5);
  ASSERT_TRUE(h.Add(r).ok());
  EXPECT_EQ(h.scheduler().NextDeadline(), r.deadline);
  while (h.scheduler().Load().held_requests == 0) ASSERT_TRUE(h.Step());
  EXPECT_EQ(h.scheduler().NextDeadline(), TimePoint::max()) << "it was answered; its KV has the handoff's own limits";
  EXPECT_TRUE(h.scheduler().ReleaseHeld(1));
}

// Decodes come first and may leave fewer places than a prompt's choices take when they fork.
TEST(SchedulerHandoff, AttachedSequencesLeaveNoStepTooFull) {
  SteppedEngineOptions o = HandoffOptions();
  o.scheduler.max_num_seqs = 4;
  o.scheduler.max_prefill_chunk = 16;
  SteppedEngine h(o);
  ASSERT_TRUE(h.Add(EndlessSeeded(1, 60, 5, /*n=*/3)).ok());
  ASSERT_TRUE(h.Step());
  for (RequestKey key = 2; key <= 4; ++key) {
    ASSERT_TRUE(AttachComputed(h, EndlessSeeded(key, 20, 12), {{0, 1}}).ok());
  }
  while (h.Step()) EXPECT_LE(h.plan().sequences.size(), 4u) << "step " << h.plan().step;
  for (uint32_t choice : {0u, 1u, 2u}) EXPECT_EQ((h.answers[{1, choice}].tokens.size()), 5u) << choice;
}

TEST(SchedulerHandoff, AnAttachWhosePartsDoNotFitTogetherIsRefused) {
  SteppedEngine h(HandoffOptions());
  const auto refusal = [&](int32_t kv_tokens, std::vector<FirstToken> first) {
    AttachedRequest attached;
    attached.request = EndlessSeeded(1, 40, 10);
    attached.kv = h.cache().Start("", "");
    EXPECT_TRUE(h.cache().Grow(attached.kv, kv_tokens));
    attached.first = std::move(first);
    const absl::Status s = h.scheduler().AttachRequest(std::move(attached), h.now);
    EXPECT_EQ(s.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(h.cache().pool(0).used_blocks(), 0);
    return std::string(s.message());
  };
  EXPECT_THAT(refusal(32, {{0, 1}}), HasSubstr("does not cover 40 tokens in group 0"));
  EXPECT_THAT(refusal(40, {}), HasSubstr("without first tokens"));
  EXPECT_THAT(refusal(40, {{0, kFakeVocab}}), HasSubstr("first token 48"));
  EXPECT_THAT(refusal(40, {{1, 1}}), HasSubstr("choice 1"));
}

TEST(SchedulerHandoff, AnAttachIsRefusedForWhatARequestIsRefusedFor) {
  SteppedEngine h(HandoffOptions());
  ASSERT_TRUE(h.Add(EndlessSeeded(1, 40, 10)).ok());
  const std::vector<FirstToken> first = {{0, 7}};
  EXPECT_EQ(AttachComputed(h, EndlessSeeded(1, 40, 10), first).code(), absl::StatusCode::kAlreadyExists);
  Request hot = EndlessSeeded(2, 40, 10);
  hot.sampling.temperature = -1;
  EXPECT_THAT(AttachComputed(h, hot, first).message(), HasSubstr("temperature"));
  EXPECT_THAT(AttachComputed(h, EndlessSeeded(2, 160, 10), first).message(), HasSubstr("context length of 160"));
  Request unknown = EndlessSeeded(2, 40, 10);
  unknown.tokens[3] = kFakeVocab;
  EXPECT_THAT(AttachComputed(h, unknown, first).message(), HasSubstr("token 3 has id 48"));
  h.RunAll();
  EXPECT_EQ((h.answers[{1, 0}].tokens.size()), 10u) << "the one that lives goes on";
}

TEST(SchedulerHandoff, APromptThatWasHandedOverIsNotScored) {
  SteppedEngine h(HandoffOptions(11));
  Request r = EndlessSeeded(1, 40, 60);
  r.sampling.prompt_logprobs = 1;
  r.priority = 1;
  ASSERT_TRUE(AttachComputed(h, r, {{0, 7}}).ok());
  ASSERT_TRUE(h.Step());
  EXPECT_FALSE(h.plan().sequences[0].prompt_logprobs);
  ASSERT_TRUE(h.Add(EndlessSeeded(2, 60, 80)).ok());
  h.RunAll();
  EXPECT_GT(h.scheduler().Load().preemptions, 0);
  EXPECT_TRUE(h.answers[(AnswerKey{1, 0})].prompt_logprobs.empty()) << "not when it is computed again either";
}

TEST(SchedulerHandoff, CreditThatComesForWhatIsHeldEndsNothingTwice) {
  Role role;
  role.hold = {1};
  SteppedEngine h(HandoffOptions(), &role);
  Request r = EndlessSeeded(1, 40, 10);
  r.credit = 41;
  ASSERT_TRUE(h.Add(r).ok());
  while (h.scheduler().Load().held_requests == 0) ASSERT_TRUE(h.Step());
  EXPECT_EQ((h.answers[{1, 0}].finish), FinishReason::kHeld);
  h.scheduler().SetCredit(1, 0, 50, h.now);
  EXPECT_TRUE(h.scheduler().TakeOutputs().empty());
  EXPECT_TRUE(h.scheduler().ReleaseHeld(1));
}

TEST(SchedulerHandoff, CancelAllLetsGoOfWhatIsHeld) {
  Role role;
  role.hold = {1};
  SteppedEngine h(HandoffOptions(), &role);
  ASSERT_TRUE(h.Add(EndlessSeeded(1, 40, 10)).ok());
  while (h.scheduler().Load().held_requests == 0) ASSERT_TRUE(h.Step());
  EXPECT_GT(h.cache().pool(0).used_blocks(), 0);
  h.scheduler().CancelAll(h.now);
  EXPECT_EQ(h.cache().pool(0).used_blocks(), 0);
  EXPECT_EQ(h.scheduler().Load().held_requests, 0);
  EXPECT_EQ(h.scheduler().Kv(1), nullptr);
}

TEST(SchedulerHandoffDeathTest, ACacheThatCannotHoldOneSequenceAndABlockToCopyIntoIsOurBug) {
  EXPECT_DEATH(SteppedEngine(HandoffOptions(10)), "one sequence of 160 tokens needs 11");
  SteppedEngine just_enough(HandoffOptions(11));
}

TEST(SchedulerHandoff, BindingLeavesABlockToEachRunningSequence) {
  SteppedEngine h(HandoffOptions(12));
  ASSERT_TRUE(h.Add(EndlessSeeded(1, 100, 30)).ok());
  ASSERT_TRUE(h.Step());
  EXPECT_EQ(h.cache().pool(0).available_blocks(), 5);
  SequenceKv arriving = h.cache().Start("", "");
  const absl::Status s = h.scheduler().BindForHandoff(arriving, 65);
  EXPECT_TRUE(absl::IsResourceExhausted(s));
  EXPECT_THAT(std::string(s.message()), AllOf(HasSubstr("need 5 KV blocks"), HasSubstr("4 free")));
  EXPECT_EQ(h.cache().pool(0).available_blocks(), 5) << "refused: nothing was taken";
  EXPECT_TRUE(h.scheduler().BindForHandoff(arriving, 64).ok());
  EXPECT_EQ(h.cache().pool(0).available_blocks(), 1);
  arriving.Clear();
  h.RunAll();
}

TEST(SchedulerHandoff, OfAWindowOnlyWhatWasHandedOverIsFoundLater) {
  SteppedEngineOptions options = HandoffOptions(16);
  options.layout = FakeLayout(64, 32);
  options.num_blocks = {16, 16};
  SteppedEngine h(options);
  const std::vector<int32_t> tokens = RandomTokens(1, 113);
  SequenceKv arriving = h.cache().Start("", "");
  ASSERT_TRUE(h.scheduler().BindForHandoff(arriving, 113).ok());
  h.cache().Publish(arriving, tokens, 112);
  EXPECT_EQ(h.cache().Match("", "", tokens, 112).tokens, 112);
  EXPECT_EQ(h.cache().Match("", "", tokens, 96).tokens, 0) << "of the window of 96 a part never came";
  arriving.Clear();
}

TEST(SchedulerHandoff, PinsAreGivenUpBeforeAnybodyIsPreempted) {
  Role role;
  SteppedEngine h(HandoffOptions(12), &role);
  ASSERT_TRUE(h.Add(EndlessSeeded(1, 60, 40)).ok());
  ASSERT_TRUE(h.Step());
  Request second = EndlessSeeded(2, 60, 40);
  second.tokens = RandomTokens(6, 60);
  ASSERT_TRUE(h.Add(second).ok());
  ASSERT_TRUE(h.Step());
  SequenceKv pin = h.cache().Start("", "");
  ASSERT_TRUE(h.cache().Grow(pin, 4 * 16));
  role.pins.push_back(std::move(pin));
  h.pinned = 4;
  while (role.asked == 0 && !h.scheduler().Idle()) {
    ASSERT_TRUE(h.Begin());
    h.pinned = role.pins.empty() ? 0 : 4;
    h.Finish();
  }
  EXPECT_EQ(role.asked, 1);
  EXPECT_TRUE(role.pins.empty());
  EXPECT_EQ(h.scheduler().Load().preemptions, 0);
  h.RunAll();
}

TEST(SchedulerHandoff, APreemptedSequenceMayBeHandedBackInstead) {
  Role role;
  role.hand_back = true;
  SteppedEngine h(HandoffOptions(12), &role);
  for (RequestKey key : {1, 2}) {
    Request r = EndlessSeeded(key, 60, 60);
    r.tokens = RandomTokens(key, 60);
    ASSERT_TRUE(h.Add(r).ok());
  }
  h.RunAll();
  EXPECT_EQ((h.answers[{1, 0}].finish), FinishReason::kLength);
  const Answer& back = h.answers[{2, 0}];
  EXPECT_EQ(back.finish, FinishReason::kError);
  EXPECT_TRUE(absl::IsUnavailable(back.error)) << back.error;
  EXPECT_GT(back.tokens.size(), 0u) << "what it had is delivered: the next worker goes on from there";
  // The KV of all but the last token, which is computed in the step that it begins.
  EXPECT_EQ(role.computed_when_preempted, (std::vector<int32_t>{59 + static_cast<int32_t>(back.tokens.size())}));
}

TEST(SchedulerHandoff, APromptOfSeveralChoicesIsHandedBackWhole) {
  Role role;
  role.hand_back = true;
  SteppedEngineOptions options = HandoffOptions(12);
  options.scheduler.max_prefill_chunk = 4;
  SteppedEngine h(options, &role);
  Request senior = EndlessSeeded(1, 60, 90);
  ASSERT_TRUE(h.Add(senior).ok());
  for (int i = 0; i < 15; ++i) ASSERT_TRUE(h.Step());
  Request junior = EndlessSeeded(2, 100, 60, /*n=*/2);
  junior.tokens = RandomTokens(2, 100);
  ASSERT_TRUE(h.Add(junior).ok());
  h.RunAll();
  EXPECT_EQ((h.answers[{1, 0}].finish), FinishReason::kLength);
  for (uint32_t choice : {0u, 1u}) {
    EXPECT_TRUE(absl::IsUnavailable(h.answers[{2, choice}].error)) << choice << ": " << h.answers[{2, choice}].error;
  }
}

TEST(SchedulerHandoff, APromptOfOneTokenTakesOfThePrefillsShare) {
  Role role;
  role.budget_beside_decodes = 3;
  SteppedEngine h(HandoffOptions(), &role);
  ASSERT_TRUE(h.Add(EndlessSeeded(1, 20, 50)).ok());
  ASSERT_TRUE(h.Step());
  for (RequestKey key = 2; key <= 9; ++key) {
    Request r = EndlessSeeded(key, 1, 5);
    r.tokens = RandomTokens(key, 1);
    ASSERT_TRUE(h.Add(r).ok());
  }
  ASSERT_TRUE(h.Step());
  EXPECT_EQ(h.plan().total_tokens, 1 + 3);
  h.RunAll();
}

TEST(SchedulerHandoff, ADecodeWorkerKeepsPrefillToItsShare) {
  Role role;
  role.budget_beside_decodes = 32;
  SteppedEngine h(HandoffOptions(), &role);
  ASSERT_TRUE(h.Add(EndlessSeeded(1, 20, 50)).ok());
  ASSERT_TRUE(h.Step());
  EXPECT_EQ(h.plan().total_tokens, 20) << "alone, a prefill takes the whole step";
  Request r = EndlessSeeded(2, 140, 5);
  r.tokens = RandomTokens(6, 140);
  ASSERT_TRUE(h.Add(r).ok());
  ASSERT_TRUE(h.Step());
  EXPECT_EQ(h.plan().total_tokens, 1 + 32);
  h.RunAll();
}

}  // namespace
}  // namespace baton::engine
