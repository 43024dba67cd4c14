// What a router says to workers, byte for byte, and what it understands of their bytes.
#include "tests/relay_golden.h"

#include <gtest/gtest.h>

#include "router/fleet/attach_codec.h"
#include "router/fleet/prompt_logprobs.h"
#include "router/fleet/relay_codec.h"
#include "router/fleet/watch_codec.h"
#include "router/grpc/generate_codec.h"
#include "tests/hex.h"

namespace baton::router {
namespace {

template <class M>
std::string Bytes(const M& message) {
  return Hex(message.SerializeAsString());
}

TokenizedRequest GoldenRequest() {
  TokenizedRequest g;
  g.request_id = "r";
  g.prompt = {5, 6, 1 << 20};
  SamplingOptions& s = g.sampling;
  s.temperature = 0.5F, s.top_k = 7, s.top_p = 0.25F, s.min_p = 0.125F;
  s.repetition_penalty = 1.5F, s.presence_penalty = -1.0F, s.frequency_penalty = 2.0F;
  s.logit_bias = {{9, -3.0F}};
  s.allowed_token_ids = {1, 2};
  s.stop_token_ids = {3, 300};
  s.ignore_eos = true;
  s.min_tokens = 1, s.max_tokens = 30;
  s.seed = 0xfedcba9876543210u;
  s.n = 2;
  s.logprobs = 2;
  g.eos_token_ids = {2, 3};
  g.priority = -4;
  g.cache_salt = "tenant";
  return g;
}

TEST(RelayGolden, AnAttach) {
  const TokenizedRequest g = GoldenRequest();
  const std::vector<int32_t> output = {40, 41};
  const TicketGrant grant{"", "T", 0};
  AttachLeg leg{.leg_id = "r#2", .attempt = 3, .attach_gen = 5, .choices = {2}, .position = 6, .output = &output};
  leg.credit_tokens = 512, leg.deadline_ms = 1500, leg.grant = &grant, leg.epoch = 4;
  leg.first = {{.index = 1, .token_id = 7}, {.index = 2, .token_id = 8, .finish = FinishReason::kLength}};
  const std::string expected = golden::Attach();
  EXPECT_EQ(Bytes(EncodeAttach(g, leg)), expected);
  const std::string bytes(
      AttachEntry(g, leg, true));  // the way that sends it: tag and length of RelayUp.attach before it
  v1::RelayUp up;
  ASSERT_TRUE(up.ParseFromString(bytes));
  ASSERT_EQ(up.attach_size(), 1);
  EXPECT_EQ(Bytes(up.attach(0)), expected);
  EXPECT_EQ(Hex(bytes.substr(0, 1)), "0a");
}

TEST(RelayGolden, AWatch) {
  using std::chrono::milliseconds;
  EXPECT_EQ(Bytes(EncodeWatch("r1", {milliseconds(100), milliseconds(600)})), golden::kWatch);
  EXPECT_EQ(Bytes(EncodeWatch("r1", {milliseconds(250), {}})), golden::kWatchOfOldRouter);
}

TEST(RelayGolden, TheLegsOfAHandoff) {
  const TokenizedRequest g = GoldenRequest();
  EXPECT_EQ(Bytes(EncodeReserve(g, {{"r", 3, 0}, 2500})), golden::kReserve);
  v1::ReserveReply reply;
  ASSERT_TRUE(reply.ParseFromString(Unhex(golden::kReserved)));
  const ReserveResult granted = DecodeReserve(reply);
  ASSERT_TRUE(granted.status.ok());
  EXPECT_EQ(Hex(granted.grant.wire), golden::kReserved) << "the prefill worker gets the reply as it came";
  EXPECT_EQ(Hex(granted.grant.ticket), golden::kTicket);
  EXPECT_EQ(granted.grant.cached_tokens, 16u);
  EXPECT_EQ(Bytes(EncodePrefill(g, {{"r", 3, 4}, &granted.grant, 1500})), golden::PrefillRequest());
  EXPECT_EQ(Bytes(EncodeCancel(CancelLeg{{"r", 3, 4}, true})), golden::kCancelLeg);
}

TEST(RelayGolden, CancelCreditAndRenewal) {
  EXPECT_EQ(Bytes(EncodeCancel(CancelAttached{"r#2", 5, 0})), golden::kCancelAttached);
  EXPECT_EQ(Bytes(EncodeCredit({"r#2", 5, 2, 256})), golden::kCredit);
  EXPECT_EQ(Bytes(EncodeRenewal({{"r", 3, 4}, 5})), golden::kRenewal);
}

TEST(WatchCodec, BytesBehindTheLastWholeHashAreCounted) {
  v1::WorkerEvent event;
  for (const size_t bytes : {32u, 33u, 47u}) {
    const std::string hashes(bytes, 'h');
    for (int kind = 0; kind < 3; ++kind) {
      if (kind == 0) event.mutable_snapshot()->set_hashes(hashes);
      if (kind == 1) event.mutable_stored()->set_hashes(hashes);
      if (kind == 2) event.mutable_removed()->set_hashes(hashes);
      EXPECT_EQ(DecodeEvent(event).keys.size(), 2u);
      EXPECT_EQ(DecodeEvent(event).stray_bytes, bytes % 16);
    }
  }
}

TEST(RelayGolden, NewsOfAChoice) {
  v1::RelayEntry entry;
  ASSERT_TRUE(entry.ParseFromString(Unhex(golden::kEntry)));
  const RelayNews news = DecodeNews(std::move(entry));
  EXPECT_EQ(news.index, 2u);
  EXPECT_EQ(news.position, 6u);
  EXPECT_EQ(news.token_ids, (std::vector<int32_t>{40, 300}));
  ASSERT_EQ(news.logprobs.size(), 2u);
  ASSERT_EQ(news.logprobs[0].top.size(), 2u);
  EXPECT_EQ(news.logprobs[0].top[1].token_id, 9);
  EXPECT_EQ(news.logprobs[0].top[1].logprob, -1.5F);
  EXPECT_EQ(news.logprobs[0].top[1].rank, 2);
  EXPECT_EQ(news.logprobs[1].chosen.token_id, 300);
  EXPECT_EQ(news.finish, FinishReason::kStop);
  EXPECT_EQ(news.stop_token_id, 300);
  ASSERT_TRUE(news.timings.has_value());
  EXPECT_EQ(news.timings->queue_prefill_ms, 1);
  EXPECT_EQ(news.timings->prefill_ms, 2);
  EXPECT_EQ(news.timings->decode_ms, 4);
}

TEST(RelayGolden, AChoiceThatEndsSinceNothingIsAllowed) {
  v1::RelayEntry entry;
  ASSERT_TRUE(entry.ParseFromString(Unhex(golden::kNothingAllowedEntry)));
  const RelayNews news = DecodeNews(std::move(entry));
  EXPECT_EQ(news.index, 1u);
  EXPECT_TRUE(news.token_ids.empty());
  EXPECT_EQ(news.finish, FinishReason::kStop);
  EXPECT_TRUE(news.nothing_allowed);
  v1::PrefillReply reply;
  ASSERT_TRUE(reply.ParseFromString(Unhex(golden::kNothingAllowedLeg)));
  const PrefillResult leg = DecodePrefill(reply);
  ASSERT_EQ(leg.first.size(), 1u);
  EXPECT_EQ(leg.first[0].finish, FinishReason::kStop);
  EXPECT_TRUE(leg.first[0].nothing_allowed);
  v1::GenerateChunk chunk;
  EncodeFinish({.index = 1, .reason = FinishReason::kStop, .nothing_allowed = true}, &chunk);
  EXPECT_EQ(Bytes(chunk), "100138016801") << "choice 1, finish: stop, nothing_allowed";
}

TEST(RelayGolden, AnErrorAndPromptScores) {
  v1::RelayEntry entry;
  ASSERT_TRUE(entry.ParseFromString(Unhex(golden::kErrorEntry)));
  const RelayNews news = DecodeNews(std::move(entry));
  EXPECT_EQ(news.finish, FinishReason::kError);
  EXPECT_EQ(news.error, absl::DeadlineExceededError("late"));
  EXPECT_EQ(news.position, 3u);
  const std::vector<PositionLogprobs> scores = DecodePromptLogprobs(Unhex(golden::kScores) + Unhex(golden::kScores));
  ASSERT_EQ(scores.size(), 2u) << "pieces are joined by standing one behind the other";
  EXPECT_EQ(scores[1].chosen.token_id, 40);
}

}  // namespace
}  // namespace baton::router
