// A ticket on the wire: what Reserve asks, and its answer.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "decode_worker/landing.h"
#include "decode_worker/ticket_desk.h"
#include "proto/worker.pb.h"

namespace baton::decode_worker {

/// `router`: who asks. InvalidArgument with the number: bytes that are no whole token ids.
absl::StatusOr<decode::ReserveOrder> DecodeReserve(const v1::ReserveRequest& in, const std::string& router = {});
/// Of the ticket of that router.
decode::TicketKey KeyOf(const v1::RequestKey& in, const std::string& router);
/// InvalidArgument with the numbers: no prompt of this worker's model has so many tokens, or not so many were sent.
absl::Status CheckReserve(const decode::ReserveOrder& order, int32_t max_model_len);
/// Null: the answer has none.
std::shared_ptr<const Grammar> GrammarOf(const v1::ReserveRequest& in);

/// `wait`: predicted, until a request that comes now starts; told with a refusal.
v1::ReserveReply EncodeReserved(const decode::ReserveAnswer& from, const DeskFacts& facts, const LandingWays& ways,
                                Duration wait);

/// What its tickets and slots are, in a load.
void FillTicketLoad(const decode::HandoffStats& stats, int64_t reserves_refused, v1::HandoffLoad& load);

}  // namespace baton::decode_worker
