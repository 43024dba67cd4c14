// What a prefill worker understands of a router's PrefillRequest, with the decode worker's grant in it.
#include <gtest/gtest.h>

#include "prefill_worker/leg_codec.h"
#include "tests/hex.h"
#include "tests/relay_golden.h"

namespace baton::prefill_worker {
namespace {

TEST(RelayGolden, APrefillRequest) {
  v1::PrefillRequest request;
  ASSERT_TRUE(request.ParseFromString(Unhex(golden::PrefillRequest())));
  const absl::StatusOr<JobOrder> order = DecodeOrder(request, {.vocab_size = 1 << 21}, TimePoint{});
  ASSERT_TRUE(order.ok()) << order.status();
  EXPECT_EQ(order->key.request_id, "r");
  EXPECT_EQ(order->key.attempt, 3u);
  EXPECT_EQ(order->key.epoch, 4u);
  EXPECT_EQ(order->request.tokens, (std::vector<int32_t>{5, 6, 1 << 20}));
  EXPECT_EQ(order->request.sampling.seed, 0xfedcba9876543210u);
  EXPECT_EQ(order->ticket, 0x1234567890abcdefu);
  EXPECT_EQ(order->landing_address, "here");
  ASSERT_EQ(order->target.layout.groups.size(), 2u);
  EXPECT_EQ(order->target.layout.groups[0].window_tokens, 512);
  EXPECT_EQ(order->target.tensor_parallel_size, 2);
  EXPECT_EQ(order->target.stage_layers, (std::vector<int>{0, 3}));
  EXPECT_EQ(order->cached_tokens, 16);
  EXPECT_EQ(order->piece_tokens, 64);
  EXPECT_EQ(order->slot_bytes, 1u << 20);
  EXPECT_EQ(order->expiry, std::chrono::milliseconds(1500)) << "the deadline, which is sooner than the ticket's 2500";
  EXPECT_EQ(order->lease, std::chrono::milliseconds(4000));
}

struct KeptReplies final : worker::PrefillSink {
  void Send(v1::PrefillReply reply) override { replies.push_back(std::move(reply)); }
  void Finish(const absl::Status& status) override { end = status; }
  std::vector<v1::PrefillReply> replies;
  absl::Status end = absl::InternalError("it has not ended");
};

TEST(RelayGolden, ALegWhoseChoiceMayNotEvenBegin) {
  const auto sink = std::make_shared<KeptReplies>();
  engine::SequenceOutput output;
  output.position = 3;
  output.finish = engine::FinishReason::kStop;
  output.nothing_allowed = true;
  MakeLegAnswer(sink)->OnEnd(absl::OkStatus(), false, {output});
  EXPECT_TRUE(sink->end.ok());
  ASSERT_EQ(sink->replies.size(), 1u);
  EXPECT_EQ(Hex(sink->replies[0].SerializeAsString()), golden::kNothingAllowedLeg);
}

}  // namespace
}  // namespace baton::prefill_worker
