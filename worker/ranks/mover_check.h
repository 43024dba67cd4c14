// The self-test of a device's KvMover: known bytes go from blocks to the staging memory and back, with their digests,
// and from blocks to blocks through outbox and inbox, where there are any. A worker whose GPU moves KV wrongly, or
// whose pinned memory is not what it says, does not start.
#pragma once

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/kv_mover.h"
#include "kernels/ops.h"

namespace baton::worker {

struct MoverRates {
  double gather_gigabytes_per_second = 0, scatter_gigabytes_per_second = 0;  ///< of the staging memory filled once
  double lent_gigabytes_per_second = 0;  ///< from outbox to blocks, through the inbox
};

/// Vectors of `dim` elements of type `kv`. Takes device memory of the staging memory's size and gives it back.
/// ResourceExhausted: too little of it; DataLoss: what was not moved as it should be.
absl::StatusOr<MoverRates> CheckMover(kernels::Ops& ops, KvMover& mover, DType kv, int dim, const Clock& clock);

}  // namespace baton::worker
