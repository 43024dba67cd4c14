// A GPU that fails ends the process, in one line and with one exit code, wherever the host finds it out.
#include "common/device_failure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <vector>

#include "common/kv_mover.h"
#include "kernels/cuda/host/cuda_ops.h"
#include "kernels/runtime/emulated_device.h"

namespace baton::kernels {
namespace {

constexpr int kVocab = 200;

/// `wait` finds that the GPU has failed.
void ExpectEnd(const std::function<void()>& wait) {
  EXPECT_EXIT(
      {
        gpu::SetEmulatedFault("uncorrectable ECC error encountered");
        wait();
      },
      testing::ExitedWithCode(kDeviceFailureExitCode),
      testing::Eq("baton: the GPU failed: uncorrectable ECC error encountered (cuda:0)\n"));
}

class DeviceFailureDeathTest : public testing::Test {
 protected:
  void SetUp() override {
    auto ops = MakeCudaOps({});
    ASSERT_TRUE(ops.ok()) << ops.status();
    ops_ = *std::move(ops);
    auto memory = ops_->Allocate(size_t{1} << 16);
    ASSERT_TRUE(memory.ok()) << memory.status();
    memory_ = *std::move(memory);
  }
  Tensor Logits() { return Tensor(memory_->data(), DType::kF32, {1, kVocab}); }

  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Buffer> memory_;
};

TEST_F(DeviceFailureDeathTest, WhenItIsWaitedFor) {
  ExpectEnd([&] { ops_->Sync(); });
  ExpectEnd([&] {
    char byte;
    ops_->CopyToHost(&byte, memory_->data(), 1);
  });
}

TEST_F(DeviceFailureDeathTest, WhenWeightsAreLoaded) {
  const std::vector<float> weight(size_t{64} * 64, 0.5f);
  const auto tensor = [&](std::initializer_list<int64_t> shape) {
    return Tensor(const_cast<float*>(weight.data()), DType::kF32, shape);
  };
  ExpectEnd([&] { ops_->Pack(tensor({64, 64}), weight.data()).IgnoreError(); });
  ExpectEnd([&] { ops_->PackExperts(tensor({2, 32, 64}), weight.data()).IgnoreError(); });
}

TEST_F(DeviceFailureDeathTest, WhenTokensAreDrawnAtOnceOrTakenLater) {
  const std::vector<SampleRow> rows(1);
  ExpectEnd([&] { ops_->Sample(Logits(), rows); });
  const std::vector<int32_t> targets{7};
  ExpectEnd([&] { ops_->Logprobs(Logits(), targets, 1); });
  StepLimits limits;
  limits.rows = limits.sequences = limits.logit_rows = 1;
  limits.positions = 64;
  limits.vocab = kVocab;
  ASSERT_TRUE(ops_->Prepare(limits).ok());
  ExpectEnd([&] { ops_->BeginSample(Logits(), rows)->Take(); });
  ExpectEnd([&] { ops_->BeginSample(Logits(), rows).reset(); });
}

TEST_F(DeviceFailureDeathTest, WhenKvIsMoved) {
  const auto mover = ops_->MakeKvMover(4096, true);
  ASSERT_TRUE(mover.ok()) << mover.status();
  KvMove move;
  move.cache = memory_->data();
  move.token_stride = 128;
  move.digests = static_cast<uint64_t*>(memory_->data()) + 4096;
  move.digest_stride = 1;
  move.tokens = 16;
  move.heads = 1;
  move.dim = 64;
  std::vector<KvMoved> segments(1);
  for (const KvPacked packed : {KvPacked::kStaging, KvPacked::kOutbox, KvPacked::kInbox}) {
    ExpectEnd([&] { (*mover)->Gather({&move, 1}, segments, packed).IgnoreError(); });
    ExpectEnd([&] { (*mover)->Scatter({&move, 1}, segments, packed).IgnoreError(); });
  }
  ExpectEnd([&] { (*mover)->Open((*mover)->outbox().card).IgnoreError(); });
}

TEST_F(DeviceFailureDeathTest, OnceThoughSeveralThreadsFindItOut) {
  ExpectEnd([&] {
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) threads.emplace_back([] { EndIfDeviceFailed(gpu::Stream().Synchronize()); });
    for (std::thread& thread : threads) thread.join();
  });
}

}  // namespace
}  // namespace baton::kernels
