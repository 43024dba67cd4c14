// RankGroup by NCCL: it moves the bytes, and a kernel of ours adds them up, in an order that no number of ranks
// changes.
//
// A sum of few floats is gathered whole by every rank, and added by each: one round. A larger one is cut into one share
// per rank, which that rank gathers and adds, and the sums are gathered: two rounds, 2/ranks of the bytes. Both add the
// same tree.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device_rooms.h"
#include "kernels/rank_group.h"
#include "kernels/runtime/nccl.h"
#include "kernels/runtime/runtime.h"

namespace baton::cuda {

/// Sums of up to so many floats are gathered whole: 256 KiB per rank. Where two rounds are faster has not been
/// measured.
constexpr int64_t kWholeSumFloats = kernels::device_sizes::kWholeSumFloats;

/// Sums of up to `one_shot_bytes`, where all ranks reach each other's memory, do not take NCCL (peer_sums.h); 0: none.
/// Waits for all ranks. Calls go to `stream`, which outlives the group. `forget_records` drops the graphs that have
/// calls of the group in them: NCCL gives nothing back before. FailedPrecondition: two ranks have one GPU, or GPUs of
/// two kinds, or they are too many. Internal: NCCL's error.
absl::StatusOr<std::shared_ptr<kernels::RankGroup>> JoinNcclGroup(const gpu::NcclApi& api, gpu::Stream& stream,
                                                                  const kernels::GroupSeat& seat,
                                                                  int64_t one_shot_bytes,
                                                                  std::function<void()> forget_records);

}  // namespace baton::cuda
