#include "prefill_worker/leg_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvtransfer/layout_codec.h"
#include "proto/order_limits.h"

namespace baton::prefill_worker {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

v1::PrefillRequest MakeLeg(uint32_t expiry_ms, uint32_t deadline_ms) {
  const KvLayout layout{{{.layers = {0},
                          .planes = {{KvPlane::Name::kK, DType::kF32, 2, 8}, {KvPlane::Name::kV, DType::kF32, 2, 8}},
                          .tokens_per_block = 16}}};
  v1::PrefillRequest leg;
  leg.mutable_key()->set_request_id("r");
  leg.mutable_key()->set_epoch(2);
  leg.set_prompt_token_ids(std::string(4 * 4, '\0'));
  leg.set_prompt_len(4);
  leg.mutable_sampling()->set_max_tokens(1);
  leg.set_deadline_ms(deadline_ms);
  v1::Ticket ticket;
  ticket.set_id(7);
  leg.mutable_ticket()->set_ticket(ticket.SerializeAsString());
  leg.mutable_ticket()->set_expiry_ms(expiry_ms);
  *leg.mutable_ticket()->mutable_kv_layout() = EncodeLayout(layout);
  leg.mutable_ticket()->set_tensor_parallel_size(1);
  leg.mutable_ticket()->add_stage_layers(0);
  leg.mutable_ticket()->add_stage_layers(1);
  return leg;
}

TEST(LegCodec, AWriterStopsByTheRequestsDeadlineThoughItsTicketWasReservedEarlier) {
  const auto expiry = [](uint32_t expiry_ms, uint32_t deadline_ms) {
    const auto order = DecodeOrder(MakeLeg(expiry_ms, deadline_ms), {.vocab_size = 10}, TimePoint{});
    EXPECT_TRUE(order.ok()) << order.status();
    return order.ok() ? order->expiry : Duration{};
  };
  EXPECT_EQ(expiry(10000, 10000), milliseconds(10000)) << "the first leg, sent at once";
  EXPECT_EQ(expiry(10000, 4000), milliseconds(4000)) << "6 s later, after another leg or a queue";
  EXPECT_EQ(expiry(10000, 0), milliseconds(10000)) << "no deadline: the reservation's";
  EXPECT_EQ(expiry(3000, 4000), milliseconds(3000));
}

TEST(LegCodec, NoTimeIsLongerThanItMayBe) {
  const auto refusal = [](const v1::PrefillRequest& leg) {
    const auto order = DecodeOrder(leg, {.vocab_size = 10}, TimePoint{});
    EXPECT_EQ(order.status().code(), absl::StatusCode::kInvalidArgument) << order.status();
    return std::string(order.status().message());
  };
  EXPECT_TRUE(DecodeOrder(MakeLeg(kMostExpiryMs, kMostDeadlineMs), {.vocab_size = 10}, TimePoint{}).ok());
  EXPECT_THAT(refusal(MakeLeg(kMostExpiryMs + 1, 0)),
              AllOf(HasSubstr("expiry_ms of the ticket is 3600001"), HasSubstr("at most 3600000")));
  EXPECT_THAT(refusal(MakeLeg(1000, kMostDeadlineMs + 1)),
              AllOf(HasSubstr("deadline_ms is 86400001"), HasSubstr("at most 86400000")));
  v1::PrefillRequest leg = MakeLeg(1000, 1000);
  leg.set_lease_ms(kMostLeaseMs + 1);
  EXPECT_THAT(refusal(leg), AllOf(HasSubstr("lease_ms is 60001"), HasSubstr("at most 60000")));
}

TEST(LegCodec, NamesHaveALength) {
  v1::PrefillRequest leg = MakeLeg(1000, 1000);
  leg.mutable_key()->set_request_id(std::string(kMostIdBytes + 1, 'r'));
  const auto order = DecodeOrder(leg, {.vocab_size = 10}, TimePoint{});
  EXPECT_THAT(std::string(order.status().message()), AllOf(HasSubstr("request_id is 257"), HasSubstr("at most 256")));
}

TEST(LegCodec, APromptMayHaveOutputBehindIt) {
  v1::PrefillRequest leg = MakeLeg(1000, 1000);
  leg.set_prompt_len(3);
  leg.set_output_len_so_far(1);
  leg.mutable_sampling()->set_max_tokens(2);
  const auto order = DecodeOrder(leg, {.vocab_size = 10}, TimePoint{});
  ASSERT_TRUE(order.ok()) << order.status();
  EXPECT_EQ(order->request.prompt_len, 3);
  EXPECT_EQ(order->request.tokens.size(), 4u);
}

TEST(LegCodec, WhatTheRouterSaysOfTheRequestArrives) {
  v1::PrefillRequest leg = MakeLeg(1000, 1000);
  leg.set_canary(true);
  leg.set_priority(-3);
  leg.set_cache_salt("salt");
  const auto order = DecodeOrder(leg, {.vocab_size = 10}, TimePoint{});
  ASSERT_TRUE(order.ok()) << order.status();
  EXPECT_TRUE(order->request.canary);
  EXPECT_EQ(order->request.priority, -3);
  EXPECT_EQ(order->request.cache_salt, "salt");
}

TEST(LegCodec, EveryFigureOfLegsHasItsFieldInTheLoad) {
  const prefill::PushStats stats{
      .jobs = 3, .resent_segments = 4, .source_mismatches = 5, .unclean_closes = 6, .no_room = 7};
  v1::HandoffLoad load;
  FillLegLoad(stats, /*computing=*/2, load);
  EXPECT_EQ(load.jobs(), 3) << "some are computed and not sent yet";
  EXPECT_EQ(load.resent_segments(), 4);
  EXPECT_EQ(load.source_digest_mismatches(), 5);
  EXPECT_EQ(load.unclean_closes(), 6);
  EXPECT_EQ(load.no_room(), 7);
  FillLegLoad(stats, /*computing=*/8, load);
  EXPECT_EQ(load.jobs(), 8) << "some begin to be sent when they are computed";
}

}  // namespace
}  // namespace baton::prefill_worker
