// Linear layers over quantized weights, and what is fused to a linear layer: each has the bits of the operations that
// it stands for, in whatever batch.
#include <gtest/gtest.h>

#include "tests/kernels/contract/backends.h"
#include "tests/kernels/contract/drawn_weights.h"
#include "tests/kernels/contract/host_tensor.h"
#include "tests/kernels/contract/host_tensor_ops.h"

namespace baton::kernels {
namespace {

struct Format {
  int bits;  ///< 16: a plain weight
  int group;
  bool ordered = false;  ///< inputs in another order than x, some for no column of it
  CodeKind kind = CodeKind::kInteger;
};
constexpr Format kFormats[] = {
    {16, 0}, {4, 32}, {4, 128}, {8, 64}, {4, 32, true}, {8, 64, true}, {8, 128, false, CodeKind::kE4m3}};

class FusedLinearContract : public testing::TestWithParam<Backend> {
 protected:
  std::unique_ptr<PackedLinear> PackIn(const Format& f, int n, int k, const float* bias) {
    auto packed = [&] {
      if (f.ordered) return ops_->PackQuantized(DrawOrdered(f.bits, n, k, f.group, rng_), bias);
      if (f.kind == CodeKind::kE4m3) return ops_->PackQuantized(DrawFloat8(n, k, f.group, rng_), bias);
      if (f.bits != 16) return ops_->PackQuantized(DrawBits(f.bits, n, k, f.group, rng_), bias);
      HostTensor w(DType::kBF16, n, k);
      w.Fill(rng_, 0.3f);
      return ops_->Pack(w.view(), bias);
    }();
    EXPECT_TRUE(packed.ok()) << packed.status();
    return *std::move(packed);
  }
  std::vector<float> Floats(int n) {
    std::vector<float> v(static_cast<size_t>(n));
    for (float& x : v) x = std::normal_distribution<float>()(rng_);
    return v;
  }
  std::vector<int> RowCounts() const {
    return slow_ ? std::vector<int>{1, 8, 20} : std::vector<int>{0, 1, 3, 8, 9, 40};
  }
  void ExpectSame(const HostTensor& got, const HostTensor& want, const std::string& what) {
    for (int64_t r = 0; r < want.rows(); ++r) ASSERT_EQ(got.Row(r), want.Row(r)) << what << ", row " << r;
  }

