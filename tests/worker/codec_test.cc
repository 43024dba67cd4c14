#include "worker/relay/codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "kvtransfer/layout_codec.h"
#include "proto/order_limits.h"
#include "tests/sampling_wire.h"
#include "tests/worker/relay_fixture.h"

namespace baton::worker {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr AttachLimits kLimits{.vocab_size = engine::kFakeVocab};
const TimePoint kNow = FakeClock().Now();

std::string Refusal(const v1::Attach& attach) {
  const absl::StatusOr<engine::Request> r = DecodeAttach(attach, kLimits, 1, kNow);
  EXPECT_EQ(r.status().code(), absl::StatusCode::kInvalidArgument) << r.status();
  return std::string(r.status().message());
}

TEST(DecodeAttach, EveryFieldArrives) {
  v1::Attach a = MakeAttach("a", 1, 20, 7);
  v1::SamplingParams& p = *a.mutable_sampling();
  p.set_temperature(0.5f);
  p.set_top_k(-1);
  p.set_top_p(0.9f);
  p.set_min_p(0.1f);
  p.set_repetition_penalty(1.1f);
  p.set_presence_penalty(0.2f);
  p.set_frequency_penalty(0.3f);
  for (const int t : {30, 4, 17}) (*p.mutable_logit_bias())[t] = static_cast<float>(t);
  p.add_allowed_token_ids(5);
  p.add_stop_token_ids(6);
  p.set_min_tokens(2);
  p.set_seed(99);
  p.set_n(3);
  p.set_logprobs(1);
  p.set_prompt_logprobs(0);
  a.add_eos_token_ids(2);
  a.set_priority(-3);
  a.set_canary(true);
  a.set_deadline_ms(1500);
  a.set_cache_salt("tenant");
  a.set_credit_tokens(64);
  const absl::StatusOr<engine::Request> r = DecodeAttach(a, kLimits, 42, kNow);
  ASSERT_TRUE(r.ok()) << r.status();
  EXPECT_EQ(r->key, 42u);
  EXPECT_EQ(r->tokens, engine::RandomTokens(20, 20));
  EXPECT_EQ(r->prompt_len, 20);
  EXPECT_EQ(r->priority, -3);
  EXPECT_TRUE(r->canary);
  EXPECT_EQ(r->deadline, kNow + std::chrono::milliseconds(1500));
  EXPECT_EQ(r->cache_salt, "tenant");
  EXPECT_EQ(r->credit, 84);
  const engine::SamplingParams& s = r->sampling;
  EXPECT_EQ(s.temperature, 0.5f);
  EXPECT_EQ(s.top_k, 0) << "-1 means all, too";
  EXPECT_EQ(s.top_p, 0.9f);
  EXPECT_EQ(s.min_p, 0.1f);
  EXPECT_EQ(s.repetition_penalty, 1.1f);
  EXPECT_EQ(s.presence_penalty, 0.2f);
  EXPECT_EQ(s.frequency_penalty, 0.3f);
  EXPECT_THAT(s.logit_bias, ElementsAre(Pair(4, 4.0f), Pair(17, 17.0f), Pair(30, 30.0f)));
  EXPECT_THAT(s.allowed_token_ids, ElementsAre(5));
  EXPECT_THAT(s.stop_token_ids, ElementsAre(6));
  EXPECT_THAT(s.eos_token_ids, ElementsAre(2));
  EXPECT_TRUE(s.ignore_eos);
  EXPECT_EQ(s.min_tokens, 2);
  EXPECT_EQ(s.max_tokens, 7);
  EXPECT_EQ(s.seed, 99u);
  EXPECT_EQ(s.n, 3);
  EXPECT_EQ(s.logprobs, 1);
  EXPECT_EQ(s.prompt_logprobs, 0);
}

TEST(DecodeAttach, EverySamplingFieldIsCarried) { ExpectEverySamplingFieldIsCarried<engine::SamplingParams>(); }

TEST(DecodeAttach, EveryNumberOfSamplingHasARange) {
  const google::protobuf::Descriptor& fields = *v1::SamplingParams::descriptor();
  for (int i = 0; i < fields.field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *fields.field(i);
    const bool number = field.cpp_type() == field.CPPTYPE_FLOAT || field.cpp_type() == field.CPPTYPE_INT32;
    if (!number || field.is_repeated()) continue;
    EXPECT_TRUE(std::ranges::any_of(engine::kSamplingRanges, [&](const auto& r) { return r.name == field.name(); }))
        << field.name();
  }
}

TEST(DecodeAttach, AbsentFieldsAreNeutral) {
  v1::Attach a = MakeAttach("a", 1, 20, 7);
  a.clear_sampling();
  const absl::StatusOr<engine::Request> r = DecodeAttach(a, kLimits, 1, kNow);
  ASSERT_TRUE(r.ok());
  const engine::SamplingParams neutral;
  EXPECT_EQ(r->sampling.temperature, neutral.temperature);
  EXPECT_EQ(r->sampling.logprobs, -1);
  EXPECT_EQ(r->sampling.n, 1);
  EXPECT_EQ(r->deadline, TimePoint::max());
}

TEST(DecodeAttach, TheCandidatesOfABeamSearchAreNoTokenYet) {
  v1::Attach a = MakeAttach("a", 1, 20, 7);
  a.set_ticket("t");
  a.mutable_sampling()->set_use_beam_search(true);
  a.set_position(20);
  v1::FirstToken& first = *a.add_first();
  first.set_token_id(4);
  v1::TokenLogprob& top = *first.mutable_logprobs()->add_top();
  top.set_token_id(4);
  top.set_logprob(-0.75f);
  top.set_rank(1);
  EXPECT_TRUE(DecodeAttach(a, kLimits, 1, kNow).ok());
  const engine::FirstToken decoded = DecodeFirst(first);
  ASSERT_EQ(decoded.candidates.size(), 1u);
  EXPECT_EQ(decoded.candidates[0].token, 4);
  EXPECT_EQ(decoded.candidates[0].logprob, -0.75f);
  EXPECT_EQ(decoded.candidates[0].rank, 1);
  a.mutable_sampling()->set_use_beam_search(false);
  EXPECT_THAT(Refusal(a), HasSubstr("position 20, but 21"));
}

TEST(DecodeAttach, ChoicesOfAMigrationSetIndexAndNumber) {
  v1::Attach a = MakeAttach("a", 1, 20, 7);
  a.mutable_sampling()->set_n(8);
  a.add_choices(3);
  a.add_choices(4);
  const absl::StatusOr<engine::Request> r = DecodeAttach(a, kLimits, 1, kNow);
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r->sequence_index, 3u);
  EXPECT_EQ(r->sampling.n, 2);
  a.add_choices(6);
  EXPECT_THAT(Refusal(a), HasSubstr("consecutive, got 4 then 6"));
}

