#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/str_cat.h"
#include "known_kv.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

TEST(Placer, EveryReshapeArrivesWholeWithItsDigests) {
  for (auto [from_tp, to_tp] : {std::pair{1, 1}, {1, 2}, {2, 1}, {4, 2}, {2, 8}}) {
    for (auto [from_stages, to_stages] : {std::pair{1, 1}, {2, 1}, {1, 4}}) {
      for (auto [from_block, to_block] : {std::pair{16, 16}, {16, 64}, {64, 16}, {48, 32}}) {
        SCOPED_TRACE(StrCat("tp ", from_tp, "→", to_tp, " stages ", from_stages, "→", to_stages, " block ", from_block,
                            "→", to_block));
        Transfer(Side(from_tp, from_stages, from_block, DType::kF32), Side(to_tp, to_stages, to_block, DType::kF32),
                 {32, 141})
            .MoveEverything();
      }
    }
  }
}

TEST(Placer, ConvertsTypesAndKeepsDigestsOfWhatItPlaced) {
  for (const DType from : {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3}) {
    for (const DType to : {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3}) {
      SCOPED_TRACE(StrCat(DTypeName(from), " → ", DTypeName(to)));
      Transfer(Side(1, 1, 16, from), Side(2, 1, 32, to), {0, 77}).MoveEverything();
      Transfer(Side(2, 2, 64, from), Side(1, 1, 16, to), {16, 77}).MoveEverything();
      Transfer(Scaled(Side(1, 1, 16, from)), Scaled(Side(2, 2, 32, to)), {0, 77}).MoveEverything();
    }
  }
}

TEST(Placer, EveryFlippedPayloadBitIsNoticed) {
  Transfer t(Side(1, 1, 16, DType::kF32), Side(1, 1, 16, DType::kF32), {0, 20});
  const auto slot = t.Gather(0, {1});
  ASSERT_TRUE(slot.ok());
  const size_t payload = SlotOverheadBytes(1), bytes = static_cast<size_t>(t.plan.SegmentBytes(t.plan.lanes()[0], 1));
  for (size_t bit = 0; bit < bytes * 8; bit += 7) {
    auto damaged = *slot;
    damaged[payload + bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    EXPECT_TRUE(absl::IsDataLoss(t.Place(0, damaged, {1}))) << "bit " << bit;
  }
}

TEST(Placer, ASourceBlockThatWasReusedIsNotSent) {
  Transfer t(Side(1, 1, 16, DType::kF32), Side(1, 1, 16, DType::kF32), {0, 60});
  *t.sources[0].At(2, 1, 3, 37) ^= std::byte{1};
  const auto slot = t.Gather(0, {4});  // layer 2, positions 0…31
  EXPECT_TRUE(slot.ok()) << slot.status();
  const auto stale = t.Gather(0, {4, 5});
  EXPECT_TRUE(absl::IsDataLoss(stale.status()));
  EXPECT_THAT(std::string(stale.status().message()), HasSubstr("layer 2 plane 1 position 32"));
}

TEST(Placer, SwappedBlocksAreNoticedAtTheSource) {
  Transfer t(Side(1, 1, 16, DType::kF32), Side(1, 1, 16, DType::kF32), {0, 64});
  std::swap(t.sources[0].tables()[0][0], t.sources[0].tables()[0][1]);
  EXPECT_TRUE(absl::IsDataLoss(t.Gather(0, {0}).status()));
}

TEST(Placer, BlocksThatAreNotThereAreNotSent) {
  Transfer t(Side(1, 1, 16, DType::kF32), Side(1, 1, 16, DType::kF32), {0, 64});
  t.sources[0].tables()[0].resize(2);
  EXPECT_TRUE(t.Gather(0, {0}).ok());
  EXPECT_TRUE(absl::IsDataLoss(t.Gather(0, {1}).status()));
}

TEST(Placer, BlocksThatAreNotThereAreNotWritten) {
  Transfer t(Side(1, 1, 16, DType::kF32), Side(1, 1, 16, DType::kF32), {0, 64});
  const auto slot = t.Gather(0, {0, 1});
  ASSERT_TRUE(slot.ok());
  t.targets[0].tables()[0].resize(2);
  EXPECT_TRUE(t.Place(0, *slot, {0}).ok());
  const absl::Status refused = t.Place(0, *slot, {0, 1});
  EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
}

TEST(Placer, NumbersAreNotPlacedAsWhatIsNone) {
  Transfer t(Side(1, 1, 16, DType::kF32), Side(1, 1, 16, DType::kI32), {0, 32});
  const auto slot = t.Gather(0, {0});
  ASSERT_TRUE(slot.ok()) << slot.status();
  const absl::Status refused = t.Place(0, *slot, {0});
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("cannot be placed as"));
}

TEST(Placer, OnlyWantedSegmentsAreTouched) {
  Transfer t(Side(1, 1, 16, DType::kF32), Side(1, 1, 16, DType::kF32), {0, 64});
  const auto slot = t.Gather(0, {0, 1});
  ASSERT_TRUE(t.Place(0, *slot, {1}).ok());
  EXPECT_EQ(*t.targets[0].At(0, 0, 0, 0), std::byte{0x5a});
  EXPECT_TRUE(absl::IsDataLoss(t.Place(0, *slot, {2})));
}

TEST(Placer, RoomAddsUpToWhatASlotTakes) {
  for (size_t count : {1u, 2u, 7u, 300u}) {
    std::vector<SlotSegment> segments(count, SlotSegment{.bytes = 1000});
    const int64_t room = static_cast<int64_t>(count) * SegmentRoom(1000);
    EXPECT_GE(room, SlotRoom(SlotBytes(segments))) << count;
    EXPECT_LE(SlotBytes(segments), static_cast<uint64_t>(room) + SlotOverheadBytes(1));
  }
}

}  // namespace
}  // namespace baton
