// Pools of ranks whose KV is known, and a transfer between two sides of them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "common/float8.h"
#include "common/half.h"
#include "common/kv_digest.h"
#include "kvtransfer/slot_passes.h"

namespace baton {

constexpr int kLayers = 4, kHeads = 4, kDim = 8, kBlocks = 64;

inline KvSide Side(int tp, int stages, int block, DType dtype) {
  KvSide side;
  side.layout.groups = {{.layers = {0, 1, 2, 3},
                         .planes = {{KvPlane::Name::kK, dtype, kHeads, kDim}, {KvPlane::Name::kV, dtype, kHeads, kDim}},
                         .tokens_per_block = block}};
  side.tensor_parallel_size = tp;
  for (int s = 0; s <= stages; ++s) side.stage_layers.push_back(kLayers * s / stages);
  return side;
}

/// The same with scales of what is e4m3, other ones for each layer and for keys and values; powers of two.
inline KvSide Scaled(KvSide side) {
  std::vector<KvPlane>& planes = side.layout.groups[0].planes;
  planes[0].scales = {0.25f, 1.0f, 4.0f, 0.5f};
  planes[1].scales = {2.0f, 0.5f, 0.25f, 1.0f};
  return side;
}

/// What is at one place of the KV: exact in bf16 and f16 too.
inline float ValueAt(int layer, int plane, int head, int token, int element) {
  return static_cast<float>((layer * 131 + plane * 67 + head * 31 + token * 7 + element * 3) % 199 - 99);
}

/// One rank's pool, and the block table of one sequence in it.
class RankPool {
 public:
  RankPool(const KvSide& side, int rank, int tokens, uint64_t seed) : group_(side.layout.groups[0]) {
    heads_ = side.HeadsOf(rank, group_.planes[0]);
    layers_ = side.LayersOf(rank);
    const int units = group_.tokens_per_block / kUnitTokens;
    vector_bytes_ = kDim * static_cast<int64_t>(DTypeBytes(group_.planes[0].dtype));
    const int64_t stride = group_.tokens_per_block * heads_.size() * vector_bytes_;
    KvPoolView::Group view{.blocks = kBlocks};
    for (int layer = layers_.begin; layer < layers_.end; ++layer) {
      view.layers.push_back(layer);
      auto& planes = view.planes.emplace_back();
      for (int plane = 0; plane < 2; ++plane) {
        bytes_.push_back(
            std::make_unique<std::vector<std::byte>>(static_cast<size_t>(stride * kBlocks), std::byte{0x5a}));
        digests_.push_back(
            std::make_unique<std::vector<uint64_t>>(static_cast<size_t>(units * heads_.size() * kBlocks), 77u));
        planes.push_back(
            {bytes_.back()->data(), stride, digests_.back()->data(), static_cast<int64_t>(units) * heads_.size()});
        planes.back().scale = group_.planes[static_cast<size_t>(plane)].ScaleOf(layer);
      }
    }
    view_.groups.push_back(std::move(view));
    std::vector<int32_t> order(kBlocks);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937_64(seed));
    order.resize(static_cast<size_t>((tokens + group_.tokens_per_block - 1) / group_.tokens_per_block));
    tables_ = {order};
  }

  const KvPoolView& view() const { return view_; }
  KvBlockTables& tables() { return tables_; }

  std::byte* At(int layer, int plane, int head, int token) {
    const KvPlaneMemory& p = Plane(layer, plane);
    const int64_t vector = (token % group_.tokens_per_block) * heads_.size() + head - heads_.begin;
    return p.base + BlockOf(token) * p.block_stride_bytes + vector * vector_bytes_;
  }
  uint64_t& DigestAt(int layer, int plane, int head, int token) {
    const KvPlaneMemory& p = Plane(layer, plane);
    const int unit = token % group_.tokens_per_block / kUnitTokens;
    return p.digests[BlockOf(token) * p.digest_block_stride + unit * heads_.size() + head - heads_.begin];
  }

  /// As the model would: values, and the digest of every unit.
  void Compute(int tokens) {
    ForEach(0, tokens, [&](int layer, int plane, int head, int token) {
      std::byte* at = At(layer, plane, head, token);
      for (int e = 0; e < kDim; ++e) Store(at, e, ValueAt(layer, plane, head, token, e), Plane(layer, plane).scale);
      uint64_t& digest = DigestAt(layer, plane, head, token);
      if (token % kUnitTokens == 0) digest = 0;
      digest += DigestOf(layer, plane, head, token);
    });
  }
  /// Values and digests are what Compute would have made of [begin, end); `coarse`: of values that were e4m3 on the
  /// way.
  void ExpectComputed(int begin, int end, bool coarse = false) { EXPECT_EQ(Wrong(layers_, begin, end, coarse), 0); }
  /// How many values and digests of these layers are not so.
  int Wrong(IntRange layers, int begin, int end, bool coarse = false) {
    const auto value_at = [&](int layer, int plane, int head, int token, int e) {
      const float value = ValueAt(layer, plane, head, token, e);
      const float scale = Plane(layer, plane).scale;
      return coarse ? FloatOfE4m3(E4m3OfFloat(value / scale)) * scale : value;
    };
    int wrong = 0;
    ForEach(begin, end, [&](int layer, int plane, int head, int token) {
      if (layer < layers.begin || layer >= layers.end) return;
      for (int e = 0; e < kDim; ++e)
        wrong +=
            Load(At(layer, plane, head, token), e, Plane(layer, plane).scale) != value_at(layer, plane, head, token, e);
      if (token % kUnitTokens != 0) return;
      uint64_t digest = 0;
      for (int t = token; t < std::min(end, token + kUnitTokens); ++t) digest += DigestOf(layer, plane, head, t);
      wrong += digest != DigestAt(layer, plane, head, token);
    });
    return wrong;
  }

