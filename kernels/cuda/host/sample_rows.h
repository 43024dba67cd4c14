// SampleRows of ops.h in the sampler kernel's form: distinct tokens, one mask per row, everything in three arrays.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kernels/cuda/host/pinned_memory.h"
#include "kernels/cuda/host/scratch.h"
#include "kernels/cuda/rows/sampler.cuh"
#include "kernels/device_rooms.h"

namespace baton::cuda {

struct SampleLists {
  std::vector<SampleRowParams> rows;
  std::vector<ListEntry> entries;
  std::vector<uint32_t> masks;
  /// But for the rows.
  size_t bytes() const { return entries.size() * sizeof(ListEntry) + masks.size() * sizeof(uint32_t); }
  /// Entries and masks lie behind so many others.
  void MoveBy(size_t entries_before, size_t masks_before);
};
/// What was sent with a step's inputs.
struct SampleInputs {
  const int32_t* step_tokens = nullptr;   ///< of SampleRow::unread_row; null: there was no step
  const SampleRowParams* rows = nullptr;  ///< null: they were not sent
  const char* lists = nullptr;            ///< where the entries and the masks of `rows` are counted from
};

/// Tokens outside of the vocabulary are left out; biases of one token are summed.
SampleLists PlanSample(std::span<const kernels::SampleRow> rows, int vocab);

/// Runs the sampler over logits [rows, vocab] (edited in place) and waits for the results: all rows at once, or as many
/// at a time as `work_bytes` hold, one at least.
std::vector<kernels::SampleResult> RunSample(gpu::Stream& stream, Scratch& scratch, const kernels::Tensor& logits,
                                             std::span<const kernels::SampleRow> rows, const int32_t* step_tokens,
                                             size_t work_bytes);
/// The same for the log-probabilities of given tokens and of the `k` best.
std::vector<kernels::SampleResult> RunLogprobs(gpu::Stream& stream, Scratch& scratch, const kernels::Tensor& logits,
                                               std::span<const int32_t> targets, int32_t k, size_t work_bytes);

/// Whether `work_bytes` hold all of them at once.
bool FitOneLaunch(std::span<const kernels::SampleRow> rows, int vocab, size_t work_bytes);

/// Where the results of one launch wait for the host.
struct DrawSlot {
  /// ResourceExhausted with the number.
  absl::Status Reserve(const gpu::Stream& stream, int64_t rows);
  std::unique_ptr<Pinned> results;
  bool taken = true;
  int64_t waits = 0;  ///< of the host for results
};

/// Launches the sampler over logits [rows, vocab] (edited in place); the results come into `slot`. `drawn` [rows] gets
/// the tokens.
std::unique_ptr<kernels::Draw> BeginSample(gpu::Stream& stream, Scratch& scratch, const kernels::Tensor& logits,
                                           SampleLists lists, const SampleInputs& sent, int32_t* drawn, DrawSlot& slot);

/// What a row of a recorded step is given that draws nothing: token 0 without a look at its logits.
SampleRowParams DrawsNothing();
/// Logits of a recorded step.
struct RecordedShape {
  int64_t rows = 0, vocab = 0;
};
/// What all rows of a recorded step take of the sampler's memory.
int64_t RecordedSampleBytes(int64_t rows, int64_t vocab);
/// Records the sampler over `logits`, with results at the start of `scratch`, which has room for them: for as many rows
/// where every step sends them. `drawn` [logits.rows()] gets the tokens.
void RecordSample(gpu::Stream& stream, Scratch& scratch, const kernels::Tensor& logits, const SampleInputs& sent,
                  int32_t* drawn);
/// The results of the replay before, for the first rows, which are `rows`, come into `slot`.
std::unique_ptr<kernels::Draw> ReadRecordedSample(gpu::Stream& stream, Scratch& scratch,
                                                  std::vector<SampleRowParams> rows, const RecordedShape& shape,
                                                  DrawSlot& slot);

}  // namespace baton::cuda
