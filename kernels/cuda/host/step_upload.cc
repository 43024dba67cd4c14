#include "kernels/cuda/host/step_upload.h"

#include <algorithm>

namespace baton::cuda {

static_assert(kernels::device_sizes::kGroupRows == kRowsPerWarp && kernels::device_sizes::kTileTokens == kTileTokens &&
              kernels::device_sizes::kPrefillRows == kPrefillRows &&
              kernels::device_sizes::kPrefillTile == sizeof(PrefillTile) &&
              kernels::device_sizes::kDecodeGroup == sizeof(DecodeGroup) &&
              kernels::device_sizes::kDecodeItem == sizeof(DecodeItem));

bool StepUpload::Holds(const kernels::RaggedBatch& b, int tokens_per_block) const {
  return table_stride_ == b.table_stride && tokens_per_block_ == tokens_per_block &&
         std::ranges::equal(row_start_, b.row_start) && std::ranges::equal(context_, b.context) &&
         std::ranges::equal(tables_, b.block_tables);
}

const StepOnDevice& StepUpload::Get(const kernels::RaggedBatch& b, int tokens_per_block) {
  if (Holds(b, tokens_per_block)) return step_;
  StepPacker packer;
  Pack(b, tokens_per_block, b.sequences(), packer);
  Bind(arrays_.Upload(packer.bytes()));
  return step_;
}

void StepUpload::Pack(const kernels::RaggedBatch& b, int tokens_per_block, int sequences, StepPacker& packer) {
  row_start_.assign(b.row_start.begin(), b.row_start.end());
  context_.assign(b.context.begin(), b.context.end());
  tables_.assign(b.block_tables.begin(), b.block_tables.end());
  table_stride_ = b.table_stride;
  tokens_per_block_ = tokens_per_block;
  sequences_ = sequences;
  for (Planned& plan : plans_) plan.current = plan.packed = false;
  lengths_.clear();
  std::vector<int32_t> positions, slots;
  step_.last_position = 0;
  step_.apart = true;
  for (int s = 0; s < b.sequences(); ++s) {
    const int rows = b.row_start[s + 1] - b.row_start[s];
    lengths_.push_back(b.context[s] + rows);
    step_.apart = step_.apart && rows <= 1;
    for (int r = 0; r < rows; ++r) {
      const int position = b.context[s] + r;
      const int block = b.block_tables[s * b.table_stride + position / tokens_per_block];
      positions.push_back(position);
      slots.push_back(s < sequences ? block * tokens_per_block + position % tokens_per_block : -1);
      step_.last_position = std::max(step_.last_position, position);
    }
  }
  at_rows_ = packer.Add(row_start_);
  at_lengths_ = packer.Add(lengths_);
  at_tables_ = packer.Add(tables_);
  at_positions_ = packer.Add(positions);
  at_slots_ = packer.Add(slots);
  step_.table_stride = b.table_stride;
  step_.rows = static_cast<int>(positions.size());
}

void StepUpload::Bind(const char* base) {
  step_.row_start = At<int32_t>(base, at_rows_);
  step_.lengths = At<int32_t>(base, at_lengths_);
  step_.tables = At<int32_t>(base, at_tables_);
  step_.positions = At<int32_t>(base, at_positions_);
  step_.slots = At<int32_t>(base, at_slots_);
  for (Planned& plan : plans_)
    if (plan.packed) plan.Bind(base);
}

absl::Status StepUpload::Reserve(const kernels::StepLimits& limits) {
  const int64_t arrays = kernels::ArrayBytes(limits, *std::ranges::min_element(limits.tokens_per_block));
  BATON_RETURN_IF_ERROR(arrays_.Reserve(static_cast<size_t>(arrays), "the block tables of a step"));
  for (const kernels::StepLimits::Heads& heads : limits.attention) {
    const AttentionKind kind{heads.q_heads, heads.kv_heads, heads.window};
    BATON_RETURN_IF_ERROR(PlanOf(kind).memory.Reserve(static_cast<size_t>(kernels::WorkBytes(heads, limits)),
                                                      "the attention work of a step"));
  }
  return absl::OkStatus();
}

int64_t StepUpload::bytes() const {
  int64_t sum = arrays_.bytes();
  for (const Planned& plan : plans_) sum += plan.memory.bytes();
  return sum;
}

StepUpload::Planned& StepUpload::PlanOf(const AttentionKind& kind) {
  const auto found = std::ranges::find(plans_, kind, &Planned::kind);
  if (found != plans_.end()) return *found;
  Planned& plan = plans_.emplace_back(stream_);
  plan.kind = kind;
  return plan;
}

const AttentionWork& StepUpload::Work(const AttentionKind& kind, const Sharing& sharing) {
  Planned& planned = PlanOf(kind);
  if (planned.current) return planned.work;
  StepPacker packer;
  PackWork(kind, sharing, nullptr, packer);
  planned.Bind(packer.bytes().empty() ? nullptr : planned.memory.Upload(packer.bytes()));
  return planned.work;
}

size_t StepUpload::PackWork(const AttentionKind& kind, const Sharing& sharing, const kernels::StepLimits* limits,
                            StepPacker& packer) {
  Planned& planned = PlanOf(kind);
  const auto real = static_cast<size_t>(sequences_);
  const std::span<const int32_t> row_start = std::span(row_start_).first(real + 1);
  const std::span<const int32_t> lengths = std::span(lengths_).first(real);
  DecodeShape shape{row_start, lengths, false, kind.q_heads, kind.kv_heads, kind.window};
  std::vector<PrefillTile> tiles;
  if (kind.latent) {
    shape.rows_per_group = kMlaRows;
  } else {
    shape.max_rows = static_cast<int>(kernels::DecodedRows(HeadsOf(kind)));
    tiles = PlanPrefill(row_start, lengths, shape.max_rows + 1);
  }
  DecodePlan decode = PlanDecode(shape);
  if (sharing.warps > 0) {
    shape.fixed_tiles = false;
    shape.tiles_per_item = (static_cast<int>(decode.items.size()) + sharing.warps - 1) / sharing.warps;
    decode = PlanDecode(shape);
  }
  planned.slices = SliceDecode(decode, sharing.max_partials);
  std::vector<int32_t> counts;
  for (const DecodeSlice& slice : planned.slices) counts.insert(counts.end(), {slice.groups, slice.items});
  size_t groups = 0, items = 0;  // room
  if (limits != nullptr) {
    const kernels::StepLimits::Heads heads = HeadsOf(kind);
    groups = static_cast<size_t>(kernels::MostGroups(heads, static_cast<int64_t>(lengths_.size())));
    items = groups * static_cast<size_t>(kernels::MostPartials(heads, limits->positions));
  }
  planned.at_tiles = packer.Add(tiles);
  planned.at_groups = packer.Add(decode.groups, groups);
  planned.at_counts = packer.Add(counts);
  planned.at_items = packer.Add(decode.items, items);
  planned.work = {nullptr, static_cast<int>(tiles.size()), {}};
  planned.packed = true;
  return planned.slices.size();
}

void StepUpload::Planned::Bind(const char* base) {
  work.tiles = At<PrefillTile>(base, at_tiles);
  for (size_t i = 0; i < slices.size(); ++i) {
    work.decode.push_back(
        {{At<DecodeGroup>(base, at_groups) + slices[i].first_group,
          At<DecodeItem>(base, at_items) + slices[i].first_item, At<int32_t>(base, at_counts) + 2 * i},
         slices[i].partials});
  }
  packed = false;
  current = true;
}

}  // namespace baton::cuda
