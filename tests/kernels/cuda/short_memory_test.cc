// A device without memory for the n-th allocation: a status says so, nothing is lost, nothing crashes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <tuple>
#include <vector>

#include "common/status.h"
#include "kernels/cuda/host/cuda_ops.h"
#include "kernels/cuda/host/weight_upload.h"
#include "kernels/runtime/emulated_device.h"
#include "tests/kernels/contract/drawn_weights.h"

namespace baton::kernels {
namespace {

/// What a start allocates: the backend itself, weights with biases, experts, a buffer.
absl::Status Start() {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Ops> ops, MakeCudaOps({}));
  std::vector<float> weight(64 * 64, 0.5f), bias(64, 0.25f);
  BATON_ASSIGN_OR_RETURN(auto linear, ops->Pack(Tensor(weight.data(), DType::kF32, {64, 64}), bias.data()));
  BATON_ASSIGN_OR_RETURN(auto experts, ops->PackExperts(Tensor(weight.data(), DType::kF32, {2, 32, 64}), bias.data()));
  BATON_ASSIGN_OR_RETURN(auto buffer, ops->Allocate(4096));
  ops->Sync();
  return absl::OkStatus();
}

TEST(ShortMemory, EveryAllocationThatFailsIsAStatusWithBothNumbersAndLosesNothing) {
  const size_t free = gpu::CurrentDevice().free_bytes;
  gpu::FailAllocation(0);
  ASSERT_TRUE(Start().ok());
  const int64_t all = gpu::AllocationCount();
  ASSERT_EQ(all, 8) << "scales, weight, two pinned halves, bias, experts, biases, buffer";
  for (int64_t n = 1; n <= all; ++n) {
    gpu::FailAllocation(n);
    const absl::Status status = Start();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << n << ": " << status;
    EXPECT_THAT(std::string(status.message()),
                testing::ContainsRegex("needs [0-9]+ (bytes of device memory, [0-9]+ of|× [0-9]+ bytes of pinned)"))
        << n;
    EXPECT_EQ(gpu::CurrentDevice().free_bytes, free) << n;
  }
  gpu::FailAllocation(0);
  EXPECT_TRUE(Start().ok());
}

/// Of layers in codes: those with an order of their inputs, e4m3 ones, and such as round their inputs; with biases.
absl::Status PackAllCodes(Ops& ops) {
  std::mt19937 random(5);
  const std::vector<float> bias(64, 0.25f);
  for (const QuantizedWeight& weight :
       {DrawBits(4, 64, 128, 64, random), DrawOrdered(8, 64, 128, 64, random), DrawFloat8(64, 128, 64, random),
        DrawRounded(64, 128, 128, {InputRounding::Kind::kByToken}, random)}) {
    BATON_ASSIGN_OR_RETURN(auto packed, ops.PackQuantized(weight, bias.data()));
    ops.Sync();
  }
  return absl::OkStatus();
}

/// What a worker of a role allocates beside: lists and pinned memory, and where it lends, outbox and inbox.
absl::Status MoveKv(Ops& ops, bool lends) { return ops.MakeKvMover(4096, lends).status(); }

// Of what the n-th allocation was for nothing is left behind.
TEST(ShortMemory, EveryAllocationOfCodesAndOfKvThatMovesThatFailsIsAStatusWithBothNumbers) {
  const auto move = [](bool lends) { return [lends](Ops& ops) { return MoveKv(ops, lends); }; };
  for (const auto& [name, fewest, start] :
       {std::tuple<std::string, int64_t, std::function<absl::Status(Ops&)>>{"codes", 13, &PackAllCodes},
        {"staged KV", 3, move(false)},
        {"lent KV", 5, move(true)}}) {
    gpu::FailAllocation(0);
    auto ops = MakeCudaOps({}).value();
    const size_t free = gpu::CurrentDevice().free_bytes;
    gpu::FailAllocation(0);
    ASSERT_TRUE(start(*ops).ok()) << name;
    const int64_t all = gpu::AllocationCount();
    EXPECT_GE(all, fewest) << name;
    for (int64_t n = 1; n <= all; ++n) {
      gpu::FailAllocation(0);
      ops = MakeCudaOps({}).value();  // another has the pinned memory already through which weights go
      gpu::FailAllocation(n);
      const absl::Status status = start(*ops);
      EXPECT_TRUE(absl::IsResourceExhausted(status)) << name << " " << n << ": " << status;
      EXPECT_THAT(
          std::string(status.message()),
          testing::ContainsRegex("needs? [0-9]+ (bytes of device memory, [0-9]+ of|(× [0-9]+ )?bytes of pinned)"))
          << name << " " << n;
      EXPECT_EQ(gpu::CurrentDevice().free_bytes, free) << name << " " << n;
    }
    gpu::FailAllocation(0);
    EXPECT_TRUE(start(*ops).ok()) << name;
  }
}

/// What a worker of a role makes at its start: the backend's and the loading's, a step's, and what moves KV.
absl::Status StartOfARole() {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Ops> ops, MakeCudaOps({.device = 2}));
  std::vector<float> weight(64 * 64, 0.5f);
  BATON_ASSIGN_OR_RETURN(auto linear, ops->Pack(Tensor(weight.data(), DType::kF32, {64, 64}), nullptr));
  BATON_ASSIGN_OR_RETURN(auto mover, ops->MakeKvMover(4096, true));
  StepLimits limits;
  limits.rows = limits.sequences = limits.logit_rows = 1;
  limits.positions = 64;
  limits.vocab = 200;
  return ops->Prepare(limits);
}