 private:
  template <class F>
  void ForEach(int begin, int end, F f) {
    for (int layer = layers_.begin; layer < layers_.end; ++layer) {
      for (int plane = 0; plane < 2; ++plane) {
        for (int head = heads_.begin; head < heads_.end; ++head) {
          for (int token = begin; token < end; ++token) f(layer, plane, head, token);
        }
      }
    }
  }
  const KvPlaneMemory& Plane(int layer, int plane) const {
    return view_.groups[0].planes[static_cast<size_t>(layer - layers_.begin)][static_cast<size_t>(plane)];
  }
  int64_t BlockOf(int token) const { return tables_[0][static_cast<size_t>(token / group_.tokens_per_block)]; }
  uint64_t DigestOf(int layer, int plane, int head, int token) {
    return KvDigestVector({static_cast<uint32_t>(layer), static_cast<uint32_t>(plane), static_cast<uint32_t>(head),
                           static_cast<uint32_t>(token)},
                          At(layer, plane, head, token), static_cast<uint32_t>(vector_bytes_));
  }
  void Store(std::byte* at, int e, float value, float scale) const {
    const DType type = group_.planes[0].dtype;
    const uint16_t half = type == DType::kF16 ? F16OfFloat(value) : Bf16OfFloat(value);
    if (type == DType::kF32)
      std::memcpy(at + 4 * e, &value, 4);
    else if (type == DType::kF8E4M3)
      at[e] = static_cast<std::byte>(E4m3OfFloat(value / scale));
    else
      std::memcpy(at + 2 * e, &half, 2);
  }
  float Load(const std::byte* at, int e, float scale) const {
    float value = 0;
    uint16_t half = 0;
    const DType type = group_.planes[0].dtype;
    if (type == DType::kF32) return std::memcpy(&value, at + 4 * e, 4), value;
    if (type == DType::kF8E4M3) return FloatOfE4m3(static_cast<uint8_t>(at[e])) * scale;
    std::memcpy(&half, at + 2 * e, 2);
    return type == DType::kF16 ? FloatOfF16(half) : FloatOfBf16(half);
  }

  KvGroup group_;
  IntRange heads_, layers_;
  int64_t vector_bytes_ = 0;
  KvPoolView view_;
  KvBlockTables tables_;
  std::vector<std::unique_ptr<std::vector<std::byte>>> bytes_;
  std::vector<std::unique_ptr<std::vector<uint64_t>>> digests_;
};

struct Transfer {
  Transfer(KvSide source, KvSide target, IntRange range, int piece = 32)
      : plan(*TransferPlan::Make(std::move(source), std::move(target), range, piece)), tokens(range) {
    for (int r = 0; r < plan.source().ranks(); ++r) {
      sources.emplace_back(plan.source(), r, range.end, 11 + static_cast<uint64_t>(r)).Compute(range.end);
    }
    for (int r = 0; r < plan.target().ranks(); ++r)
      targets.emplace_back(plan.target(), r, range.end, 91 + static_cast<uint64_t>(r));
  }
  LaneKey Key(size_t lane) const { return {5, 1, static_cast<uint32_t>(lane)}; }
  /// One slot with these segments of a lane.
  absl::StatusOr<std::vector<std::byte>> Gather(size_t lane, const std::vector<uint32_t>& segments) {
    std::vector<std::byte> slot(1 << 16);
    const LanePlan& l = plan.lanes()[lane];
    RankPool& source = sources[static_cast<size_t>(l.source_rank)];
    const auto bytes = GatherSlot(plan, l, Key(lane), 3, segments, source.view(), source.tables(), slot);
    if (!bytes.ok()) return bytes.status();
    slot.resize(*bytes);
    return slot;
  }
  absl::Status Place(size_t lane, const std::vector<std::byte>& slot, const std::vector<uint32_t>& wanted) {
    const LanePlan& l = plan.lanes()[lane];
    RankPool& target = targets[static_cast<size_t>(l.target_rank)];
    const auto content = ReadSlot(slot, Key(lane), 3);
    if (!content.ok()) return content.status();
    return VerifyAndScatterSlot(plan, l, *content, wanted, target.view(), target.tables());
  }
  void MoveEverything() {
    for (size_t lane = 0; lane < plan.lanes().size(); ++lane) {
      for (uint32_t s = 0; s < static_cast<uint32_t>(plan.lanes()[lane].segments); ++s) {
        const auto slot = Gather(lane, {s});
        ASSERT_TRUE(slot.ok()) << slot.status();
        ASSERT_TRUE(Place(lane, *slot, {s}).ok()) << Place(lane, *slot, {s});
      }
    }
    const auto type = [](const KvSide& side) { return side.layout.groups[0].planes[0].dtype; };
    const bool coarse = type(plan.source()) == DType::kF8E4M3 || type(plan.target()) == DType::kF8E4M3;
    for (RankPool& target : targets) target.ExpectComputed(tokens.begin, tokens.end, coarse);
  }
  TransferPlan plan;
  IntRange tokens;
  std::vector<RankPool> sources, targets;
};

}  // namespace baton
