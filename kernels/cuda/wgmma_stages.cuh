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

/// One thread: stage after stage, as they become empty. load_w(i, s) announces what stage s gets of step i and asks for
/// the weights, load_x(i, s) asks for the rest. Weights are nobody's output: the first ones before the wait.
template <int kStages, typename LoadW, typename LoadX>
PX_DEVICE void FeedWeightsFirst(uint64_t (&empty)[kStages], int steps, LoadW&& load_w, LoadX&& load_x) {
  const int first = steps < kStages ? steps : kStages;
  for (int i = 0; i < first; ++i) load_w(i, i);
  px::GridDependencyWait();
  for (int i = 0; i < first; ++i) load_x(i, i);
  for (int i = first; i < steps; ++i) {
    const int s = i % kStages;
    px::MbarrierWait(&empty[s], (i / kStages - 1) & 1);
    load_w(i, s);
    load_x(i, s);
  }
}

#endif

}  // namespace baton::cuda
