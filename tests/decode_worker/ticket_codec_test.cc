// What of a Reserve is refused before a ticket is thought of.
#include "decode_worker/ticket_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "proto/order_limits.h"

namespace baton::decode_worker {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

v1::ReserveRequest Longest() {
  v1::ReserveRequest in;
  in.mutable_key()->set_request_id("r");
  in.set_prompt_len(20);
  in.set_expiry_ms(kMostExpiryMs);
  in.set_lease_ms(kMostLeaseMs);
  return in;
}

std::string Refusal(const v1::ReserveRequest& in) {
  const absl::StatusOr<decode::ReserveOrder> order = DecodeReserve(in);
  EXPECT_EQ(order.status().code(), absl::StatusCode::kInvalidArgument) << order.status();
  return std::string(order.status().message());
}

TEST(TicketCodec, ATicketLivesAnHourUnattachedAtMost) {
  v1::ReserveRequest in = Longest();
  const absl::StatusOr<decode::ReserveOrder> order = DecodeReserve(in);
  ASSERT_TRUE(order.ok()) << order.status();
  EXPECT_EQ(order->expiry, std::chrono::hours(1));
  EXPECT_EQ(order->lease, std::chrono::minutes(1));
  in.set_expiry_ms(kMostExpiryMs + 1);
  EXPECT_THAT(Refusal(in), AllOf(HasSubstr("expiry_ms is 3600001"), HasSubstr("at most 3600000")));
  in.set_expiry_ms(4294967295u);
  EXPECT_THAT(Refusal(in), AllOf(HasSubstr("expiry_ms is 4294967295"), HasSubstr("at most 3600000")));
}

TEST(TicketCodec, ALeaseIsAMinuteAtMost) {
  v1::ReserveRequest in = Longest();
  in.set_lease_ms(kMostLeaseMs + 1);
  EXPECT_THAT(Refusal(in), AllOf(HasSubstr("lease_ms is 60001"), HasSubstr("at most 60000")));
}

TEST(TicketCodec, NamesHaveALength) {
  v1::ReserveRequest in = Longest();
  in.mutable_key()->set_request_id(std::string(kMostIdBytes, 'r'));
  in.set_cache_salt(std::string(kMostSaltBytes, 's'));
  in.set_router_session(std::string(kMostIdBytes, 't'));
  ASSERT_TRUE(DecodeReserve(in).ok());
  in.set_router_session(std::string(kMostIdBytes + 1, 't'));
  EXPECT_THAT(Refusal(in), AllOf(HasSubstr("router_session is 257"), HasSubstr("at most 256")));
  in.set_cache_salt(std::string(kMostSaltBytes + 1, 's'));
  EXPECT_THAT(Refusal(in), AllOf(HasSubstr("cache_salt is 1025"), HasSubstr("at most 1024")));
  in.mutable_key()->set_request_id(std::string(8 << 20, 'r'));
  EXPECT_THAT(Refusal(in), AllOf(HasSubstr("request_id is 8388608"), HasSubstr("at most 256")));
}

TEST(TicketCodec, APromptLongerThanAnyIsNotCountedBackwards) {
  v1::ReserveRequest in = Longest();
  in.set_prompt_len(4294967295u);
  EXPECT_THAT(Refusal(in), AllOf(HasSubstr("prompt_len is 4294967295"), HasSubstr("at most 2147483647")));
}

TEST(TicketCodec, ARefusalForWantOfRoomSaysWhenToAskAgain) {
  const auto nack = [](const absl::Status& status, int wait_ms) {
    return EncodeReserved({.status = status}, {}, {}, std::chrono::milliseconds(wait_ms)).nack();
  };
  const absl::Status full = absl::ResourceExhaustedError("need 4 KV blocks of group 0, 1 free");
  EXPECT_EQ(nack(full, 250).retry_after_ms(), 250u);
  EXPECT_EQ(nack(full, 0).retry_after_ms(), 100u) << "nobody is asked again at once";
  EXPECT_EQ(nack(full, 0).queue_ms(), 0u);
  EXPECT_EQ(nack(absl::InvalidArgumentError("no prompt"), 250).retry_after_ms(), 0u) << "asking again would not help";
}

TEST(TicketCodec, ATicketOfWhichNoTimeIsSaidLivesAMinuteUnattached) {
  v1::ReserveRequest in = Longest();
  in.set_expiry_ms(0);
  EXPECT_EQ(DecodeReserve(in)->expiry, std::chrono::minutes(1));
}

TEST(TicketCodec, EveryFigureOfTicketsHasItsFieldInTheLoad) {
  v1::HandoffLoad load;
  FillTicketLoad({.reserved_tokens = 1,
                  .tickets = 2,
                  .granted_slots = 3,
                  .quarantined_slots = 4,
                  .free_slots = 5,
                  .lanes_failed = 6,
                  .recomputes = 7,
                  .opens_refused = 8,
                  .memories_written_off = 9},
                 /*reserves_refused=*/10, load);
  EXPECT_EQ(load.reserved_tokens(), 1);
  EXPECT_EQ(load.tickets(), 2);
  EXPECT_EQ(load.granted_slots(), 3);
  EXPECT_EQ(load.quarantined_slots(), 4);
  EXPECT_EQ(load.free_slots(), 5);
  EXPECT_EQ(load.lanes_failed(), 6);
  EXPECT_EQ(load.recomputes(), 7);
  EXPECT_EQ(load.opens_refused(), 8);
  EXPECT_EQ(load.rings_written_off(), 9);
  EXPECT_EQ(load.reserves_refused(), 10);
}

}  // namespace
}  // namespace baton::decode_worker
