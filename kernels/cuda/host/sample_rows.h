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

/// Device memory that `rows` rows need with `work_bytes` at a time: no row needs more than its whole vocabulary in
/// every list, and as many rows run at once as fit.
size_t SampleBytes(int64_t rows, int64_t vocab, size_t work_bytes);

/// Runs the sampler over logits [rows, vocab] (edited in place) and waits for the results: all rows at once, or as many
/// at a time as `work_bytes` hold, one at least.
std::vector<kernels::SampleResult> RunSample(gpu::Stream& stream, Scratch& scratch, const kernels::Tensor& logits,
                                             std::span<const kernels::SampleRow> rows, size_t work_bytes);
/// The same for the log-probabilities of given tokens and of the `k` best.
std::vector<kernels::SampleResult> RunLogprobs(gpu::Stream& stream, Scratch& scratch, const kernels::Tensor& logits,
                                               std::span<const int32_t> targets, int32_t k, size_t work_bytes);

}  // namespace baton::cuda
