// RMSNorm, gated activations and embedding against double precision.
#include <algorithm>

#include "kernels/cuda/rows/activation.cuh"
#include "kernels/cuda/rows/embedding.cuh"
#include "kernels/cuda/rows/rmsnorm.cuh"
#include "tests/kernels/cuda/padded_rows.h"
#include "tests/kernels/cuda/shape_sweep.h"

namespace baton::cuda_test {
namespace {

template <typename In, typename Out>
void CheckRmsNorm(int rows, int n, bool add, float out_scale) {
  Data data(rows * 1000 + n);
  const auto x = data.Normal<In>(static_cast<size_t>(rows) * n);
  const auto residual = data.Normal<float>(x.size(), 2.0f);
  const auto weight = data.Normal<float>(n);
  constexpr float kEps = 1e-5f, kOffset = 1.0f;
  std::vector<double> want_residual, want;
  for (int r = 0; r < rows; ++r) {
    double squares = 0;
    for (int i = 0; i < n; ++i) {
      const double v = residual[r * n + i] + (add ? px::ToFloat(x[r * n + i]) : 0.0);
      want_residual.push_back(v);
      squares += v * v;
    }
    for (int i = 0; i < n; ++i)
      want.push_back(want_residual[r * n + i] / std::sqrt(squares / n + kEps) * (weight[i] + kOffset) / out_scale);
  }
  const PaddedRows<In> dx(x, rows, n, 8);
  DeviceArray<float> dw(weight);
  const PaddedRows<float> dr(residual, rows, n, 4);
  const PaddedRows<Out> out(rows, n, 16);
  UnderEveryPolicy(
      [&](gpu::Stream& stream) {
        dr.Set(residual);
        out.Poison();
        LaunchRmsNorm(
            stream, cuda::RmsNormParams<In, Out>{add ? dx.data() : nullptr, dr.data(), dw.data(), out.data(), dx.stride,
                                                 dr.stride, out.stride, rows, n, kEps, kOffset, 1.0f / out_scale});
      },
      [&](const std::string& policy) {
        EXPECT_TRUE(Near(dr.Packed().data(), want_residual)) << policy;
        EXPECT_TRUE(Near(out.Packed().data(), want)) << policy << " rows " << rows << " n " << n;
        EXPECT_TRUE(dr.GapsAreUntouched() && out.GapsAreUntouched()) << policy << " rows " << rows << " n " << n;
      });
}

TEST(CudaRmsNorm, MatchesDoublePrecision) {
  for (int n : {8, 576, 1000, 4096, 5120}) {
    CheckRmsNorm<px::bf16, px::bf16>(1, n, true, 1.0f);
    CheckRmsNorm<float, float>(3, n, true, 1.0f);
  }
  CheckRmsNorm<px::bf16, px::bf16>(5, 2048, false, 1.0f);
  CheckRmsNorm<px::bf16, px::e4m3>(2, 1024, true, 0.05f);
  CheckRmsNorm<px::bf16, px::bf16>(0, 64, true, 1.0f);
}

TEST(CudaRmsNorm, AnyShape) {
  Sweep(8, [](Draw& draw) {
    auto shape = [&](auto&& check) { check(draw.Int(0, 4), draw.Multiple(8, 16384), draw.Chance(2)); };
    shape([](int rows, int n, bool add) { CheckRmsNorm<px::bf16, px::bf16>(rows, n, add, 1.0f); });
    shape([](int rows, int n, bool add) { CheckRmsNorm<px::bf16, float>(rows, n, add, 1.0f); });
    shape([](int rows, int n, bool add) { CheckRmsNorm<float, px::bf16>(rows, n, add, 1.0f); });
    shape([](int rows, int n, bool add) { CheckRmsNorm<float, float>(rows, n, add, 1.0f); });
    shape([](int rows, int n, bool add) { CheckRmsNorm<px::bf16, px::e4m3>(rows, n, add, 0.03f); });
  });
}

template <typename Out>
constexpr double kLargest = sizeof(Out) == 1 ? 448.0 : 3e38;  ///< e4m3 saturates

template <cuda::Gate kGate, typename Out>
void CheckGate(int rows, int n) {
  Data data(rows * 31 + n);
  constexpr float kInverseScale = sizeof(Out) == 1 ? 4.0f : 1.0f;
  auto x = data.Normal<px::bf16>(static_cast<size_t>(rows) * 2 * n, 2.0f);
  for (int r = 0; r < rows; ++r)  // where exp and tanh have their ends
    for (float far : {-1e4f, -90.0f, 90.0f, 0.0f})
      if (far < 50.0f || sizeof(Out) > 1) x[r * 2 * n + data.Int(0, n - 1)] = px::FromFloat<px::bf16>(far);
  std::vector<double> want;
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < n; ++i) {
      const double g = px::ToFloat(x[r * 2 * n + i]), up = px::ToFloat(x[r * 2 * n + n + i]);
      const double act = kGate == cuda::Gate::kSilu
                             ? g / (1 + std::exp(-g))
                             : 0.5 * g * (1 + std::tanh(0.7978845608028654 * (g + 0.044715 * g * g * g)));
      want.push_back(std::clamp(act * up * kInverseScale, -kLargest<Out>, kLargest<Out>));
    }
  }
  const PaddedRows<px::bf16> dx(x, rows, 2 * n, 8);
  const PaddedRows<Out> out(rows, n, 16);
  UnderEveryPolicy(
      [&](gpu::Stream& stream) {
        out.Poison();
        cuda::LaunchGatedActivation<kGate>(
            stream,
            cuda::GatedActivationParams<Out>{dx.data(), out.data(), dx.stride, out.stride, rows, n, kInverseScale});
      },
      [&](const std::string& policy) {
        EXPECT_TRUE(Near(out.Packed().data(), want)) << policy << " rows " << rows << " n " << n;
        EXPECT_TRUE(out.GapsAreUntouched()) << policy << " rows " << rows << " n " << n;
      });
}

