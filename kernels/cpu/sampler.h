// One row of logits becomes a token, as SampleRow says. The draw is Gumbel's: the kept token with the greatest
// logit / temperature + g, where g comes from the Philox word of (seed, sequence, position, token id). It needs no sum
// in any order, so a last-bit difference in one logit cannot move the choice between two others.
#pragma once

#include <span>
#include <vector>

#include "kernels/cpu/isa/kernel_table.h"
#include "kernels/ops.h"

namespace baton::kernels::cpu {

/// Reused scratch of one thread.
struct SamplerScratch {
  std::vector<float> row;                             ///< a copy when the caller's row must stay
  std::vector<std::pair<float, int32_t>> candidates;  ///< (logit, token)
  std::vector<int32_t> tokens;
};

/// Edits `logits` [vocab] in place.
SampleResult SampleToken(const KernelTable& kernels, std::span<float> logits, const SampleRow& row,
                         SamplerScratch& scratch);

/// Log-softmax of `target` with its rank, and the k best; logits stay.
SampleResult LogprobsOf(const KernelTable& kernels, std::span<const float> logits, int32_t target, int32_t k,
                        SamplerScratch& scratch);

}  // namespace baton::kernels::cpu
