// Linear layers whose weights and inputs are e4m3: every backend gives the sums of what is left of both, a row by
// itself in whatever batch, and what is fused to such a layer has the bits of its parts.
#include <gtest/gtest.h>

#include "tests/kernels/contract/backends.h"
#include "tests/kernels/contract/drawn_weights.h"
#include "tests/kernels/contract/host_tensor.h"
#include "tests/kernels/contract/host_tensor_ops.h"
#include "tests/kernels/tolerance.h"

namespace baton::kernels {
namespace {

using Kind = InputRounding::Kind;

struct RoundedLayer {
  int n, k, group;
  InputRounding rounding;
};
const RoundedLayer kLayers[] = {{40, 256, 128, {Kind::kByToken, 0.0f}},
                                {21, 200, 200, {Kind::kByToken, 0.0f}},
                                {33, 192, 64, {Kind::kByToken, 0.0f}},
                                {24, 72, 72, {Kind::kFixed, 0.01f}}};

/// Root mean square of got − want, as a part of want's.
double Error(const HostTensor& got, const std::vector<double>& want) {
  double error = 0, size = 0;
  for (int64_t r = 0; r < got.rows(); ++r)
    for (int64_t c = 0; c < got.cols(); ++c) {
      const double value = want[static_cast<size_t>(r * got.cols() + c)];
      error += std::pow(got.At(r, c) - value, 2);
      size += value * value;
    }
  return std::sqrt(error / size);
}

class RoundedLinearContract : public testing::TestWithParam<Backend> {
 protected:
  std::unique_ptr<PackedLinear> Packed(const QuantizedWeight& w, const float* bias) {
    auto packed = ops_->PackQuantized(w, bias);
    EXPECT_TRUE(packed.ok()) << packed.status();
    return *std::move(packed);
  }
  std::vector<float> Floats(int n) {
    std::vector<float> v(static_cast<size_t>(n));
    for (float& x : v) x = std::normal_distribution<float>()(rng_);
    return v;
  }
  const DType compute_ = GetParam().compute;
  const bool slow_ = GetParam().slow;
  std::unique_ptr<Ops> ops_ = GetParam().make(compute_);
  std::mt19937 rng_{23};
};

TEST_P(RoundedLinearContract, MultipliesWhatIsLeftOfItsInputs) {
  for (const RoundedLayer& l : kLayers) {
    const QuantizedWeight w = DrawRounded(l.n, l.k, l.group, l.rounding, rng_);
    const std::vector<float> values = DequantizedF32(w);
    const std::vector<float> bias = Floats(l.n);
    auto packed = Packed(w, bias.data());
    EXPECT_TRUE(packed->rounds_inputs());
    EXPECT_EQ(packed->in_features(), l.k);
    for (const int m : {1, 9, 40}) {
      HostTensor x(compute_, m, l.k, 8), out(DType::kF32, m, l.n, 2);
      x.Fill(rng_, 2.0f);
      ops_->Linear(x.view(), *packed, out.view());
      ops_->Sync();
      std::vector<double> want, unrounded;
      for (int r = 0; r < m; ++r) {
        std::vector<float> row, rounded;
        for (int i = 0; i < l.k; ++i) row.push_back(x.At(r, i));
        rounded = row;
        RoundInputs(l.rounding, row.data(), l.k, l.group, rounded.data());
        for (int c = 0; c < l.n; ++c) {
          double sum = bias[static_cast<size_t>(c)], plain = sum, size = std::abs(sum);
          for (int i = 0; i < l.k; ++i) {
            const double weight = values[static_cast<size_t>(c * l.k + i)];
            sum += weight * rounded[static_cast<size_t>(i)];
            plain += weight * row[static_cast<size_t>(i)];
            size += std::abs(weight * rounded[static_cast<size_t>(i)]);
          }
          want.push_back(sum);
          unrounded.push_back(plain);
          if (slow_ || compute_ == DType::kF32) {
            ASSERT_TRUE(kernel_test::E4m3SumTolerance(size, l.k + 4).Holds(out.At(r, c), sum))
                << out.At(r, c) << ", want " << sum << ": M " << m << ", row " << r << ", column " << c;
          }
        }
      }
      // A host that computes in bf16 rounds what the codes stand for to it.
      EXPECT_LT(Error(out, want), 0.005) << "M " << m << ", k " << l.k;
      EXPECT_GT(Error(out, unrounded), 0.01) << "M " << m << ", k " << l.k;
    }
  }
}

TEST_P(RoundedLinearContract, FusedFormsAreTheirParts) {
  const int n = 32, k = 256;
  auto gate_up = Packed(DrawRounded(2 * n, k, 128, {Kind::kByToken, 0.0f}, rng_), nullptr),
       down = Packed(DrawRounded(k, n, n, {Kind::kByToken, 0.0f}, rng_), nullptr);
  const std::vector<float> norm = Floats(k);
  for (const int m : {1, 5, 20}) {
    HostTensor x(DType::kF32, m, k), normed(compute_, m, k), both(compute_, m, 2 * n), gated(compute_, m, n),
        product(DType::kF32, m, k);
    x.Fill(rng_);
    HostTensor residual = x, want = x, wide = both, got = gated, more = product;
    ops_->RmsNorm(x.view(), norm.data(), 0, 1e-6f, normed.view());
    ops_->Linear(normed.view(), *gate_up, both.view());
    ops_->GatedActivation(Activation::kSilu, both.view(), gated.view());
    ops_->Linear(gated.view(), *down, product.view());
    ops_->Add(product.view(), want.view());
    ops_->GatedLinear(normed.view(), *gate_up, Activation::kSilu, wide.view(), got.view());
    ops_->LinearAdd(got.view(), *down, more.view(), residual.view());
    ops_->Sync();
    for (int r = 0; r < m; ++r) {
      ASSERT_EQ(got.Row(r), gated.Row(r)) << "M " << m;
      ASSERT_EQ(residual.Row(r), want.Row(r)) << "M " << m;
    }
  }
}

#if !defined(__CUDACC__)
// mma.sync in place of wgmma, whatever the number of rows.
TEST(RoundedLinearWithoutWgmma, HasTheSameBits) {
  std::mt19937 rng(7);
  auto with = *MakeHostTensorOps({}), without = *MakeHostTensorOps({.wgmma_differs = true});
  EXPECT_NE(with->traits().kernel_version, without->traits().kernel_version);
  for (const RoundedLayer& l : kLayers) {
    const QuantizedWeight weight = DrawRounded(l.n, l.k, l.group, l.rounding, rng);
    auto w = *with->PackQuantized(weight, nullptr), other_w = *without->PackQuantized(weight, nullptr);
    for (const int m : {1, 17, 130}) {
      HostTensor x(DType::kBF16, m, l.k), out(DType::kF32, m, l.n);
      x.Fill(rng, 5.0f);
      HostTensor other = out;
      with->Linear(x.view(), *w, out.view());
      without->Linear(x.view(), *other_w, other.view());
      with->Sync();
      without->Sync();
      for (int r = 0; r < m; ++r) ASSERT_EQ(out.Row(r), other.Row(r)) << "k " << l.k << ", M " << m;
    }
  }
}
#endif

INSTANTIATE_TEST_SUITE_P(All, RoundedLinearContract, testing::ValuesIn(Backends()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace baton::kernels
