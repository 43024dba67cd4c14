// Slots that a GPU has pinned: it copies from them, once for each, and what it places is what was there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "common/kv_mover.h"
#include "kernels/cuda/host/cuda_ops.h"
#include "kernels/runtime/host_pin.h"

namespace baton::kernels {
namespace {

constexpr size_t kSlot = 4096, kVectors = 16 * 64 * 2;  ///< bytes: 16 tokens of one head

class PinnedSlots : public testing::Test {
 protected:
  void SetUp() override {
    ops_->Sync();  // the cache is zeroes
    std::mt19937 random(3);
    for (std::byte& byte : slots_) byte = static_cast<std::byte>(random() & 0x3F);  // numbers in any type
  }
  const std::unique_ptr<Ops> ops_ = *MakeCudaOps({});
  const std::unique_ptr<Buffer> cache_ = *ops_->Allocate(size_t{1} << 16);
  std::vector<std::byte> slots_ = std::vector<std::byte>(2 * kSlot);
};

TEST_F(PinnedSlots, AreCopiedByTheGpu) {
  const auto mover = *ops_->MakeKvMover(kSlot, true);
  const gpu::EmulatedPins before = gpu::CountEmulatedPins();
  auto pinned = mover->Pin(slots_);
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  EXPECT_EQ(gpu::CountEmulatedPins().live, before.live + 1);
  KvMove move;
  move.cache = cache_->data();
  move.token_stride = 128;
  move.digests = static_cast<uint64_t*>(cache_->data()) + 4096;
  move.digest_stride = 1;
  move.tokens = 16, move.heads = 1, move.dim = 64;
  move.staged = 256;
  for (const size_t slot : {0u, 1u}) {
    std::vector<KvMoved> moved(1);
    mover->FetchPinned(std::span(slots_).subspan(slot * kSlot + 256, kVectors), 256);
    ASSERT_TRUE(mover->Scatter({&move, 1}, moved, KvPacked::kInbox).ok());
    std::vector<std::byte> placed(kVectors);
    ops_->CopyToHost(placed.data(), cache_->data(), kVectors);
    EXPECT_TRUE(std::ranges::equal(placed, std::span(slots_).subspan(slot * kSlot + 256, kVectors))) << slot;
  }
  EXPECT_EQ(gpu::CountEmulatedPins().copies, before.copies + 2);
  pinned->reset();
  EXPECT_EQ(gpu::CountEmulatedPins().live, before.live);
}

TEST_F(PinnedSlots, WhatCannotBePinnedIsSaidWithItsReason) {
  using testing::HasSubstr;
  const auto mover = *ops_->MakeKvMover(kSlot, true), without = *ops_->MakeKvMover(kSlot, false);
  const auto error = [&](KvMover& of) { return std::string(of.Pin(slots_).status().message()); };
  EXPECT_THAT(error(*without), HasSubstr("no inbox (--no-kv-cuda-ipc)"));
  gpu::RefuseEmulatedPins("operation not supported");
  EXPECT_EQ(error(*mover), "operation not supported");
  gpu::RefuseEmulatedPins("");
  const auto once = mover->Pin(slots_);
  ASSERT_TRUE(once.ok());
  EXPECT_THAT(error(*mover), HasSubstr("already mapped"));
}

TEST_F(PinnedSlots, BeyondTheInboxIsOurFault) {
  const auto mover = *ops_->MakeKvMover(kSlot, true);
  EXPECT_DEATH(mover->FetchPinned(slots_, 0), "8192 bytes of a slot to 0 of an inbox");
  EXPECT_DEATH(mover->FetchPinned(std::span(slots_).first(16), 4090), "16 bytes of a slot to 4090");
}

}  // namespace
}  // namespace baton::kernels
