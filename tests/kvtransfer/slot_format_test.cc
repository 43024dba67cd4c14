#include "kvtransfer/slot_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "kvtransfer/bounce_pool.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

const LaneKey kLane{7, 2, 1};
const std::vector<SlotSegment> kSegments = {{3, 0, 100, 11, 12}, {5, 0, 64, 13, 13}};

std::vector<std::byte> Filled() {
  std::vector<std::byte> slot(1024);
  const auto payloads = BeginSlot(slot, kLane, 9, kSegments);
  std::memset(payloads->at(0).data(), 0xaa, 100), std::memset(payloads->at(1).data(), 0xbb, 64);
  return slot;
}

std::string Error(const absl::StatusOr<SlotContent>& content) { return std::string(content.status().message()); }

TEST(SlotFormat, ReadsWhatWasWritten) {
  const auto slot = Filled();
  const auto content = ReadSlot(slot, kLane, 9);
  ASSERT_TRUE(content.ok()) << content.status();
  ASSERT_EQ(content->parts.size(), 2u);
  EXPECT_EQ(content->parts[0].segment.segment, 3u);
  EXPECT_EQ(content->parts[0].segment.wire_digest, 12u);
  EXPECT_EQ(content->parts[0].payload.back(), std::byte{0xaa});
  EXPECT_EQ(content->parts[1].payload.front(), std::byte{0xbb});
  EXPECT_EQ((content->parts[1].payload.data() - slot.data()) % 64, 0);
}

TEST(SlotFormat, AnotherLanesSlotIsNotOurs) {
  const auto slot = Filled();
  EXPECT_THAT(Error(ReadSlot(slot, {7, 3, 1}, 9)), HasSubstr("ticket 7 epoch 2 lane 1 turn 9, expected 7 3 1 9"));
  EXPECT_FALSE(ReadSlot(slot, kLane, 10).ok());
}

TEST(SlotFormat, EveryFlippedBitOfHeaderAndTableIsNoticed) {
  for (size_t bit = 0; bit < (40 + 64) * 8; ++bit) {
    auto slot = Filled();
    slot[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    EXPECT_FALSE(ReadSlot(slot, kLane, 9).ok()) << "bit " << bit;
  }
}

TEST(SlotFormat, ATruncatedSlotIsNoticed) {
  const auto slot = Filled();
  for (size_t bytes = 0; bytes < SlotBytes(kSegments); ++bytes) {
    EXPECT_FALSE(ReadSlot(std::span(slot).first(bytes), kLane, 9).ok()) << bytes;
  }
}

TEST(SlotFormat, RefusesWhatDoesNotFit) {
  std::vector<std::byte> slot(300);
  EXPECT_EQ(BeginSlot(slot, kLane, 9, kSegments).status().message(), "2 segments need 320 bytes, a slot has 300");
}

TEST(BouncePool, ADroppedBufferComesBack) {
  std::vector<std::byte> memory(300);
  BouncePool pool(memory, 100);
  {
    auto first = pool.Take(1), second = pool.Take(2), third = pool.Take(3);
    EXPECT_FALSE(pool.Take(4).has_value());
    EXPECT_NE(first->bytes().data(), second->bytes().data());
    const BouncePool::Buffer moved = std::move(*third);
    EXPECT_EQ(moved.bytes().size(), 100u);
    EXPECT_EQ(pool.free_buffers(), 0u);
  }
  EXPECT_EQ(pool.free_buffers(), 3u);
}

TEST(BouncePool, NobodyHoldsMoreThanIsLeft) {
  std::vector<std::byte> memory(1600);
  BouncePool pool(memory, 100);
  std::vector<BouncePool::Buffer> held;
  for (uint64_t holder : {1, 2, 3, 4, 5}) {
    size_t taken = 0;
    while (auto buffer = pool.Take(holder)) held.push_back(*std::move(buffer)), ++taken;
    EXPECT_EQ(taken, std::vector<size_t>({0, 8, 4, 2, 1, 1})[holder]) << "holder " << holder;
  }
  EXPECT_EQ(pool.free_buffers(), 0u);
  held.erase(held.begin());
  EXPECT_FALSE(pool.Take(1).has_value()) << "it has seven, one is left";
  EXPECT_TRUE(pool.Take(6).has_value());
}

TEST(BouncePool, DiesWhenABufferOutlivesIt) {
  std::vector<std::byte> memory(100);
  EXPECT_DEATH(
      {
        auto pool = std::make_unique<BouncePool>(memory, 100);
        auto buffer = pool->Take(1);
        pool.reset();
      },
      "1 of 1 bounce buffers are still out");
}

}  // namespace
}  // namespace baton