TEST(ShortMemory, EveryContextStreamAndEventThatIsNotMadeIsAStatusThatNamesTheDeviceAndItsMemory) {
  gpu::RefuseMaking(0);
  ASSERT_TRUE(StartOfARole().ok());
  const int64_t all = gpu::MakingCount();
  ASSERT_EQ(all, 12)
      << "context, stream, ends of two steps, two pinned halves, two streams of KV, two inputs, two draws";
  const size_t free = gpu::CurrentDevice().free_bytes;
  for (int64_t n = 1; n <= all; ++n) {
    gpu::RefuseMaking(n);
    const absl::Status status = StartOfARole();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << n << ": " << status;
    EXPECT_THAT(std::string(status.message()),
                testing::MatchesRegex(n == 1 ? "cuda:2 does not make a context: out of memory; it has [0-9]+ bytes of "
                                               "memory"
                                             : "cuda:2 does not make (a stream|an event): out of memory; [0-9]+ of its "
                                               "[0-9]+ bytes of memory are free"))
        << n;
    EXPECT_EQ(gpu::CurrentDevice().free_bytes, free) << n;
  }
  gpu::RefuseMaking(0);
  EXPECT_TRUE(StartOfARole().ok());
  gpu::BindTo(0);
}

// Each half is filled again while the other's copy may not have begun.
TEST(ShortMemory, AWeightLongerThanThePinnedMemoryArrivesWhole) {
  gpu::Stream stream;
  cuda::WeightUpload upload(stream, 600);  // two rows at a time
  constexpr int64_t kRows = 37, kColumns = 100, kStride = 128;
  std::vector<float> weight(kRows * kColumns);
  for (size_t i = 0; i < weight.size(); ++i) weight[i] = static_cast<float>(i % 251);
  gpu::Memory to(kRows * kStride * sizeof(px::bf16), gpu::MemoryKind::kShared);
  auto* got = static_cast<px::bf16*>(to.data());
  ASSERT_TRUE(upload.Rows(Tensor(weight.data(), DType::kF32, {kRows, kColumns}), got, kStride).ok());
  ASSERT_EQ(stream.Synchronize(), "");
  for (int64_t r = 0; r < kRows; ++r)
    for (int64_t c = 0; c < kStride; ++c)
      ASSERT_EQ(px::ToFloat(got[r * kStride + c]), c < kColumns ? weight[r * kColumns + c] : 0.0f) << r << ", " << c;
}

TEST(ShortMemory, BytesThatAreMoreThanThePinnedMemoryArriveAsTheyAre) {
  gpu::Stream stream;
  cuda::WeightUpload upload(stream, 600);
  std::vector<unsigned char> from(600 * 5 + 7), got(from.size());
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i * 7 % 253);
  const std::vector<unsigned char> want = from;
  const gpu::Memory to(from.size());
  ASSERT_TRUE(upload.Bytes(from.data(), to.data(), from.size()).ok());
  std::ranges::fill(from, 0);  // it has been read
  stream.CopyAsync(got.data(), to.data(), got.size());
  ASSERT_EQ(stream.Synchronize(), "");
  EXPECT_EQ(got, want);
}

TEST(ShortMemory, ADeviceThatIsTooSmallSaysWhatForAndHowMuch) {
  const size_t total = gpu::CurrentDevice().total_bytes;
  gpu::SetEmulatedBytes(64 << 10);
  auto ops = MakeCudaOps({});
  ASSERT_TRUE(ops.ok()) << ops.status();
  std::vector<float> weight(512 * 512, 0.5f);
  const absl::Status status = (*ops)->Pack(Tensor(weight.data(), DType::kF32, {512, 512}), nullptr).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("a weight of 512 × 512 needs 524288 bytes"));
  gpu::SetEmulatedBytes(total);
}

}  // namespace
}  // namespace baton::kernels