std::string ShortBytes(const std::vector<int32_t>& tokens) {
  std::string out;
  for (const int32_t id : tokens) {
    out.push_back(static_cast<char>(id & 0xff));
    out.push_back(static_cast<char>(id >> 8));
  }
  return out;
}

TEST(DecodeAttach, IdsIn16BitsAreTheSameIds) {
  const std::vector<int32_t> tokens = engine::RandomTokens(1, 20);
  v1::Attach a = MakeAttach("a", 1, 20, 7);
  EXPECT_EQ(TokensIn(a), 20u);
  a.set_prompt_token_ids(TokenBytes(tokens));
  const absl::StatusOr<engine::Request> whole = DecodeAttach(a, kLimits, 1, kNow);
  a.clear_prompt_token_ids();
  a.set_short_prompt_token_ids(ShortBytes(tokens));
  EXPECT_EQ(TokensIn(a), 20u);
  const absl::StatusOr<engine::Request> shorts = DecodeAttach(a, kLimits, 1, kNow);
  ASSERT_TRUE(whole.ok() && shorts.ok()) << whole.status() << shorts.status();
  EXPECT_EQ(shorts->tokens, whole->tokens);
  EXPECT_EQ(shorts->prompt_len, 20);

  const AttachLimits large{.vocab_size = 1 << 16};
  std::vector<int32_t> great = tokens;
  great[3] = 65'535;
  a.set_short_prompt_token_ids(ShortBytes(great));
  const absl::StatusOr<engine::Request> greatest = DecodeAttach(a, large, 1, kNow);
  ASSERT_TRUE(greatest.ok()) << greatest.status();
  EXPECT_EQ(greatest->tokens, great) << "none is negative";
  EXPECT_THAT(Refusal(a), AllOf(HasSubstr("token id 65535 at position 3"), HasSubstr("vocabulary of 48")));
  a.mutable_short_prompt_token_ids()->pop_back();
  EXPECT_THAT(Refusal(a), HasSubstr("short_prompt_token_ids has 39 bytes"));
  a = MakeAttach("a", 1, 20, 7);
  a.set_short_prompt_token_ids(ShortBytes(tokens));
  EXPECT_THAT(Refusal(a), HasSubstr("prompt_token_ids and short_prompt_token_ids"));
}

