// What a worker understands of a router's bytes, and what it answers, byte for byte.
#include "tests/relay_golden.h"

#include <gtest/gtest.h>

#include "tests/hex.h"
#include "worker/relay/codec.h"

namespace baton::worker {
namespace {

using std::chrono::milliseconds;

TEST(RelayGolden, AnAttach) {
  v1::Attach attach;
  ASSERT_TRUE(attach.ParseFromString(Unhex(golden::Attach())));
  const TimePoint now{};
  const absl::StatusOr<engine::Request> r = DecodeAttach(attach, {.vocab_size = 1 << 21}, 42, now);
  ASSERT_TRUE(r.ok()) << r.status();
  EXPECT_EQ(r->tokens, (std::vector<int32_t>{5, 6, 1 << 20, 40, 41}));
  EXPECT_EQ(r->prompt_len, 3);
  EXPECT_EQ(r->sequence_index, 2u);
  EXPECT_EQ(r->priority, -4);
  EXPECT_EQ(r->deadline, now + milliseconds(1500));
  EXPECT_EQ(r->cache_salt, "tenant");
  EXPECT_EQ(r->credit, 5 + 512);
  const engine::SamplingParams& s = r->sampling;
  EXPECT_EQ(s.temperature, 0.5f);
  EXPECT_EQ(s.top_k, 7);
  EXPECT_EQ(s.top_p, 0.25f);
  EXPECT_EQ(s.min_p, 0.125f);
  EXPECT_EQ(s.repetition_penalty, 1.5f);
  EXPECT_EQ(s.presence_penalty, -1.0f);
  EXPECT_EQ(s.frequency_penalty, 2.0f);
  EXPECT_EQ(s.logit_bias, (std::vector<std::pair<int32_t, float>>{{9, -3.0f}}));
  EXPECT_EQ(s.allowed_token_ids, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(s.stop_token_ids, (std::vector<int32_t>{3, 300}));
  EXPECT_EQ(s.eos_token_ids, (std::vector<int32_t>{2, 3}));
  EXPECT_TRUE(s.ignore_eos);
  EXPECT_EQ(s.min_tokens, 1);
  EXPECT_EQ(s.max_tokens, 30);
  EXPECT_EQ(s.seed, 0xfedcba9876543210u);
  EXPECT_EQ(s.n, 1) << "of the two, the one choice that is named";
  EXPECT_EQ(s.logprobs, 2);
  EXPECT_EQ(s.prompt_logprobs, -1);
  EXPECT_EQ(attach.first(0).token_id(), 7);
  EXPECT_EQ(attach.first(1).finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(attach.lease_ms(), 4000u);
  EXPECT_EQ(attach.ticket(), "T");
  EXPECT_EQ(attach.key().epoch(), 4u);
}

TEST(RelayGolden, ARoutersMessagesAboutALeg) {
  v1::RelayCancel cancel;
  ASSERT_TRUE(cancel.ParseFromString(Unhex(golden::kCancelAttached)));
  EXPECT_EQ(cancel.request_id(), "r#2");
  EXPECT_EQ(cancel.attach_gen(), 5u);
  EXPECT_TRUE(cancel.has_index()) << "choice 0 is not all choices";
  v1::Credit credit;
  ASSERT_TRUE(credit.ParseFromString(Unhex(golden::kCredit)));
  EXPECT_EQ(credit.index(), 2u);
  EXPECT_EQ(credit.tokens(), 256u);
  v1::Renewal renewal;
  ASSERT_TRUE(renewal.ParseFromString(Unhex(golden::kRenewal)));
  EXPECT_EQ(renewal.key().attempt(), 3u);
  EXPECT_EQ(renewal.key().epoch(), 4u);
  EXPECT_EQ(renewal.attach_gen(), 5u);
}

kernels::SampleResult Scored() {
  kernels::SampleResult result;
  result.token = 40;
  result.chosen = {40, -0.5f, 1};
  result.top = {{40, -0.5f, 1}, {9, -1.5f, 2}};
  return result;
}

TEST(RelayGolden, NewsOfAChoice) {
  engine::SequenceOutput out;
  out.sequence_index = 2;
  out.position = 6;
  out.tokens = {Scored(), {}};
  out.tokens[1].token = 300;
  out.tokens[1].chosen = {300, -0.25f, 1};
  out.finish = engine::FinishReason::kStop;
  out.stop_token = 300;
  out.timings = {milliseconds(1), milliseconds(2), milliseconds(7)};
  EXPECT_EQ(Hex(EncodeOutput(out).SerializeAsString()), golden::kEntry);
}

TEST(RelayGolden, AChoiceThatEndsSinceNothingIsAllowed) {
  engine::SequenceOutput out;
  out.sequence_index = 1;
  out.position = 3;
  out.finish = engine::FinishReason::kStop;
  out.nothing_allowed = true;
  out.timings = {milliseconds(1), milliseconds(2), milliseconds(7)};
  EXPECT_EQ(Hex(EncodeOutput(out).SerializeAsString()), golden::kNothingAllowedEntry);
}

TEST(RelayGolden, AnErrorAndPromptScores) {
  engine::SequenceOutput out;
  out.position = 3;
  out.finish = engine::FinishReason::kError;
  out.error = absl::DeadlineExceededError("late");
  out.timings = {milliseconds(1), milliseconds(2), milliseconds(7)};
  EXPECT_EQ(Hex(EncodeOutput(out).SerializeAsString()), golden::kErrorEntry);
  const std::vector<std::string> pieces = EncodePromptLogprobs({Scored(), Scored()}, 1 << 16);
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(Hex(pieces[0]), absl::StrCat(golden::kScores, golden::kScores));
}

}  // namespace
}  // namespace baton::worker
