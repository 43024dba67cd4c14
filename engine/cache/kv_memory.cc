#include "engine/cache/kv_memory.h"

#include <algorithm>

#include "common/ceil_div.h"
#include "common/check.h"
#include "common/status.h"

namespace baton::engine {
namespace {

constexpr int64_t kAlign = 64;
int64_t Aligned(int64_t n) { return (n + kAlign - 1) / kAlign * kAlign; }

// One plane of one layer: bytes of a block, and of its digests.
int64_t PlaneBlockBytes(const KvGroup& g, const KvPlane& p) {
  return Aligned(p.heads * p.BytesPerTokenHead() * g.tokens_per_block);
}
int64_t DigestsPerBlock(const KvGroup& g, const KvPlane& p) { return g.tokens_per_block / kUnitTokens * p.heads; }

int64_t BlockBytesWithDigests(const KvGroup& g) {
  int64_t n = 0;
  for (const KvPlane& p : g.planes) n += PlaneBlockBytes(g, p) + DigestsPerBlock(g, p) * 8;
  return n * static_cast<int64_t>(g.layers.size());
}

// Blocks per group when the paged groups hold `tokens`.
BlockBudget BudgetFor(const KvLayout& layout, int64_t tokens, int32_t max_model_len, int32_t max_num_seqs,
                      int32_t max_step_tokens) {
  BlockBudget budget;
  budget.tokens = tokens;
  for (const KvGroup& g : layout.groups) {
    int64_t blocks = CeilDiv(tokens, g.tokens_per_block);
    if (g.kind == KvGroupKind::kWindow) {
      // Every sequence a window, and one step's chunk anywhere; the ends need not meet block borders.
      const int64_t window =
          CeilDiv(std::min<int64_t>(g.window_tokens + kUnitTokens, max_model_len), g.tokens_per_block) + 1;
      const int64_t chunk = CeilDiv<int64_t>(std::min(max_step_tokens, max_model_len), g.tokens_per_block) + 1;
      blocks = std::min(blocks, max_num_seqs * window + chunk);
    }
    budget.num_blocks.push_back(static_cast<int32_t>(std::min<int64_t>(blocks, INT32_MAX)));
    budget.bytes += budget.num_blocks.back() * BlockBytesWithDigests(g);
  }
  return budget;
}

}  // namespace

int64_t BytesOfTokens(const KvLayout& layout, int64_t tokens, int32_t max_model_len, int32_t max_num_seqs,
                      int32_t max_step_tokens) {
  return BudgetFor(layout, tokens, max_model_len, max_num_seqs, max_step_tokens).bytes;
}

absl::StatusOr<BlockBudget> PlanBlocks(const KvLayout& layout, int64_t bytes, int32_t max_model_len,
                                       int32_t max_num_seqs, int32_t max_step_tokens) {
  const auto budget_for = [&](int64_t tokens) {
    return BudgetFor(layout, tokens, max_model_len, max_num_seqs, max_step_tokens);
  };
  const int64_t unit = [&] {
    int64_t n = kUnitTokens;
    for (const KvGroup& g : layout.groups) n = std::max<int64_t>(n, g.tokens_per_block);
    return n;
  }();
  const int64_t least = CeilDiv<int64_t>(max_model_len, unit) + 1;  // one block to copy into
  if (const BlockBudget one = budget_for(least * unit); one.bytes > bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("one sequence of ", max_model_len, " tokens needs ", one.bytes,
                                                     " bytes of KV cache, ", bytes, " given, ", one.bytes - bytes,
                                                     " too few: raise --kv-cache-memory or lower --max-model-len"));
  }
  int64_t low = least, high = std::max<int64_t>(least, std::min<int64_t>(bytes, INT32_MAX) / unit);
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    if (budget_for(middle * unit).bytes <= bytes) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  BlockBudget budget = budget_for(low * unit);
  const bool windows_only =
      std::ranges::all_of(layout.groups, [](const KvGroup& g) { return g.kind == KvGroupKind::kWindow; });
  if (windows_only) budget.tokens = std::min(budget.tokens, int64_t{max_num_seqs} * max_model_len);
  return budget;
}

int64_t KvMemory::Bytes(const KvLayout& layout, std::span<const int32_t> num_blocks) {
  int64_t bytes = 0;
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    bytes += Aligned(num_blocks[g] * BlockBytesWithDigests(layout.groups[g]));
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<KvMemory>> KvMemory::Create(const KvLayout& layout, std::span<const int32_t> num_blocks,
                                                           kernels::Ops& ops, int first_head,
                                                           std::span<std::byte> given) {
  BATON_CHECK(num_blocks.size() == layout.groups.size());
  std::unique_ptr<KvMemory> memory(new KvMemory);
  memory->layout_ = layout;
  memory->num_blocks_.assign(num_blocks.begin(), num_blocks.end());
  memory->first_head_ = first_head;
  memory->bytes_ = Bytes(layout, num_blocks);
  BATON_CHECK(given.empty() || static_cast<int64_t>(given.size()) >= memory->bytes_, given.size(), " bytes given, ",
              memory->bytes_, " needed");
  std::byte* given_at = given.data();
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    const KvGroup& group = layout.groups[g];
    if (group.planes.size() != 2 || group.planes[0].name != KvPlane::Name::kK ||
        group.planes[1].name != KvPlane::Name::kV) {
      return absl::FailedPreconditionError(absl::StrCat("KV group ", g, " has planes other than K and V"));
    }
    const int64_t bytes = Aligned(num_blocks[g] * BlockBytesWithDigests(group));
    void* at = given_at;
    if (given.empty() && bytes > 0) {
      BATON_ASSIGN_OR_RETURN(auto buffer, ops.Allocate(static_cast<size_t>(bytes)));
      at = buffer->data();
      memory->buffers_.push_back(std::move(buffer));
    }
    memory->views_.push_back(memory->ViewOf(group, num_blocks[g], static_cast<char*>(at)));
    if (!given.empty()) given_at += bytes;
  }
  return memory;
}

KvGroupView KvMemory::ViewOf(const KvGroup& group, int64_t blocks, char* at) const {
  char* digests_at = at;
  for (const KvPlane& p : group.planes) {
    digests_at += PlaneBlockBytes(group, p) * blocks * static_cast<int64_t>(group.layers.size());
  }
  KvGroupView view;
  for (const int layer : group.layers) {
    kernels::KvLayerView layer_view;
    layer_view.layer = static_cast<uint32_t>(layer);
    layer_view.first_head = static_cast<uint32_t>(first_head_);
    kernels::KvPlaneView* planes[] = {&layer_view.k, &layer_view.v};
    for (size_t i = 0; i < 2; ++i) {
      const KvPlane& p = group.planes[i];
      *planes[i] = {at,
                    PlaneBlockBytes(group, p),
                    group.tokens_per_block,
                    p.heads,
                    p.dim,
                    p.dtype,
                    reinterpret_cast<uint64_t*>(digests_at),
                    DigestsPerBlock(group, p),
                    p.ScaleOf(layer)};
      at += PlaneBlockBytes(group, p) * blocks;
      digests_at += DigestsPerBlock(group, p) * 8 * blocks;
    }
    view.layers.push_back(layer_view);
  }
  return view;
}

}  // namespace baton::engine
