#include "engine/cache/kv_memory.h"

#include <gtest/gtest.h>

#include <set>

#include "engine/cache/kv_cache.h"
#include "sim/fake_model.h"

namespace baton::engine {
namespace {

KvLayout GemmaLike() {
  const std::vector<KvPlane> planes = {{KvPlane::Name::kK, DType::kBF16, 2, 64},
                                       {KvPlane::Name::kV, DType::kBF16, 2, 64}};
  KvLayout layout;
  layout.groups.push_back({{5, 11}, KvGroupKind::kPaged, 0, planes, 16});
  layout.groups.push_back({{0, 1, 2, 3, 4, 6, 7, 8, 9, 10}, KvGroupKind::kWindow, 512, planes, 16});
  return layout;
}

TEST(PlanBlocks, UsesTheMemoryAndKeepsWindowGroupsSmall) {
  const auto budget = PlanBlocks(GemmaLike(), 256 << 20, 32768, 4, 512).value();
  EXPECT_LE(budget.bytes, 256 << 20);
  EXPECT_GT(budget.bytes, 250 << 20);
  EXPECT_GT(budget.num_blocks[0], 10 * budget.num_blocks[1]);
  EXPECT_GE(budget.num_blocks[1], 4 * (512 / 16));
}

TEST(PlanBlocks, WhereAllLayersHaveWindowsTheTokensAreThoseOfTheSequencesThatRunAtOnce) {
  KvLayout layout = GemmaLike();
  layout.groups.erase(layout.groups.begin());
  const auto budget = PlanBlocks(layout, int64_t{1} << 40, 32768, 4, 512).value();
  EXPECT_EQ(budget.tokens, 4 * 32768);
  EXPECT_LT(budget.num_blocks[0] * 16, 4 * 700 + 600);
  const auto shorter = PlanBlocks(layout, budget.bytes / 2, 600, 4, 512).value();
  EXPECT_LT(shorter.tokens, 4 * 600);
}

TEST(PlanBlocks, RefusesWhenOneSequenceDoesNotFitAndSaysBothNumbers) {
  const auto budget = PlanBlocks(GemmaLike(), 1 << 20, 32768, 4, 512);
  ASSERT_EQ(budget.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(budget.status().message().find("32768"), std::string::npos);
  EXPECT_NE(budget.status().message().find("1048576"), std::string::npos);
}

// What the scheduler asks of its pools: one sequence of full length beside a step's chunk, and a block to copy into.
TEST(PlanBlocks, TheLeastMemoryThatIsAcceptedRunsOneSequence) {
  const PrefixHasher hasher{HashKey{}};
  for (const int32_t tokens_per_block : {16, 48}) {
    for (const int32_t window : {0, 1, 18, 32, 50, 200}) {
      for (const int32_t length : {2, 33, 48, 97, 300}) {
        for (const int32_t step : {1, 16, 100, 1000}) {
          const KvLayout layout = FakeLayout(tokens_per_block, window);
          int64_t refused = 0, accepted = 1 << 24;
          while (accepted - refused > 1) {
            const int64_t middle = refused + (accepted - refused) / 2;
            (PlanBlocks(layout, middle, length, 1, step).ok() ? accepted : refused) = middle;
          }
          const BlockBudget budget = PlanBlocks(layout, accepted, length, 1, step).value();
          EXPECT_LE(budget.bytes, accepted);
          const KvCache cache(layout, budget.num_blocks, hasher, {});
          for (int32_t g = 0; g < cache.num_groups(); ++g) {
            EXPECT_GE(budget.num_blocks[static_cast<size_t>(g)], cache.MaxBlocksOf(g, length, step) + 1)
                << "group " << g << ", window " << window << ", blocks of " << tokens_per_block << ", length " << length
                << ", steps of " << step;
          }
        }
      }
    }
  }
}

TEST(KvMemory, PlanesAndDigestsDoNotOverlap) {
  const auto ops = MakeFakeOps();
  const KvLayout layout = GemmaLike();
  const std::vector<int32_t> blocks = {7, 3};
  const auto memory = KvMemory::Create(layout, blocks, *ops).value();
  std::set<std::pair<const char*, const char*>> ranges;
  for (size_t g = 0; g < 2; ++g) {
    ASSERT_EQ(memory->groups()[g].layers.size(), layout.groups[g].layers.size());
    for (size_t l = 0; l < layout.groups[g].layers.size(); ++l) {
      const kernels::KvLayerView& view = memory->groups()[g].layers[l];
      EXPECT_EQ(view.layer, static_cast<uint32_t>(layout.groups[g].layers[l]));
      for (const kernels::KvPlaneView* p : {&view.k, &view.v}) {
        const char* base = static_cast<const char*>(p->base);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(base) % 64, 0u);
        EXPECT_GE(p->block_stride_bytes, 16 * 2 * 64 * 2);
        ranges.insert({base, base + p->block_stride_bytes * blocks[g]});
        const char* digests = reinterpret_cast<const char*>(p->digests);
        ranges.insert({digests, digests + p->digest_block_stride * 8 * blocks[g]});
      }
    }
  }
  EXPECT_EQ(ranges.size(), 48u);
  const char* last = nullptr;
  for (const auto& [from, to] : ranges) {
    EXPECT_GE(from, last);
    last = to;
  }
}

TEST(KvMemory, GroupsShareOutTheMemoryThatIsGiven) {
  const auto ops = MakeFakeOps();
  const KvLayout layout = GemmaLike();
  const std::vector<int32_t> blocks = {7, 3};
  std::vector<std::byte> given(static_cast<size_t>(KvMemory::Bytes(layout, blocks)));
  const auto memory = KvMemory::Create(layout, blocks, *ops, 0, given).value();
  const KvLayout first{{layout.groups[0]}};
  EXPECT_EQ(memory->groups()[0].layers[0].k.base, given.data());
  EXPECT_EQ(memory->groups()[1].layers[0].k.base, given.data() + KvMemory::Bytes(first, std::vector{7}));
}

}  // namespace
}  // namespace baton::engine
