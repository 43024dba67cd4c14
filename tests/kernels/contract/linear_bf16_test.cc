// Linear layers in bf16, in AMX tiles, in AVX512_BF16's vectors or through oneDNN: right within the rounding of f32
// sums, and a row's bits depend on the row alone. A machine without bf16 instructions emulates them through oneDNN,
// which is slow, and disagrees between sizes: the same test covers how sizes are chosen.
#include <gtest/gtest.h>

#include "kernels/cpu/bf16_product.h"
#include "kernels/cpu/cpu_ops.h"
#include "tests/kernels/contract/host_tensor.h"

namespace baton::kernels {
namespace {

struct Bf16Shape {
  int64_t n, k;
};
const Bf16Shape kBf16Shapes[] = {{64, 64}, {70, 40}, {130, 257}, {576, 576}, {1088, 320}, {33, 31}};

std::unique_ptr<Ops> MakeOrNull(int threads) {
  auto ops = MakeCpuOps({.threads = threads, .dtype = DType::kBF16, .isa = CpuIsa::kBest, .emulate_bf16 = true});
  return ops.ok() ? *std::move(ops) : nullptr;
}

class LinearBf16 : public testing::Test {
 protected:
  void SetUp() override {
    HostTensor w(DType::kBF16, 64, 64);
    if (ops_ == nullptr || !ops_->Pack(w.view(), nullptr).ok())
      GTEST_SKIP() << "oneDNN has no bf16 here: " << cpu::OneDnnIsa("");
  }
  std::unique_ptr<Ops> ops_ = MakeOrNull(1), three_ = MakeOrNull(3);
  std::mt19937 rng_{1};
};

TEST_F(LinearBf16, EqualsTheDoubleSumWithinF32Rounding) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Bf16Shape& s : kBf16Shapes) {
      HostTensor x(DType::kBF16, 19, s.k, 5), w(dtype, s.n, s.k, 3), out(DType::kF32, 19, s.n, 2);
      x.Fill(rng_), w.Fill(rng_, 0.3f);
      std::vector<float> bias(static_cast<size_t>(s.n));
      for (float& b : bias) b = std::normal_distribution<float>()(rng_);
      auto packed = ops_->Pack(w.view(), bias.data());
      ASSERT_TRUE(packed.ok()) << packed.status();
      ops_->Linear(x.view(), **packed, out.view());
      for (int64_t r = 0; r < 19; ++r) {
        for (int64_t c = 0; c < s.n; ++c) {
          double sum = bias[c], size = std::abs(bias[c]);
          for (int64_t i = 0; i < s.k; ++i) {
            const double product = double{x.At(r, i)} * FromBf16(ToBf16(w.At(c, i)));
            sum += product, size += std::abs(product);
          }
          ASSERT_NEAR(out.At(r, c), sum, size * 0x1p-24 * (s.k + 2))
              << "n " << s.n << " k " << s.k << " row " << r << " column " << c;
        }
      }
    }
  }
}

TEST_F(LinearBf16, ARowHasItsBitsInEveryBatchAndPlaceOnAnyThreads) {
  for (DType out_dtype : {DType::kF32, DType::kBF16}) {
    for (const Bf16Shape& s : kBf16Shapes) {
      HostTensor w(DType::kBF16, s.n, s.k), one(DType::kBF16, 1, s.k), alone(out_dtype, 1, s.n);
      w.Fill(rng_), one.Fill(rng_);
      auto packed = *ops_->Pack(w.view(), nullptr);
      auto theirs = *three_->Pack(w.view(), nullptr);
      ops_->Linear(one.view(), *packed, alone.view());
      for (int64_t m : {1, 2, 3, 5, 8, 13, 16, 17, 31, 64, 65, 100, 129, 300}) {
        HostTensor x(DType::kBF16, m, s.k, 1), out(out_dtype, m, s.n);
        x.Fill(rng_);
        const int64_t place = static_cast<int64_t>(rng_() % static_cast<uint64_t>(m));
        for (int64_t i = 0; i < s.k; ++i) x.Set(place, i, one.At(0, i));
        ops_->Linear(x.view(), *packed, out.view());
        ASSERT_EQ(out.Row(place), alone.Row(0)) << "M " << m << " place " << place << " n " << s.n << " k " << s.k;
        three_->Linear(x.view(), *theirs, out.view());
        ASSERT_EQ(out.Row(place), alone.Row(0))
            << "3 threads, M " << m << " place " << place << " n " << s.n << " k " << s.k;
      }
    }
  }
}

