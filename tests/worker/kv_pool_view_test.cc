// The KV of a worker's ranks as one pool: what any cut of ranks gathers, any other cut places, copies of heads
// included.
#include "worker/transfer/kv_pool_view.h"

#include <gtest/gtest.h>

#include <numeric>

#include "common/kv_digest.h"
#include "engine/model/kv_groups.h"
#include "sim/fake_model.h"

namespace baton::worker {
namespace {

constexpr int kLayers = 3, kKvHeads = 4, kDim = 8, kTokens = 50, kBlocks = 9;
constexpr uint32_t kVectorBytes = kDim * 4;

engine::ModelConfig PooledModel() {
  engine::ModelConfig c;
  c.num_layers = kLayers;
  c.num_heads = 8;
  c.num_kv_heads = kKvHeads;
  c.head_dim = kDim;
  c.layers.resize(kLayers);
  return c;
}

std::array<uint64_t, kDim / 2> ValueAt(const KvCoordinate& at) {
  std::array<uint64_t, kDim / 2> words;
  for (uint32_t w = 0; w < words.size(); ++w) words[w] = KvDigestMix(KvDigestKey(at), w, 12345);
  return words;
}

/// The memories of a worker's ranks.
class PooledRanks {
 public:
  PooledRanks(int tensor, int stages, int block)
      : tensor_(tensor), stages_(stages), layout_(engine::MakeKvLayout(PooledModel(), DType::kF32, block).value()) {
    const std::vector<int32_t> blocks(layout_.groups.size(), kBlocks);
    for (int r = 0; r < tensor * stages; ++r) {
      const engine::RankShape shape = engine::ShapeOf(PooledModel(), engine::RankPlace::Of(r, tensor, stages, 1));
      memories_.push_back(
          engine::KvMemory::Create(engine::RankKvLayout(layout_, shape), blocks, *ops_, shape.kv_heads.begin).value());
      all_.push_back(memories_.back().get());
    }
    tables_ = {std::vector<int32_t>(static_cast<size_t>((kTokens + block - 1) / block))};
    for (size_t i = 0; i < tables_[0].size(); ++i) tables_[0][i] = static_cast<int32_t>((i * 5 + 3) % kBlocks);
  }

  KvPoolView View() const { return PoolViewOf(all_); }
  KvPoolView ViewOfRank(int rank) const { return RankPoolViewOf(*memories_[static_cast<size_t>(rank)]); }
  /// As other workers see ranks that carry their own KV.
  KvSide Side() const {
    KvSide side{.layout = layout_, .tensor_parallel_size = tensor_};
    for (int stage = 0; stage <= stages_; ++stage) {
      const engine::RankPlace place = engine::RankPlace::Of(stage * tensor_, tensor_, stages_, 1);
      side.stage_layers.push_back(stage == stages_ ? kLayers : engine::ShapeOf(PooledModel(), place).layers.begin);
    }
    return side;
  }
  const KvLayout& layout() const { return layout_; }
  const KvBlockTables& tables() const { return tables_; }

  void Compute() {
    ForEach([](const KvCoordinate& at, std::byte* vector, uint64_t& digest) {
      std::memcpy(vector, ValueAt(at).data(), kVectorBytes);
      if (at.token % kUnitTokens == 0) digest = 0;
      digest += KvDigestVector(at, vector, kVectorBytes);
    });
  }
  /// Vectors that are not what was computed, and units whose digest is not theirs; and how many vectors there are.
  std::pair<int, int> WrongOf() {
    int wrong = 0, all = 0;
    uint64_t sum = 0;
    ForEach([&](const KvCoordinate& at, std::byte* vector, uint64_t& digest) {
      wrong += std::memcmp(vector, ValueAt(at).data(), kVectorBytes) != 0;
      sum = (at.token % kUnitTokens == 0 ? 0 : sum) + KvDigestVector(at, vector, kVectorBytes);
      if (at.token % kUnitTokens == kUnitTokens - 1 || at.token == kTokens - 1) wrong += sum != digest;
      ++all;
    });
    return {wrong, all};
  }

 private:
  template <class F>
  void ForEach(F f) {
    for (const auto& memory : memories_) {
      for (const kernels::KvLayerView& layer : memory->groups()[0].layers) {
        for (uint32_t p = 0; p < 2; ++p) {
          const kernels::KvPlaneView& plane = p == 0 ? layer.k : layer.v;
          for (int h = 0; h < plane.heads; ++h) {
            for (int t = 0; t < kTokens; ++t) {
              const int32_t block = tables_[0][static_cast<size_t>(t / plane.tokens_per_block)];
              const int slot = t % plane.tokens_per_block;
              f(KvCoordinate{layer.layer, p, layer.first_head + static_cast<uint32_t>(h), static_cast<uint32_t>(t)},
                static_cast<std::byte*>(plane.base) + block * plane.block_stride_bytes +
                    (slot * plane.heads + h) * static_cast<int>(kVectorBytes),
                plane.digests[block * plane.digest_block_stride + slot / kUnitTokens * plane.heads + h]);
            }
          }
        }
      }
    }
  }

