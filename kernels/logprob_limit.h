// How many log-probabilities beside a drawn token one row can have: what a device's kernels keep for each row.
#pragma once

#include <cstdint>

namespace baton::kernels {

/// On a CPU there is no limit.
inline constexpr int32_t kMostCudaLogprobs = 128;

}  // namespace baton::kernels