TEST_F(LinearBf16, AColumnHasItsBitsWhateverIsPackedWithIt) {
  for (const Bf16Shape& s : std::vector<Bf16Shape>{{64, 64}, {130, 257}, {576, 320}, {1088, 96}}) {
    HostTensor x(DType::kBF16, 9, s.k), w(DType::kBF16, s.n, s.k), whole(DType::kF32, 9, s.n);
    x.Fill(rng_), w.Fill(rng_);
    ops_->Linear(x.view(), **ops_->Pack(w.view(), nullptr), whole.view());
    for (const auto& [first, end] :
         std::vector<std::pair<int64_t, int64_t>>{{0, s.n / 2}, {s.n / 2, s.n}, {s.n / 4 + 1, s.n / 4 + 3}}) {
      HostTensor part(DType::kF32, 9, end - first);
      ops_->Linear(x.view(), **ops_->Pack(w.view().Rows(first, end - first), nullptr), part.view());
      for (int64_t r = 0; r < 9; ++r) {
        for (int64_t c = first; c < end; ++c)
          ASSERT_EQ(part.At(r, c - first), whole.At(r, c)) << "column " << c << " of " << s.n << ", k " << s.k;
      }
    }
  }
}

TEST_F(LinearBf16, WritesNothingBesideItsRows) {
  HostTensor x(DType::kBF16, 9, 40), w(DType::kF32, 70, 40), out(DType::kF32, 9, 70, 11);
  x.Fill(rng_), w.Fill(rng_);
  HostTensor before = out;
  auto packed = *ops_->Pack(w.view(), nullptr);
  ops_->Linear(x.view(), *packed, out.view());
  const float* after = static_cast<const float*>(out.view().data);
  const float* old = static_cast<const float*>(before.view().data);
  for (int64_t r = 0; r < 9; ++r)
    ASSERT_EQ(std::memcmp(after + r * 81 + 70, old + r * 81 + 70, 11 * 4), 0) << "row " << r;
}

TEST_F(LinearBf16, SizesInUseCoverEveryNumberOfRows) {
  auto product = cpu::Bf16Product::Make(96, 128);
  ASSERT_TRUE(product.ok()) << product.status();
  const std::vector<int64_t>& sizes = (*product)->sizes();
  for (int64_t rows = 1; rows < 700; ++rows) {
    const int64_t size = (*product)->NextSize(rows);
    EXPECT_TRUE(std::ranges::find(sizes, size) != sizes.end()) << size;
    EXPECT_TRUE(size <= rows || rows <= 64 || sizes.size() == 1 || size == sizes.front())
        << rows << " rows in " << size;
  }
}

TEST(CpuOpsChoice, WhatMultipliesInBf16IsNamedInTheKernelVersion) {
  const std::string isa = cpu::OneDnnIsa("");
  const auto ops = MakeCpuOps({.dtype = DType::kBF16, .emulate_bf16 = true});
  if (!ops.ok()) GTEST_SKIP() << ops.status();
  const OpsTraits& traits = (*ops)->traits();
  EXPECT_EQ(traits.isa, isa);
  const bool own = isa == "avx512_core_amx" || isa == "avx512_core_bf16";
  EXPECT_EQ(traits.kernel_version, own ? "cpu-7" : "cpu-3/onednn-" + cpu::OneDnnVersion());
  EXPECT_EQ(traits.packed_rows, own);
}

TEST(CpuOpsChoice, Bf16WithoutItsInstructionsIsRefusedByName) {
  const std::string isa = cpu::OneDnnIsa("");
  const auto ops = MakeCpuOps({.dtype = DType::kBF16});
  if (isa == "avx512_core_bf16" || isa == "avx512_core_amx") {
    ASSERT_TRUE(ops.ok()) << ops.status();
    EXPECT_EQ((*ops)->traits().isa, isa);
    EXPECT_EQ((*MakeCpuOps({}))->traits().compute, DType::kBF16) << "auto";
    return;
  }
  EXPECT_EQ(ops.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(ops.status().message().find(isa), std::string::npos) << ops.status();
  EXPECT_EQ((*MakeCpuOps({}))->traits().compute, DType::kF32) << "auto";
}

}  // namespace
}  // namespace baton::kernels
