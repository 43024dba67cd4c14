// A step's rows in parts, so that pipeline stages work at the same time: a stage passes one part on and takes up the
// next. A part is a step of its own to attention: what it cuts off a sequence comes as a later part's context.
#pragma once

#include <vector>

#include "engine/model/model.h"

namespace baton::engine {

/// Rows [first, first + rows) of a batch. Block tables are views of the batch's; the rest is its own. Not movable: the
/// groups view it.
struct MicroBatch {
  MicroBatch() = default;
  MicroBatch(const MicroBatch&) = delete;
  MicroBatch& operator=(const MicroBatch&) = delete;

  int64_t first = 0, rows = 0;
  std::vector<int32_t> row_start, context;   ///< as RaggedBatch has them
  std::vector<kernels::RaggedBatch> groups;  ///< per KV group
  std::vector<int32_t> wanted;               ///< of the step's wanted rows, those in here, counted from `first`
  int64_t wanted_before = 0;                 ///< wanted rows in earlier parts
};

/// Even parts, in order. `wanted`: rows of the batch, ascending, each once.
std::vector<std::unique_ptr<MicroBatch>> SplitRows(const ForwardBatch& batch, std::span<const int32_t> wanted,
                                                   int parts);

}  // namespace baton::engine
