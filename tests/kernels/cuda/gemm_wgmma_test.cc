// The TMA + wgmma GEMM: against a double sum, against the bits of the mma.sync form (emulator), independent of M, and
// its pipeline against mutants.
#include "kernels/cuda/linear/gemm_wgmma.cuh"

#include <cstring>

#include "tests/kernels/cuda/mutants.h"
#include "tests/kernels/cuda/shape_sweep.h"

namespace baton::cuda_test {
namespace {

#if defined(__CUDACC__)
constexpr bool kEmulated = false;
#else
constexpr bool kEmulated = true;
#endif

/// x [m, k], w [n, k] in the padded form, bias [n]; NaN between the rows of x, which TMA must not read.
template <typename Out>
struct WgmmaCase {
  WgmmaCase(int m_in, int n_in, int k_in)
      : m(m_in),
        n(n_in),
        k(k_in),
        x_stride(k + 8),
        w_stride((k + 63) / 64 * 64),
        out_stride(n + n % 2 + 2),
        x(static_cast<size_t>(m) * x_stride),
        w(std::vector<px::bf16>(static_cast<size_t>((n + 127) / 128 * 128) * w_stride, px::bf16{0})),
        bias(static_cast<size_t>(n)),
        out(static_cast<size_t>(m) * out_stride),
        other(out.size()) {
    Data data(7);
    const auto pool = data.Normal<px::bf16>(4099);  // drawing every element would take longer than the kernel
    size_t next = 0;
    auto draw = [&] { return pool[next++ % pool.size()]; };
    std::fill_n(x.data(), x.size(), Nan<px::bf16>());
    for (int r = 0; r < n; ++r)
      for (int i = 0; i < k; ++i) w[r * w_stride + i] = draw();
    for (int r = 0; r < n; ++r) bias[r] = data.Normal<float>(1)[0];
    for (int r = 0; r < m; ++r)
      for (int i = 0; i < k; ++i) x[r * x_stride + i] = draw();
  }
  cuda::GemmParams<Out> Params(Out* to) const {
    return {x.data(), w.data(), bias.data(), to, x_stride, w_stride, out_stride, m, n, k};
  }
  void Poison() const {
    std::fill_n(out.data(), out.size(), Nan<Out>());
    std::fill_n(other.data(), other.size(), Nan<Out>());
  }
  bool SameBits() const { return std::memcmp(out.data(), other.data(), out.size() * sizeof(Out)) == 0; }
  /// Every `step`-th output against the double sum; the gaps are still poisoned.
  std::string Check(int step = 1) const {
    for (int at = 0; at < m * out_stride; at += step) {
      const int r = static_cast<int>(at / out_stride), c = static_cast<int>(at % out_stride);
      const double got = px::ToFloat(out[at]);
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
  Array<px::bf16> x, w;
  Array<float> bias;
  Array<Out> out, other;
};

template <typename Tile, typename Out>
void CheckTile(int m, int n, int k) {
  const WgmmaCase<Out> c(m, n, k);
  UnderEveryPolicy(
      [&](gpu::Stream& stream) {
        c.Poison();
        cuda::LaunchWgmmaGemmTile<Tile>(stream, c.Params(c.out.data()), false);
        cuda::LaunchGemm(stream, c.Params(c.other.data()));
      },
      [&](const std::string& policy) {
        EXPECT_EQ(c.Check(7), "") << policy << " m " << m << " n " << n << " k " << k;
        if (kEmulated) {
          EXPECT_TRUE(c.SameBits()) << policy << ": not the bits of mma.sync";
        }
      });
}

TEST(CudaGemmWgmma, MatchesDoublePrecisionAndMmaSync) {
  CheckTile<cuda::WgmmaTile<128>, float>(1, 1, 8);
  CheckTile<cuda::WgmmaTile<128>, px::bf16>(129, 130, 72);
  CheckTile<cuda::WgmmaTile<128>, float>(70, 40, 64 * 8 + 16);  // the ring goes around
  CheckTile<cuda::WgmmaTile<256>, float>(66, 259, 64 * 5);
  CheckTile<cuda::WgmmaTile<256>, px::bf16>(128, 33, 136);
}

TEST(CudaGemmWgmma, AnyShape) {
  Sweep(2, [](Draw& draw) {
    const int m = draw.Size(200), k = draw.Multiple(8, 600);
    if (draw.Chance(2))
      CheckTile<cuda::WgmmaTile<128>, px::bf16>(m, draw.Size(200), k);
    else
      CheckTile<cuda::WgmmaTile<256>, float>(m, draw.Size(280), k);
  });
}

TEST(CudaGemmWgmma, ARowHasItsBitsWhateverMAndTheTile) {
  std::vector<std::string> rows;
  for (auto [m, sms] : {std::pair{1, 1}, {65, 1000}, {130, 1}}) {
    const WgmmaCase<float> c(m, 40, 200);  // the same weights, and row 0 comes first
    gpu::Stream stream;
    cuda::LaunchWgmmaGemm(stream, c.Params(c.out.data()), sms);
    ASSERT_EQ(stream.Synchronize(), "");
    rows.emplace_back(reinterpret_cast<const char*>(c.out.data()), 40 * 4);
  }
  EXPECT_EQ(rows[1], rows[0]);
  EXPECT_EQ(rows[2], rows[0]);
}

TEST(CudaGemmWgmma, SuitsOnlyHopperAndManyRows) {
  EXPECT_TRUE(cuda::WgmmaSuits("sm_90", 129));
  EXPECT_FALSE(cuda::WgmmaSuits("sm_90", 128));
  EXPECT_FALSE(cuda::WgmmaSuits("sm_80", 4096));
  EXPECT_FALSE(cuda::WgmmaSuits("sm_100", 4096));
}

#if !defined(__CUDACC__)
/// Behind a kernel that writes x and lets its dependents start at once.
PX_KERNEL void WriteRows(px::bf16* to, const px::bf16* from, int n) {
  px::GridDependencyRelease();
  for (int i = px::ThreadX(); i < n; i += px::BlockDimX()) px::Store(to + i, px::Load(from + i));
}

TEST(CudaGemmWgmma, EveryMissingSynchronizationIsFound) {
  const WgmmaCase<float> c(70, 24, 64 * 9);
  const Array<px::bf16> source(Copy(c.x));
  ExpectEveryMutantFound([&](const simt::Policy& policy) {
    gpu::Stream stream;
    stream.SetPolicy(policy);
    c.Poison();
    std::fill_n(c.x.data(), c.x.size(), Nan<px::bf16>());
    gpu::Launch(stream, {.grid = {1}, .block = {64}}, &WriteRows, c.x.data(), source.data(),
                static_cast<int>(c.x.size()));
    cuda::LaunchWgmmaGemmTile<cuda::WgmmaTile<128>>(stream, c.Params(c.out.data()), true);
    const std::string error = stream.Synchronize();
    std::copy_n(source.data(), source.size(), c.x.data());
    return error.empty() ? c.Check(3) : error;
  });
}
#endif

}  // namespace
}  // namespace baton::cuda_test
