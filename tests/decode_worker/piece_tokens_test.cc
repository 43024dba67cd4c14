#include "decode_worker/piece_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvtransfer/slot_passes.h"
#include "worker/worker_config.h"

namespace baton::decode_worker {
namespace {

constexpr int64_t kCpu = worker::kCpuLandingSlotBytes, kGpu = worker::kGpuLandingSlotBytes;

/// Keys and values of one layer.
KvLayout LayoutOf(int heads, int dim) {
  KvGroup group;
  group.planes = {{.heads = heads, .dim = dim}, {.heads = heads, .dim = dim}};
  return {.groups = {group}};
}

/// The room of a segment in the widest type.
int64_t SegmentIn(int heads, int dim, int tokens) { return SegmentRoom(int64_t{2} * heads * dim * 4 * tokens); }

TEST(PieceTokens, ASegmentForAGpusSlotsFitsThoseOfACpu) {
  for (const int heads : {1, 2, 5, 8, 16, 32, 40, 60}) {
    const absl::StatusOr<int> tokens = PieceTokens(LayoutOf(heads, 128), kGpu);
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    EXPECT_EQ(*tokens % kUnitTokens, 0);
    EXPECT_LE(SegmentIn(heads, 128, *tokens), SlotRoom(kCpu)) << heads << " heads";
    EXPECT_EQ(*tokens, PieceTokens(LayoutOf(heads, 128), kCpu).value());
  }
}

TEST(PieceTokens, ALayerOfWhichNoUnitFitsACpusSlotGoesBetweenGpus) {
  EXPECT_EQ(PieceTokens(LayoutOf(128, 128), kGpu).value(), kUnitTokens);
  EXPECT_THAT(PieceTokens(LayoutOf(128, 128), kCpu).status().ToString(),
              testing::HasSubstr("--landing-slot-bytes 1048576: 16 tokens of one layer take 2097152"));
}

TEST(PieceTokens, InSmallerSlotsThereAreFewer) {
  EXPECT_EQ(PieceTokens(LayoutOf(8, 128), 256 << 10).value(), 16);
  EXPECT_EQ(PieceTokens(LayoutOf(8, 128), kCpu).value(), 112);
  EXPECT_EQ(PieceTokens(LayoutOf(1, 64), kGpu).value(), 256) << "the most";
}

}  // namespace
}  // namespace baton::decode_worker