  const std::unique_ptr<kernels::Ops> ops_ = engine::MakeFakeOps();
  const int tensor_, stages_;
  const KvLayout layout_;
  std::vector<std::unique_ptr<engine::KvMemory>> memories_;
  std::vector<const engine::KvMemory*> all_;
  KvBlockTables tables_;
};

void MoveAndCompare(PooledRanks& from, PooledRanks& to) {
  from.Compute();
  const TransferPlan plan = TransferPlan::Make(SideOf(from.layout()), SideOf(to.layout()), {0, kTokens}, 32).value();
  ASSERT_EQ(plan.lanes().size(), 1u);
  const LanePlan& lane = plan.lanes()[0];
  const LaneKey key{5, 1, 0};
  std::vector<uint32_t> segments(static_cast<size_t>(lane.segments));
  std::iota(segments.begin(), segments.end(), 0u);
  std::vector<std::byte> slot(1 << 18);
  const auto bytes = GatherSlot(plan, lane, key, 1, segments, from.View(), from.tables(), slot);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  const SlotContent content = ReadSlot(slot, key, 1).value();
  const absl::Status placed = VerifyAndScatterSlot(plan, lane, content, segments, to.View(), to.tables());
  ASSERT_TRUE(placed.ok()) << placed;
  const auto [wrong, all] = to.WrongOf();
  EXPECT_EQ(wrong, 0);
  EXPECT_GE(all, kLayers * 2 * kKvHeads * kTokens);
}

TEST(PoolViewOfRanks, AnyCutFitsAnyOther) {
  for (const auto& [from_tp, from_stages] : {std::pair{1, 1}, {2, 1}, {1, 3}, {8, 2}}) {
    for (const auto& [to_tp, to_stages] : {std::pair{1, 1}, {4, 1}, {2, 2}, {8, 1}}) {
      SCOPED_TRACE(testing::Message() << "TP " << from_tp << " PP " << from_stages << " to TP " << to_tp << " PP "
                                      << to_stages);
      PooledRanks from(from_tp, from_stages, 16), to(to_tp, to_stages, 32);
      MoveAndCompare(from, to);
    }
  }
}

/// Each lane from the memory of its source rank into that of its target rank, and nothing else.
void MoveRankToRank(PooledRanks& from, PooledRanks& to) {
  from.Compute();
  const TransferPlan plan = TransferPlan::Make(from.Side(), to.Side(), {0, kTokens}, 32).value();
  std::vector<std::byte> slot(1 << 18);
  for (uint32_t l = 0; l < plan.lanes().size(); ++l) {
    const LanePlan& lane = plan.lanes()[l];
    const LaneKey key{5, 1, l};
    std::vector<uint32_t> segments(static_cast<size_t>(lane.segments));
    std::iota(segments.begin(), segments.end(), 0u);
    const auto bytes = GatherSlot(plan, lane, key, 1, segments, from.ViewOfRank(lane.source_rank), from.tables(), slot);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    const SlotContent content = ReadSlot(slot, key, 1).value();
    const absl::Status placed =
        VerifyAndScatterSlot(plan, lane, content, segments, to.ViewOfRank(lane.target_rank), to.tables());
    ASSERT_TRUE(placed.ok()) << placed;
  }
  EXPECT_EQ(to.WrongOf().first, 0);
}

TEST(PoolViewOfRanks, AnyCutFitsAnyOtherWhereEachRankCarriesItsOwn) {
  for (const auto& [from_tp, from_stages] : {std::pair{1, 1}, {2, 1}, {1, 3}, {8, 2}}) {
    for (const auto& [to_tp, to_stages] : {std::pair{1, 1}, {4, 1}, {2, 2}, {8, 1}}) {
      SCOPED_TRACE(testing::Message() << "TP " << from_tp << " PP " << from_stages << " to TP " << to_tp << " PP "
                                      << to_stages);
      PooledRanks from(from_tp, from_stages, 16), to(to_tp, to_stages, 32);
      MoveRankToRank(from, to);
    }
  }
}

TEST(PoolViewOfRanks, ADamagedPieceIsNotSent) {
  PooledRanks from(2, 1, 16);
  from.Compute();
  const KvPoolView view = from.View();
  const KvPlaneMemory& second = view.groups[0].planes[1][0].others.at(0);
  second.base[from.tables()[0][0] * second.block_stride_bytes] ^= std::byte{1};
  const TransferPlan plan = TransferPlan::Make(SideOf(from.layout()), SideOf(from.layout()), {0, 16}, 16).value();
  std::vector<std::byte> slot(1 << 16);
  const std::vector<uint32_t> first = {0}, damaged = {1};
  EXPECT_TRUE(GatherSlot(plan, plan.lanes()[0], {5, 1, 0}, 1, first, view, from.tables(), slot).ok());
  EXPECT_TRUE(
      absl::IsDataLoss(GatherSlot(plan, plan.lanes()[0], {5, 1, 0}, 1, damaged, view, from.tables(), slot).status()));
}

}  // namespace
}  // namespace baton::worker
