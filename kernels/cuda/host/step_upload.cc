#include "kernels/cuda/host/step_upload.h"

#include <algorithm>

namespace baton::cuda {
namespace {

// Arrays laid one after another, 16-byte aligned, for one upload.
class Packer {
 public:
  template <typename T>
  size_t Add(const T* values, size_t n) {
    const size_t at = bytes_.size();
    const auto* from = reinterpret_cast<const char*>(values);
    bytes_.insert(bytes_.end(), from, from + n * sizeof(T));
    bytes_.resize((bytes_.size() + 15) / 16 * 16);
    return at;
  }
  const char* Upload(Scratch& scratch) const { return scratch.Upload(std::span<const char>(bytes_)); }

 private:
  std::vector<char> bytes_;
};

template <typename T>
const T* At(const char* base, size_t offset) {
  return reinterpret_cast<const T*>(base + offset);
}

}  // namespace

bool StepUpload::Holds(const kernels::RaggedBatch& b, int tokens_per_block) const {
  return table_stride_ == b.table_stride && tokens_per_block_ == tokens_per_block &&
         std::ranges::equal(row_start_, b.row_start) && std::ranges::equal(context_, b.context) &&
         std::ranges::equal(tables_, b.block_tables);
}

const StepOnDevice& StepUpload::Get(const kernels::RaggedBatch& b, int tokens_per_block) {
  if (Holds(b, tokens_per_block)) return step_;
  row_start_.assign(b.row_start.begin(), b.row_start.end());
  context_.assign(b.context.begin(), b.context.end());
  tables_.assign(b.block_tables.begin(), b.block_tables.end());
  table_stride_ = b.table_stride;
  tokens_per_block_ = tokens_per_block;
  for (Planned& plan : plans_) plan.current = false;
  lengths_.clear();
  std::vector<int32_t> positions, slots;
  step_.last_position = 0;
  for (int s = 0; s < b.sequences(); ++s) {
    const int rows = b.row_start[s + 1] - b.row_start[s];
    lengths_.push_back(b.context[s] + rows);
    for (int r = 0; r < rows; ++r) {
      const int position = b.context[s] + r;
      positions.push_back(position);
      slots.push_back(b.block_tables[s * b.table_stride + position / tokens_per_block] * tokens_per_block +
                      position % tokens_per_block);
      step_.last_position = std::max(step_.last_position, position);
    }
  }
  Packer packer;
  const size_t at_rows = packer.Add(row_start_.data(), row_start_.size()),
               at_lengths = packer.Add(lengths_.data(), lengths_.size());
  const size_t at_tables = packer.Add(tables_.data(), tables_.size()),
               at_positions = packer.Add(positions.data(), positions.size());
  const size_t at_slots = packer.Add(slots.data(), slots.size());
  const char* base = packer.Upload(arrays_);
  step_.row_start = At<int32_t>(base, at_rows);
  step_.lengths = At<int32_t>(base, at_lengths);
  step_.tables = At<int32_t>(base, at_tables);
  step_.positions = At<int32_t>(base, at_positions);
  step_.slots = At<int32_t>(base, at_slots);
  step_.table_stride = b.table_stride;
  step_.rows = static_cast<int>(positions.size());
  return step_;
}

int64_t MostGroups(const AttentionKind& kind, const kernels::StepLimits& limits) {
  const int packed = DecodedRows(kind) * (kind.q_heads / kind.kv_heads);
  return limits.sequences * kind.kv_heads * ((packed + kRowsPerWarp - 1) / kRowsPerWarp);
}
int64_t MostPartials(const AttentionKind& kind, const kernels::StepLimits& limits) {
  const auto tiles = [](int64_t tokens) { return (tokens + kTileTokens - 1) / kTileTokens; };
  const int64_t all = tiles(limits.positions);
  return kind.window > 0 ? std::min(all, tiles(kind.window + DecodedRows(kind)) + 1) : all;
}

absl::Status StepUpload::Reserve(const kernels::StepLimits& limits) {
  constexpr int64_t kInt = sizeof(int32_t), kAligned = 16;
  const int64_t stride = limits.positions / limits.tokens_per_block + 1;
  const int64_t arrays = kInt * (limits.sequences * (2 + stride) + 1 + 2 * limits.rows) + 5 * kAligned;
  BATON_RETURN_IF_ERROR(arrays_.Reserve(static_cast<size_t>(arrays), "the block tables of a step"));
  for (const kernels::StepLimits::Heads& heads : limits.attention) {
    const AttentionKind kind{heads.q_heads, heads.kv_heads, heads.window};
    const int64_t tiles = limits.sequences + limits.rows / kPrefillRows, groups = MostGroups(kind, limits);
    const int64_t bytes = tiles * int64_t{sizeof(PrefillTile)} + groups * int64_t{sizeof(DecodeGroup)} +
                          groups * MostPartials(kind, limits) * int64_t{sizeof(DecodeItem)} + groups * 2 * kInt +
                          4 * kAligned;
    BATON_RETURN_IF_ERROR(PlanOf(kind).memory.Reserve(static_cast<size_t>(bytes), "the attention work of a step"));
  }
  return absl::OkStatus();
}

StepUpload::Planned& StepUpload::PlanOf(const AttentionKind& kind) {
  const auto found = std::ranges::find(plans_, kind, &Planned::kind);
  if (found != plans_.end()) return *found;
  Planned& plan = plans_.emplace_back(stream_);
  plan.kind = kind;
  return plan;
}

const AttentionWork& StepUpload::Work(const AttentionKind& kind, int warps, int max_partials) {
  Planned& planned = PlanOf(kind);
  if (planned.current) return planned.work;
  DecodeShape shape{row_start_, lengths_, false, kind.q_heads, kind.kv_heads, kind.window};
  std::vector<PrefillTile> tiles;
  if (kind.latent) {
    shape.rows_per_group = kMlaRows;
  } else {
    shape.max_rows = DecodedRows(kind);
    tiles = PlanPrefill(row_start_, lengths_, shape.max_rows + 1);
  }
  DecodePlan decode = PlanDecode(shape);
  if (warps > 0) {
    shape.fixed_tiles = false;
    shape.tiles_per_item = (static_cast<int>(decode.items.size()) + warps - 1) / warps;
    decode = PlanDecode(shape);
  }
  const std::vector<DecodeSlice> slices = SliceDecode(decode, max_partials);
  std::vector<int32_t> counts;
  for (const DecodeSlice& slice : slices) counts.insert(counts.end(), {slice.groups, slice.items});
  Packer packer;
  const size_t at_tiles = packer.Add(tiles.data(), tiles.size()),
               at_groups = packer.Add(decode.groups.data(), decode.groups.size());
  const size_t at_items = packer.Add(decode.items.data(), decode.items.size()),
               at_counts = packer.Add(counts.data(), counts.size());
  const char* base = packer.Upload(planned.memory);
  planned.work = {At<PrefillTile>(base, at_tiles), static_cast<int>(tiles.size()), {}};
  for (size_t i = 0; i < slices.size(); ++i) {
    planned.work.decode.push_back(
        {{At<DecodeGroup>(base, at_groups) + slices[i].first_group,
          At<DecodeItem>(base, at_items) + slices[i].first_item, At<int32_t>(base, at_counts) + 2 * i},
         slices[i].partials});
  }
  planned.current = true;
  return planned.work;
}

}  // namespace baton::cuda
