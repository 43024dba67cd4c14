// What kernels with wgmma have in common: stages of shared memory that TMA fills and warpgroups empty.
#pragma once

#include <string>

#include "kernels/px/px.h"

namespace baton::cuda {

inline bool HasWgmma(const std::string& architecture) { return architecture == "sm_90" || architecture == "emulated"; }

#if PX_HAS_WGMMA

/// Before anybody waits: `full` is TMA's, `empty` that of `warps` consumers. One thread; the caller's barrier follows.
template <int kStages>
PX_DEVICE void InitStages(uint64_t (&full)[kStages], uint64_t (&empty)[kStages], int warps) {
  for (int s = 0; s < kStages; ++s) {
    px::MbarrierInit(&full[s], 1);
    px::MbarrierInit(&empty[s], warps);
  }
  px::MbarrierFenceInit();
}

#endif

}  // namespace baton::cuda
