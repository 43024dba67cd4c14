// SampleRows of ops.h in the sampler kernel's form: distinct tokens, one mask per row, everything in three arrays.
#pragma once

#include <span>
#include <vector>

#include "kernels/cuda/host/scratch.h"
#include "kernels/cuda/rows/sampler.cuh"
#include "kernels/ops.h"

namespace baton::cuda {

struct SampleLists {
  std::vector<SampleRowParams> rows;
  std::vector<int32_t> tokens;
  std::vector<float> values;  ///< beside `tokens`
  std::vector<uint32_t> masks;
};

/// Tokens outside of the vocabulary are left out; biases of one token are summed.
SampleLists PlanSample(std::span<const kernels::SampleRow> rows, int vocab);

/// Uploads the lists, runs the kernel over logits [rows, vocab] (edited in place) and waits for the results.
std::vector<kernels::SampleResult> RunSample(gpu::Stream& stream, Scratch& scratch, const kernels::Tensor& logits,
                                             const SampleLists& lists);

}  // namespace baton::cuda
