// RMSNorm, gated activations and embedding against double precision.
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/embedding.cuh"
#include "kernels/cuda/rmsnorm.cuh"
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
  Array<In> dx(x);
  Array<float> dw(weight);
  Array<float> dr(residual.size());
  Array<Out> out(x.size());
  UnderEveryPolicy(
      [&](gpu::Stream& stream) {
        for (size_t i = 0; i < residual.size(); ++i) dr[i] = residual[i];
        for (size_t i = 0; i < out.size(); ++i) out[i] = Nan<Out>();
        LaunchRmsNorm(stream, cuda::RmsNormParams<In, Out>{add ? dx.data() : nullptr, dr.data(), dw.data(), out.data(),
                                                           n, n, n, rows, n, kEps, kOffset, 1.0f / out_scale});
      },
      [&](const std::string& policy) {
        EXPECT_TRUE(Near(dr.data(), want_residual)) << policy;
        EXPECT_TRUE(Near(out.data(), want)) << policy << " rows " << rows << " n " << n;
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
  Sweep(2, [](Draw& draw) {
    auto shape = [&](auto&& check) { check(draw.Int(0, 4), draw.Multiple(8, 16384), draw.Chance(2)); };
    shape([](int rows, int n, bool add) { CheckRmsNorm<px::bf16, px::bf16>(rows, n, add, 1.0f); });
    shape([](int rows, int n, bool add) { CheckRmsNorm<px::bf16, float>(rows, n, add, 1.0f); });
    shape([](int rows, int n, bool add) { CheckRmsNorm<float, px::bf16>(rows, n, add, 1.0f); });
    shape([](int rows, int n, bool add) { CheckRmsNorm<float, float>(rows, n, add, 1.0f); });
    shape([](int rows, int n, bool add) { CheckRmsNorm<px::bf16, px::e4m3>(rows, n, add, 0.03f); });
  });
}

template <cuda::Gate kGate, typename Out>
void CheckGate(int rows, int n) {
  Data data(rows * 31 + n);
  const auto x = data.Normal<px::bf16>(static_cast<size_t>(rows) * 2 * n, 2.0f);
  std::vector<double> want;
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < n; ++i) {
      const double g = px::ToFloat(x[r * 2 * n + i]), up = px::ToFloat(x[r * 2 * n + n + i]);
      const double act = kGate == cuda::Gate::kSilu
                             ? g / (1 + std::exp(-g))
                             : 0.5 * g * (1 + std::tanh(0.7978845608028654 * (g + 0.044715 * g * g * g)));
      want.push_back(act * up);
    }
  }
  Array<px::bf16> dx(x);
  Array<Out> out(want.size());
  UnderEveryPolicy(
      [&](gpu::Stream& stream) {
        for (size_t i = 0; i < out.size(); ++i) out[i] = Nan<Out>();
        cuda::LaunchGatedActivation<kGate>(
            stream, cuda::GatedActivationParams<Out>{dx.data(), out.data(), 2 * n, n, rows, n, 1.0f});
      },
      [&](const std::string& policy) { EXPECT_TRUE(Near(out.data(), want)) << policy; });
}

TEST(CudaGatedActivation, MatchesDoublePrecision) {
  for (int n : {8, 1536, 2056}) {
    CheckGate<cuda::Gate::kSilu, px::bf16>(1, n);
    CheckGate<cuda::Gate::kGeluTanh, px::bf16>(3, n);
  }
  CheckGate<cuda::Gate::kSilu, px::e4m3>(2, 512);
}

TEST(CudaGatedActivation, AnyShape) {
  Sweep(2, [](Draw& draw) {
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
  Array<Table> dtable(table);
  Array<int32_t> dids(ids);
  Array<float> out(want.size());
  UnderEveryPolicy(
      [&](gpu::Stream& stream) {
        stream.FillAsync(out.data(), 0xFF, out.size() * 4);
        cuda::LaunchEmbedding<Table>(stream, {dids.data(), dtable.data(), out.data(), hidden, hidden,
                                              static_cast<int>(ids.size()), hidden, 100, kVocab, 3.0f});
      },
      [&](const std::string& policy) { EXPECT_TRUE(Near(out.data(), want)) << policy << " hidden " << hidden; });
}
TEST(CudaEmbedding, GathersScalesAndZeroesForeignIds) {
  CheckEmbedding<px::bf16>({109, 100, 149, 99, 150, 117}, 584);
  CheckEmbedding<px::f16>({149, 7}, 8);
  CheckEmbedding<float>({101}, 4096);
  CheckEmbedding<px::bf16>({}, 64);
  Sweep(2, [](Draw& draw) {
    std::vector<int32_t> ids(static_cast<size_t>(draw.Size(40)));
    for (int32_t& id : ids) id = draw.Int(90, 160);
    CheckEmbedding<px::bf16>(ids, draw.Multiple(8, 3000));
    CheckEmbedding<px::f16>(ids, draw.Multiple(8, 3000));
    CheckEmbedding<float>(ids, draw.Multiple(8, 3000));
  });
}

}  // namespace
}  // namespace baton::cuda_test