TEST(DecodeAttach, FieldsThatDoNotAddUpAreRefusedWithTheirNumbers) {
  v1::Attach a = MakeAttach("a", 1, 20, 7);
  a.mutable_prompt_token_ids()->pop_back();
  EXPECT_THAT(Refusal(a), HasSubstr("79 bytes"));
  a = MakeAttach("a", 1, 20, 7);
  std::vector<int32_t> tokens = engine::RandomTokens(1, 20);
  tokens[3] = engine::kFakeVocab;
  a.set_prompt_token_ids(TokenBytes(tokens));
  EXPECT_THAT(Refusal(a), AllOf(HasSubstr("token id 48 at position 3"), HasSubstr("vocabulary of 48")));
  tokens[3] = -1;
  a.set_prompt_token_ids(TokenBytes(tokens));
  EXPECT_THAT(Refusal(a), HasSubstr("token id -1"));
  a = MakeAttach("a", 1, 20, 7);
  a.set_prompt_len(21);
  EXPECT_THAT(Refusal(a), HasSubstr("prompt_len 21 does not fit 20 tokens"));
  a.set_prompt_len(0);
  EXPECT_THAT(Refusal(a), HasSubstr("prompt_len 0"));
  a.set_prompt_len(15);
  EXPECT_THAT(Refusal(a), AllOf(HasSubstr("output_len_so_far 0"), HasSubstr("leave 5")));
  a.set_output_len_so_far(5);
  EXPECT_TRUE(DecodeAttach(a, kLimits, 1, kNow).ok());
  a.set_position(19);
  EXPECT_THAT(Refusal(a), HasSubstr("position 19, but 20 tokens"));
}

