#include "engine/model/micro_batch.h"

#include <algorithm>

namespace baton::engine {
namespace {

std::unique_ptr<MicroBatch> Part(const ForwardBatch& batch, std::span<const int32_t> wanted, int64_t first,
                                 int64_t end) {
  const kernels::RaggedBatch& all = batch.groups[0];
  auto part = std::make_unique<MicroBatch>();
  part->first = first;
  part->rows = end - first;
  part->row_start = {0};
  int first_sequence = 0;
  for (int s = 0; s < all.sequences(); ++s) {
    const int64_t from = std::max<int64_t>(first, all.row_start[s]), to = std::min<int64_t>(end, all.row_start[s + 1]);
    if (from >= to) continue;
    if (part->context.empty()) first_sequence = s;
    part->context.push_back(all.context[s] + static_cast<int32_t>(from - all.row_start[s]));
    part->row_start.push_back(static_cast<int32_t>(to - first));
  }
  for (const kernels::RaggedBatch& group : batch.groups) {
    const auto tables = group.block_tables.subspan(static_cast<size_t>(first_sequence * group.table_stride),
                                                   part->context.size() * static_cast<size_t>(group.table_stride));
    part->groups.push_back({part->row_start, part->context, tables, group.table_stride});
  }
  for (const int32_t row : wanted) {
    part->wanted_before += row < first;
    if (row >= first && row < end) part->wanted.push_back(row - static_cast<int32_t>(first));
  }
  return part;
}

}  // namespace

std::vector<std::unique_ptr<MicroBatch>> SplitRows(const ForwardBatch& batch, std::span<const int32_t> wanted,
                                                   int parts) {
  const int64_t rows = batch.groups[0].row_start.back();
  std::vector<std::unique_ptr<MicroBatch>> out;
  for (int64_t p = 0; p < parts; ++p) out.push_back(Part(batch, wanted, rows * p / parts, rows * (p + 1) / parts));
  return out;
}

}  // namespace baton::engine
