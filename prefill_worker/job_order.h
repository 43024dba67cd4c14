// What a prefill leg is asked to do, and the plan that comes of it. Values; any thread.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "engine/step/request.h"
#include "kvtransfer/transfer_plan.h"
#include "kvtransfer/transports/rank_addresses.h"
#include "prefill_worker/handoff/events.h"

namespace baton::prefill_worker {

struct JobOrder {
  prefill::JobKey key;
  engine::Request request;
  std::string landing_address;  ///< RankAddresses
  TicketId ticket = 0;
  TicketSecret secret{};
  KvSide target;
  int32_t cached_tokens = 0;  ///< on decode; nothing below travels
  int piece_tokens = 0;
  uint64_t slot_bytes = 0;
  Duration expiry{};
  Duration lease{};  ///< cancelled when it is not answered and was not renewed for so long; 0: never
};

/// The lanes of a leg, and where they lead.
struct JobPlan {
  std::shared_ptr<const TransferPlan> plan;
  RankAddresses addresses;  ///< of the decode worker: one for each of its ranks
};

/// From `ours` to the order's target. InvalidArgument with the numbers: what is said of the decode worker, or of the
/// tokens that it has, cannot be.
absl::StatusOr<JobPlan> PlanJob(const KvSide& ours, const JobOrder& order);

}  // namespace baton::prefill_worker