  const DType compute_ = GetParam().compute;
  const bool slow_ = GetParam().slow;
  std::unique_ptr<Ops> ops_ = GetParam().make(compute_);
  std::mt19937 rng_{21};
};

TEST(QuantizedWeight, IsRoundedOnceToBf16) {
  std::mt19937 rng(1);
  for (const Format& f : {Format{4, 32}, {8, 64}, {4, 192}}) {
    const QuantizedWeight w = DrawBits(f.bits, 5, 192, f.group, rng);
    const std::vector<uint16_t> rows = DequantizedBf16(w);
    for (size_t i = 0; i < rows.size(); ++i) {
      const size_t g = i / 192 * static_cast<size_t>(192 / f.group) + i % 192 / static_cast<size_t>(f.group);
      const double value = (int{w.codes[i]} - int{w.zeros[g]}) * double{w.scales[g]};
      ASSERT_NEAR(FromBf16(rows[i]), value, std::abs(value) * 0x1p-8) << f.bits << " bits, element " << i;
    }
  }
}

TEST_P(FusedLinearContract, AQuantizedWeightHasTheBitsOfItsDequantizedOne) {
  struct {
    int bits, n, k, group;
    bool float8 = false;
  } const shapes[] = {{4, 40, 128, 32}, {8, 33, 192, 64},        {4, 70, 256, 128},      {8, 17, 72, 72},
                      {4, 1, 64, 64},   {8, 40, 256, 128, true}, {8, 21, 200, 200, true}};
  for (const auto& s : shapes) {
    const QuantizedWeight w =
        s.float8 ? DrawFloat8(s.n, s.k, s.group, rng_) : DrawBits(s.bits, s.n, s.k, s.group, rng_);
    const std::vector<float> bias = Floats(s.n);
    auto packed = *ops_->PackQuantized(w, bias.data());
    EXPECT_EQ(packed->out_features(), s.n);
    EXPECT_EQ(packed->in_features(), s.k);
    std::vector<uint16_t> rows = DequantizedBf16(w);
    auto plain = *ops_->Pack(Tensor(rows.data(), DType::kBF16, {s.n, s.k}), bias.data());
    for (DType out_dtype : {DType::kF32, compute_}) {
      for (int m : RowCounts()) {
        HostTensor x(compute_, m, s.k, 8), got(out_dtype, m, s.n, 2), want = got;
        x.Fill(rng_);
        ops_->Linear(x.view(), *packed, got.view());
        ops_->Linear(x.view(), *plain, want.view());
        ops_->Sync();
        ExpectSame(got, want, "bits " + std::to_string(s.bits) + ", M " + std::to_string(m));
      }
    }
  }
}

// A device adds in the order of the inputs: bits of the same weight over x in that order. A host may add as x lies.
TEST_P(FusedLinearContract, InputsInAnOrderOfTheirOwnMultiplyTheirColumns) {
  for (const Format& f : {Format{4, 32}, {8, 64}}) {
    const int n = 40, k = 128;
    QuantizedWeight w = DrawOrdered(f.bits, n, k, f.group, rng_);
    const std::vector<int32_t> inputs = w.inputs;
    auto packed = *ops_->PackQuantized(w, nullptr);
    EXPECT_EQ(packed->in_features(), k);
    w.inputs.clear();
    auto plain = *ops_->PackQuantized(w, nullptr);
    for (int m : RowCounts()) {
      HostTensor x(compute_, m, k, 8), gathered(compute_, m, w.k), got(DType::kF32, m, n), want = got;
      x.Fill(rng_);
      for (int r = 0; r < m; ++r)
        for (int i = 0; i < w.k; ++i) {
          const int32_t column = inputs[static_cast<size_t>(i)];
          gathered.Set(r, i, column < 0 ? 0.0f : x.At(r, column));
        }
      ops_->Linear(x.view(), *packed, got.view());
      ops_->Linear(gathered.view(), *plain, want.view());
      ops_->Sync();
      if (slow_) ExpectSame(got, want, "M " + std::to_string(m));
      for (int r = 0; r < m; ++r)
        for (int c = 0; c < n; ++c) ASSERT_NEAR(got.At(r, c), want.At(r, c), 1e-3) << "row " << r << " output " << c;
    }
  }
}

// A GPU makes bf16 of codes that many rows multiply, a part of the outputs at a time where memory is short.
TEST(QuantizedLinear, OfManyRowsOnAGpuHasTheBitsOfFewInWhateverParts) {
  constexpr int kN = 300, kK = 72, kRows = 512;
  std::mt19937 rng(5);
  std::vector<float> bias(kN);
  for (float& b : bias) b = std::normal_distribution<float>()(rng);
  HostTensor x(DType::kBF16, kRows, kK);
  x.Fill(rng);
  for (const QuantizedWeight& w : {DrawBits(4, kN, kK, kK, rng), DrawFloat8(kN, kK, kK, rng)}) {
    std::vector<uint16_t> rows = DequantizedBf16(w);
    for (const bool deterministic : {true, false}) {
      auto roomy = *MakeHostTensorOps({.deterministic = deterministic}),
           narrow = *MakeHostTensorOps({.deterministic = deterministic, .work_bytes = 1});
      const auto run = [&](Ops& ops, const PackedLinear& weight, int m) {
        HostTensor out(DType::kF32, m, kN);
        ops.Linear(x.view().Rows(0, m), weight, out.view());
        ops.Sync();
        return out;
      };
      const HostTensor want =
          run(*roomy, **roomy->Pack(Tensor(rows.data(), DType::kBF16, {kN, kK}), bias.data()), kRows);
      for (Ops* ops : {roomy.get(), narrow.get()}) {
        const auto packed = *ops->PackQuantized(w, bias.data());
        const HostTensor got = run(*ops, *packed, kRows), few = run(*ops, *packed, 8);
        for (int r = 0; r < kRows; ++r) ASSERT_EQ(got.Row(r), want.Row(r)) << w.bits << " bits, row " << r;
        for (int r = 0; r < 8 && deterministic; ++r) ASSERT_EQ(got.Row(r), few.Row(r)) << w.bits << " bits, row " << r;
      }
    }
  }
}

TEST_P(FusedLinearContract, TheGateBehindItIsTheActivation) {
  for (const Format& f : kFormats) {
    for (int n : {32, 40}) {  // 40: no whole number of an int4 tile's columns
      const int k = 256;
      const std::vector<float> bias = Floats(2 * n);
      auto w = PackIn(f, 2 * n, k, bias.data());
      for (int m : RowCounts()) {
        const Activation act = m % 2 == 0 ? Activation::kSilu : Activation::kGeluTanh;
        HostTensor x(compute_, m, k, 8), both(compute_, m, 2 * n), got(compute_, m, n), want = got;
        x.Fill(rng_);
        ops_->Linear(x.view(), *w, both.view());
        ops_->GatedActivation(act, both.view(), want.view());
        ops_->Sync();
        HostTensor wide(compute_, m, 2 * n);
        ops_->GatedLinear(x.view(), *w, act, wide.view(), got.view());
        ops_->Sync();
        ExpectSame(got, want, "bits " + std::to_string(f.bits) + ", M " + std::to_string(m));
      }
    }
  }
}

TEST_P(FusedLinearContract, TheSumBehindItIsTheSum) {
  for (const Format& f : kFormats) {
    const int n = 24, k = 128;
    const std::vector<float> bias = Floats(n);
    auto w = PackIn(f, n, k, bias.data());
    for (int m : RowCounts()) {
      HostTensor x(compute_, m, k, 8), product(DType::kF32, m, n), got(DType::kF32, m, n, 8);
      x.Fill(rng_), got.Fill(rng_);
      HostTensor want = got;
      ops_->Linear(x.view(), *w, product.view());
      ops_->Add(product.view(), want.view());
      HostTensor scratch(DType::kF32, m, n);
      ops_->LinearAdd(x.view(), *w, scratch.view(), got.view());
      ops_->Sync();
      ExpectSame(got, want, "bits " + std::to_string(f.bits) + ", M " + std::to_string(m));
    }
  }
}

#if !defined(__CUDACC__)
// mma.sync and GEMV in place of wgmma, for any number of rows: the answers of a model are those of other GPUs.
TEST(FusedLinearWithoutWgmma, HasTheSameBits) {
  const int n = 40, k = 136;
  std::mt19937 rng(5);
  HostTensor weight(DType::kBF16, 2 * n, k);
  weight.Fill(rng, 0.3f);
  std::vector<float> bias(static_cast<size_t>(2 * n), 0.25f);
  auto with = *MakeHostTensorOps({}), without = *MakeHostTensorOps({.wgmma_differs = true});
  auto w = *with->Pack(weight.view(), bias.data()), other_w = *without->Pack(weight.view(), bias.data());
  for (const int m : {1, 4, 8, 9, 40, 130}) {
    HostTensor x(DType::kBF16, m, k, 8), both(DType::kBF16, m, 2 * n), gated(DType::kBF16, m, n),
        product(DType::kF32, m, 2 * n), residual = product;
    x.Fill(rng), residual.Fill(rng);
    HostTensor other_both = both, other_gated = gated, other_residual = residual;
    for (auto [ops, packed, plain, gate, sum] :
         {std::tuple{with.get(), w.get(), &both, &gated, &residual},
          {without.get(), other_w.get(), &other_both, &other_gated, &other_residual}}) {
      ops->LinearAdd(x.view(), *packed, product.view(), sum->view());
      HostTensor scratch = both;
      ops->GatedLinear(x.view(), *packed, Activation::kSilu, scratch.view(), gate->view());
      ops->Linear(x.view(), *packed, plain->view());
      ops->Sync();
    }
    for (int64_t r = 0; r < m; ++r) {
      EXPECT_EQ(both.Row(r), other_both.Row(r)) << "M " << m;
      EXPECT_EQ(gated.Row(r), other_gated.Row(r)) << "M " << m;
      EXPECT_EQ(residual.Row(r), other_residual.Row(r)) << "M " << m;
    }
  }
}
#endif

INSTANTIATE_TEST_SUITE_P(All, FusedLinearContract, testing::ValuesIn(Backends()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace baton::kernels
