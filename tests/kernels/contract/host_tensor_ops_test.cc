// What HostTensorOps finds: kernels that write where they may not, planted behind a call of the real device.
#include "tests/kernels/contract/host_tensor_ops.h"

#include <gtest/gtest.h>

#include "kernels/cuda/host/cuda_ops_class.h"
#include "tests/kernels/contract/host_tensor.h"

namespace baton::kernels {
namespace {

enum class Trespass { kNone, kBehind, kIntoWhatIsRead, kBehindWhatIsRead };

/// Its addition writes one element too many.
class TrespassingOps final : public CudaOps {
 public:
  explicit TrespassingOps(Trespass trespass) : CudaOps({}, gpu::Memory(kMaxKvHeads * sizeof(float))), bug_(trespass) {}
  void Add(const Tensor& x, const Tensor& residual) override {
    CudaOps::Add(x, residual);
    const float element = 1;
    const auto write = [&](const Tensor& to, int64_t at) {
      CopyToDevice(to.Data<float>() + at, &element, sizeof(element));
    };
    const int64_t elements = x.rows() * x.cols();
    switch (bug_) {
      case Trespass::kNone: return;
      case Trespass::kBehind: return write(residual, elements);
      case Trespass::kIntoWhatIsRead: return write(x, elements - 1);
      case Trespass::kBehindWhatIsRead: return write(x, elements);
    }
  }

 private:
  const Trespass bug_;
};

/// residual += x by ops with the bug.
HostTensor Sum(Trespass bug) {
  const auto ops = OnHostTensors(std::make_unique<TrespassingOps>(bug));
  std::mt19937 rng(3);
  HostTensor x(DType::kF32, 3, 8), residual(DType::kF32, 3, 8);
  x.Fill(rng);
  residual.Fill(rng);
  HostTensor want = residual;
  for (int64_t r = 0; r < x.rows(); ++r)
    for (int64_t c = 0; c < x.cols(); ++c) want.Set(r, c, residual.At(r, c) + x.At(r, c));
  ops->Add(x.view(), residual.view());
  ops->Sync();
  for (int64_t r = 0; r < x.rows(); ++r) EXPECT_EQ(residual.Row(r), want.Row(r));
  return residual;
}

TEST(HostTensorOps, FindsACallThatWritesBehindATensor) {
  Sum(Trespass::kNone);
  EXPECT_DEATH(Sum(Trespass::kBehind), "a call wrote behind a tensor of 96 bytes");
  EXPECT_DEATH(Sum(Trespass::kBehindWhatIsRead), "a call wrote behind a tensor of 96 bytes");
}

TEST(HostTensorOps, FindsACallThatWritesIntoATensorThatItOnlyReads) {
  EXPECT_DEATH(Sum(Trespass::kIntoWhatIsRead), "a call wrote into a tensor of 96 bytes that it only reads");
}

}  // namespace
}  // namespace baton::kernels
