// GEMM against double precision, row bits against M, and its synchronization against mutants.
#include "kernels/cuda/linear/gemm.cuh"

#include "tests/kernels/cuda/mutants.h"
#include "tests/kernels/cuda/shape_sweep.h"

namespace baton::cuda_test {
namespace {

int RoundUp(int n, int to) { return (n + to - 1) / to * to; }

/// x [m, k], w [n, k], bias [n]; NaN wherever the kernel must not look. Weights are in the padded form. All of it is in
/// the device's memory, and in the host's what the device is given.
template <typename Out>
struct GemmCase {
  GemmCase(int m_in, int n_in, int k_in, unsigned seed)
      : m(m_in),
        n(n_in),
        k(k_in),
        x_stride(k_in + 8),
        w_stride(RoundUp(k_in, cuda::kGemmPadK)),
        out_stride(n_in + n_in % 2 + 1),
        data(seed),
        w(Weights()),
        bias(data.Normal<float>(static_cast<size_t>(n))),
        x(Rows()),
        x_there(x),
        w_there(w),
        bias_there(bias),
        out(static_cast<size_t>(m) * out_stride + 1) {}
  std::vector<px::bf16> Weights() {
    std::vector<px::bf16> of(static_cast<size_t>(RoundUp(n, cuda::kGemmPadN)) * w_stride, px::bf16{0});
    for (int r = 0; r < n; ++r)
      for (int i = 0; i < k; ++i) of[r * w_stride + i] = data.Normal<px::bf16>(1)[0];
    return of;
  }
  std::vector<px::bf16> Rows() {
    std::vector<px::bf16> of(static_cast<size_t>(m) * x_stride, Nan<px::bf16>());
    for (int r = 0; r < m; ++r)
      for (int i = 0; i < k; ++i) of[r * x_stride + i] = data.Normal<px::bf16>(1)[0];
    return of;
  }
  cuda::GemmParams<Out> Params() const {
    return {x_there.data(), w_there.data(), bias_there.data(), out.data(), x_stride, w_stride, out_stride, m, n, k};
  }
  void Poison(gpu::Stream& stream) const { out.Poison(stream); }
  /// Outputs equal the double sum within f32 summation and one rounding; gaps between rows are still poisoned.
  std::string Check() const {
    const std::vector<Out> got_there = out.Read();
    for (int r = 0; r < m; ++r)
      for (int c = 0; c < out_stride; ++c) {
        const double got = px::ToFloat(got_there[r * out_stride + c]);
        if (c >= n) {
          if (!std::isnan(got)) return "writes beyond its columns";
          continue;
        }
        double want = bias[c], size = std::abs(want);
        for (int i = 0; i < k; ++i) {
          const double product = double{px::ToFloat(x[r * x_stride + i])} * px::ToFloat(w[c * w_stride + i]);
          want += product;
          size += std::abs(product);
        }
        if (!kernel_test::SumTolerance(size, k, kernel_test::kDTypeOf<Out>).Holds(got, want))
          return "row " + std::to_string(r) + " column " + std::to_string(c) + ": " + std::to_string(got) + ", want " +
                 std::to_string(want);
      }
    return {};
  }

  int m, n, k;
  int64_t x_stride, w_stride, out_stride;
  Data data;
  std::vector<px::bf16> w;
  std::vector<float> bias;
  std::vector<px::bf16> x;
  DeviceArray<px::bf16> x_there, w_there;
  DeviceArray<float> bias_there;
  DeviceArray<Out> out;
};

template <typename Tile, typename Out>
void CheckGemmTile(int m, int n, int k) {
  GemmCase<Out> c(m, n, k, static_cast<unsigned>(m * 7 + n));
  UnderEveryPolicy(
      [&](gpu::Stream& stream) {
        c.Poison(stream);
        cuda::LaunchGemmTile<Tile>(stream, c.Params(), false);
      },
      [&](const std::string& policy) { EXPECT_EQ(c.Check(), "") << policy << " m " << m << " n " << n << " k " << k; });
}

TEST(CudaGemm, MatchesDoublePrecisionInEveryTile) {
  CheckGemmTile<cuda::GemmTileSmall, px::bf16>(1, 40, 8);
  CheckGemmTile<cuda::GemmTileSmall, float>(16, 33, 584);
  CheckGemmTile<cuda::GemmTileSmall, float>(5, 1, 136);
  CheckGemmTile<cuda::GemmTileMedium, px::bf16>(70, 65, 320);
  CheckGemmTile<cuda::GemmTileMedium, float>(33, 127, 200);
  CheckGemmTile<cuda::GemmTileLarge, px::bf16>(129, 136, 264);
  CheckGemmTile<cuda::GemmTileLarge, float>(3, 130, 72);
}

template <typename Out>
void CheckLaunch(int m, int n, int k, unsigned seed) {
  GemmCase<Out> c(m, n, k, seed);
  UnderEveryPolicy(
      [&](gpu::Stream& stream) {
        c.Poison(stream);
        cuda::LaunchGemm(stream, c.Params());
      },
      [&](const std::string& policy) { EXPECT_EQ(c.Check(), "") << policy << " m " << m << " n " << n << " k " << k; });
}
TEST(CudaGemm, AnyShape) {
  Sweep(4, [](Draw& draw) {
    const int m = draw.Size(200), n = draw.Size(170), k = draw.Multiple(8, m > 64 ? 200 : 900);
    CheckLaunch<px::bf16>(m, n, k, 1);
    CheckLaunch<float>(draw.Int(0, 1), n, k, 2);
  });
}

TEST(CudaGemm, ARowHasItsBitsWhateverMAndTheTile) {
  constexpr int kN = 70, kK = 520;
  std::vector<std::string> rows;
  for (int m : {1, 16, 17, 64, 130}) {
    GemmCase<float> c(m, kN, kK, 5);  // same seed: same weights, and row 0 comes first
    gpu::Stream stream;
    cuda::LaunchGemm(stream, c.Params());
    ASSERT_EQ(stream.Synchronize(), "");
    rows.emplace_back(reinterpret_cast<const char*>(c.out.Read().data()), kN * 4);
  }
  for (const std::string& row : rows) EXPECT_EQ(row, rows[0]);
}

#if !defined(__CUDACC__)
TEST(CudaGemm, EveryMissingSynchronizationIsFound) {
  GemmCase<float> c(20, 40, 64 * 7, 9);
  ExpectEveryMutantFound([&](const simt::Policy& policy) {
    gpu::Stream stream;
    stream.SetPolicy(policy);
    c.Poison(stream);
    cuda::LaunchGemmTile<cuda::GemmTile<32, 64, 2, 2, 3>>(stream, c.Params(), false);
    const std::string error = stream.Synchronize();
    return error.empty() ? c.Check() : error;
  });
}

TEST(CudaGemm, OneLoadOfEachFragment) {
  GemmCase<float> c(64, 64, 128, 3);
  gpu::Stream stream;
  cuda::LaunchGemmTile<cuda::GemmTileMedium>(stream, c.Params(), false);
  ASSERT_EQ(stream.Synchronize(), "");
  EXPECT_EQ(stream.counters().mma, 4u * 8 * 8);       // 4 warps, 8 k16 steps, 32 × 32 outputs
  EXPECT_EQ(stream.counters().ldmatrix, 4u * 8 * 4);  // 2 of x, 2 of w
}

#endif

}  // namespace
}  // namespace baton::cuda_test
