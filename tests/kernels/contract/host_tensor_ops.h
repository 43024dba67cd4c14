// A device's Ops for tests that keep their tensors in the host's memory: what kernels are given is the device's own,
// which the host reaches by copies only.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/host/cuda_ops.h"

namespace baton::kernels {

/// Every tensor and list that a call is given is copied to the device before it. What calls write is copied back by
/// Sync, and is where it is on the device for the calls before that: they follow one another without a wait. Until then
/// the host changes nothing of what it gave, and frees nothing that is written. Sync dies of a call that wrote behind a
/// tensor, or into one that it only reads. Logits of a draw are not copied back. Thread: the test's.
std::unique_ptr<Ops> OnHostTensors(std::unique_ptr<Ops> ops);

/// So CudaOps.
absl::StatusOr<std::unique_ptr<Ops>> MakeHostTensorOps(const CudaOpsConfig& config);

}  // namespace baton::kernels
