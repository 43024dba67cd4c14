// Host memory for weights and KV: zeroed, page-aligned, huge pages where the kernel gives them.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/ops.h"

namespace baton::kernels::cpu {

/// ResourceExhausted, with both numbers, when `bytes` is more than the machine (or its control group) has available.
absl::StatusOr<std::unique_ptr<Buffer>> AllocateHost(size_t bytes);

}  // namespace baton::kernels::cpu