TEST(EncodeOutput, TokensLogprobsAndEnd) {
  engine::SequenceOutput o;
  o.sequence_index = 2;
  o.position = 30;
  o.tokens.resize(2);
  o.tokens[0].token = 5;
  o.tokens[0].chosen = {5, -0.5f, 1};
  o.tokens[0].top = {{5, -0.5f, 1}, {6, -1.5f, 2}};
  o.tokens[1].token = 6;
  o.tokens[1].chosen = {6, -0.25f, 1};
  o.finish = engine::FinishReason::kStop;
  o.stop_token = 6;
  o.timings = {std::chrono::milliseconds(4), std::chrono::milliseconds(6), std::chrono::milliseconds(15)};
  const v1::RelayEntry e = EncodeOutput(o);
  EXPECT_EQ(e.index(), 2u);
  EXPECT_EQ(e.position(), 30u);
  EXPECT_THAT(e.token_ids(), ElementsAre(5, 6));
  ASSERT_EQ(e.logprobs_size(), 2);
  EXPECT_EQ(e.logprobs(0).top(1).token_id(), 6);
  EXPECT_EQ(e.logprobs(0).top(1).rank(), 2);
  EXPECT_EQ(e.finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(e.stop_token_id(), 6);
  EXPECT_EQ(e.timings().queue_prefill_ms(), 4);
  EXPECT_EQ(e.timings().prefill_ms(), 6);
  EXPECT_EQ(e.timings().decode_ms(), 5);
  EXPECT_FALSE(e.has_error());
}

TEST(EncodeOutput, AnErrorKeepsItsCodeAndText) {
  engine::SequenceOutput o;
  o.finish = engine::FinishReason::kError;
  o.error = absl::DeadlineExceededError("the deadline passed while decoding");
  const v1::RelayEntry e = EncodeOutput(o);
  EXPECT_EQ(e.finish_reason(), v1::FINISH_REASON_ERROR);
  EXPECT_EQ(e.error().code(), static_cast<int>(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(e.error().message(), "the deadline passed while decoding");
  EXPECT_FALSE(e.has_stop_token_id());
}

TEST(EncodePromptLogprobs, PiecesStayBelowTheLimitAndJoinToTheWhole) {
  std::vector<kernels::SampleResult> scores(200);
  for (int32_t i = 0; i < 200; ++i) {
    scores[static_cast<size_t>(i)].chosen = {i, -1.0f, 3};
    scores[static_cast<size_t>(i)].top.assign(5, {i + 1, -0.1f, 1});
  }
  const std::vector<std::string> pieces = EncodePromptLogprobs(scores, 1000);
  EXPECT_GT(pieces.size(), 5u);
  std::string whole;
  for (const std::string& p : pieces) {
    EXPECT_LE(p.size(), 1000u);
    v1::PromptLogprobs alone;
    EXPECT_TRUE(alone.ParseFromString(p)) << "cut between scores";
    whole += p;
  }
  v1::PromptLogprobs all;
  ASSERT_TRUE(all.ParseFromString(whole));
  ASSERT_EQ(all.positions_size(), 200);
  for (int i = 0; i < 200; ++i) EXPECT_EQ(all.positions(i).chosen().token_id(), i);
  EXPECT_TRUE(EncodePromptLogprobs({}, 1000).empty());
}

TEST(EncodeLayout, GroupsPlanesAndKinds) {
  const v1::KvLayout wire = EncodeLayout(engine::FakeLayout(32, 64));
  ASSERT_EQ(wire.groups_size(), 2);
  EXPECT_EQ(wire.groups(0).kind(), static_cast<v1::KvGroupKind>(1));
  EXPECT_EQ(wire.groups(1).kind(), static_cast<v1::KvGroupKind>(2));
  EXPECT_EQ(wire.groups(1).window_tokens(), 64u);
  EXPECT_EQ(wire.groups(0).tokens_per_block(), 32u);
  ASSERT_EQ(wire.groups(0).planes_size(), 2);
  EXPECT_EQ(wire.groups(0).planes(0).dim(), 2u);
  EXPECT_EQ(wire.groups(0).planes(0).heads(), 1u);
  EXPECT_NE(wire.groups(0).planes(0).name(), wire.groups(0).planes(1).name());
  EXPECT_FALSE(wire.groups(0).planes(0).dtype().empty());
}

TEST(DecodeAttach, NoTimeIsLongerThanItMayBe) {
  v1::Attach a = MakeAttach("a", 1, 20, 1);
  a.set_deadline_ms(kMostDeadlineMs);
  a.set_lease_ms(kMostLeaseMs);
  EXPECT_TRUE(DecodeAttach(a, kLimits, 1, kNow).ok());
  a.set_deadline_ms(4294967295u);
  EXPECT_THAT(Refusal(a), AllOf(HasSubstr("deadline_ms is 4294967295"), HasSubstr("at most 86400000")));
  a.set_deadline_ms(0);
  a.set_lease_ms(kMostLeaseMs + 1);
  EXPECT_THAT(Refusal(a), AllOf(HasSubstr("lease_ms is 60001"), HasSubstr("at most 60000")));
}

TEST(DecodeAttach, NamesHaveALength) {
  v1::Attach a = MakeAttach(std::string(kMostIdBytes, 'a'), 1, 20, 1);
  a.set_cache_salt(std::string(kMostSaltBytes, 's'));
  EXPECT_TRUE(DecodeAttach(a, kLimits, 1, kNow).ok());
  a.mutable_cache_salt()->push_back('s');
  EXPECT_THAT(Refusal(a), AllOf(HasSubstr("cache_salt is 1025"), HasSubstr("at most 1024")));
  a.mutable_key()->mutable_request_id()->push_back('a');
  EXPECT_THAT(Refusal(a), AllOf(HasSubstr("request_id is 257"), HasSubstr("at most 256")));
}

}  // namespace
}  // namespace baton::worker