TEST(CudaGatedActivation, MatchesDoublePrecision) {
  for (int n : {8, 1536, 2056}) {
    CheckGate<cuda::Gate::kSilu, px::bf16>(1, n);
    CheckGate<cuda::Gate::kGeluTanh, px::bf16>(3, n);
  }
  CheckGate<cuda::Gate::kSilu, px::e4m3>(2, 512);
}

TEST(CudaGatedActivation, AnyShape) {
  Sweep(8, [](Draw& draw) {
    CheckGate<cuda::Gate::kSilu, px::bf16>(draw.Int(0, 5), draw.Multiple(8, 6000));
    CheckGate<cuda::Gate::kGeluTanh, px::bf16>(draw.Int(0, 5), draw.Multiple(8, 6000));
    CheckGate<cuda::Gate::kSilu, px::e4m3>(draw.Int(0, 5), draw.Multiple(8, 6000));
    CheckGate<cuda::Gate::kGeluTanh, px::e4m3>(draw.Int(0, 5), draw.Multiple(8, 6000));
  });
}

/// This rank holds ids 100 … 149.
template <typename Table>
void CheckEmbedding(const std::vector<int32_t>& ids, int hidden) {
  constexpr int kVocab = 50;
  Data data(3);
  const auto table = data.Normal<Table>(static_cast<size_t>(kVocab) * hidden);
  std::vector<double> want;
  for (int id : ids)
    for (int i = 0; i < hidden; ++i)
      want.push_back(id < 100 || id >= 150 ? 0.0 : 3.0 * px::ToFloat(table[(id - 100) * hidden + i]));
  const PaddedRows<Table> dtable(table, kVocab, hidden, 8);
  DeviceArray<int32_t> dids(ids);
  const PaddedRows<float> out(static_cast<int>(ids.size()), hidden, 4);
  UnderEveryPolicy(
      [&](gpu::Stream& stream) {
        out.Poison();
        cuda::LaunchEmbedding<Table>(stream, {dids.data(), dtable.data(), out.data(), dtable.stride, out.stride,
                                              static_cast<int>(ids.size()), hidden, 100, kVocab, 3.0f});
      },
      [&](const std::string& policy) {
        EXPECT_TRUE(Near(out.Packed().data(), want)) << policy << " hidden " << hidden;
        EXPECT_TRUE(out.GapsAreUntouched()) << policy << " hidden " << hidden;
      });
}
TEST(CudaEmbedding, GathersScalesAndZeroesForeignIds) {
  CheckEmbedding<px::bf16>({109, 100, 149, 99, 150, 117}, 584);
  CheckEmbedding<px::f16>({149, 7}, 8);
  CheckEmbedding<float>({101}, 4096);
  CheckEmbedding<px::bf16>({}, 64);
  Sweep(8, [](Draw& draw) {
    std::vector<int32_t> ids(static_cast<size_t>(draw.Size(40)));
    for (int32_t& id : ids) id = draw.Int(90, 160);
    CheckEmbedding<px::bf16>(ids, draw.Multiple(8, 3000));
    CheckEmbedding<px::f16>(ids, draw.Multiple(8, 3000));
    CheckEmbedding<float>(ids, draw.Multiple(8, 3000));
  });
}

}  // namespace
}  // namespace baton::cuda_test
