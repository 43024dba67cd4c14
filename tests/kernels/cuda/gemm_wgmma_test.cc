// The TMA + wgmma GEMM: against a double sum, against the bits of the mma.sync form (emulator), independent of M, and
// its pipeline against mutants.
#include "kernels/cuda/linear/gemm_wgmma.cuh"

#include <cstring>

#include "kernels/cuda/host/wgmma_bits.h"
#include "kernels/cuda/linear/gemm_wgmma_narrow.cuh"
#include "tests/kernels/cuda/mutants.h"
#include "tests/kernels/cuda/shape_sweep.h"

namespace baton::cuda_test {
namespace {

/// x [m, k], w [n, k] in the padded form, bias [n]; NaN between the rows of x, which TMA must not read. All of it is in
/// the device's memory, and in the host's what the device is given.
template <typename Out>
struct WgmmaCase {
  WgmmaCase(int m_in, int n_in, int k_in)
      : m(m_in),
        n(n_in),
        k(k_in),
        x_stride(k + 8),
        w_stride((k + 63) / 64 * 64),
        out_stride(n + n % 2 + 2),
        pool(data.Normal<px::bf16>(4099)),
        w(Drawn(n, (n + 127) / 128 * 128, w_stride, px::bf16{0})),
        bias(data.Normal<float>(static_cast<size_t>(n))),
        x(Drawn(m, m, x_stride, Nan<px::bf16>())),
        x_there(x),
        w_there(w),
        bias_there(bias),
        out(static_cast<size_t>(m) * out_stride),
        other(out.size()) {}
  /// Of `all` rows the first ones, with k numbers; `fill` is everywhere else.
  std::vector<px::bf16> Drawn(int rows, int all, int64_t stride, px::bf16 fill) {
    std::vector<px::bf16> of(static_cast<size_t>(all) * stride, fill);
    for (int r = 0; r < rows; ++r)
      for (int i = 0; i < k; ++i) of[r * stride + i] = pool[next++ % pool.size()];
    return of;
  }
  cuda::GemmParams<Out> Params(Out* to) const {
    return {x_there.data(), w_there.data(), bias_there.data(), to, x_stride, w_stride, out_stride, m, n, k};
  }
  void Poison(gpu::Stream& stream) const {
    out.Poison(stream);
    other.Poison(stream);
  }
  bool SameBits() const { return std::memcmp(out.Read().data(), other.Read().data(), out.size() * sizeof(Out)) == 0; }
  /// Every `step`-th output against the double sum; the gaps are still poisoned.
  std::string Check(int step = 1) const {
    const std::vector<Out> there = out.Read();
    for (int at = 0; at < m * out_stride; at += step) {
      const int r = static_cast<int>(at / out_stride), c = static_cast<int>(at % out_stride);
      const double got = px::ToFloat(there[at]);
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
  Data data{7};
  std::vector<px::bf16> pool;  ///< drawing every element would take longer than the kernel
  size_t next = 0;             ///< of it
  std::vector<px::bf16> w;
  std::vector<float> bias;
  std::vector<px::bf16> x;
  DeviceArray<px::bf16> x_there, w_there;
  DeviceArray<float> bias_there;
  DeviceArray<Out> out, other;
};

template <typename Tile, typename Out>
void Launch(gpu::Stream& stream, const cuda::GemmParams<Out>& p, bool programmatic = false) {
  if constexpr (Tile::kCols == 64)
    cuda::LaunchNarrowGemmTile<Tile>(stream, p, programmatic);
  else
    cuda::LaunchWgmmaGemmTile<Tile>(stream, p, programmatic);
}

template <typename Tile, typename Out>
void CheckWgmmaTile(int m, int n, int k) {
  const WgmmaCase<Out> c(m, n, k);
  UnderEveryPolicy(
      [&](gpu::Stream& stream) {
        c.Poison(stream);
        Launch<Tile>(stream, c.Params(c.out.data()));
        cuda::LaunchGemm(stream, c.Params(c.other.data()));
      },
      [&](const std::string& policy) {
        EXPECT_EQ(c.Check(7), "") << policy << " m " << m << " n " << n << " k " << k;
        EXPECT_TRUE(c.SameBits()) << policy << ": not the bits of mma.sync, m " << m << " n " << n << " k " << k;
      });
}

TEST(CudaGemmWgmma, MatchesDoublePrecisionAndMmaSync) {
  CheckWgmmaTile<cuda::WgmmaTile<128>, float>(1, 1, 8);
  CheckWgmmaTile<cuda::WgmmaTile<128>, px::bf16>(129, 130, 72);
  CheckWgmmaTile<cuda::WgmmaTile<128>, float>(70, 40, 64 * 8 + 16);  // the ring goes around
  CheckWgmmaTile<cuda::WgmmaTile<256>, float>(66, 259, 64 * 5);
  CheckWgmmaTile<cuda::WgmmaTile<256>, px::bf16>(128, 33, 136);
}

template <int kRows>
using Narrow = cuda::NarrowTile<kRows, cuda::kNarrowShared>;

TEST(CudaGemmWgmma, FewRowsMatchDoublePrecisionAndMmaSync) {
  CheckWgmmaTile<Narrow<16>, float>(1, 1, 8);
  CheckWgmmaTile<Narrow<16>, px::bf16>(13, 130, 64 * 11 + 24);  // the ring goes around
  CheckWgmmaTile<Narrow<32>, float>(32, 65, 136);
  CheckWgmmaTile<Narrow<64>, px::bf16>(47, 40, 64 * 7);
  CheckWgmmaTile<Narrow<128>, float>(128, 70, 64 * 6 + 8);
}

TEST(CudaGemmWgmma, FewRowsOfAnyShape) {
  Sweep(2, [](Draw& draw) {
    const int k = draw.Multiple(8, 900), n = draw.Size(200);
    if (draw.Chance(2))
      CheckWgmmaTile<Narrow<16>, px::bf16>(draw.Size(16), n, k);
    else
      CheckWgmmaTile<Narrow<64>, float>(draw.Size(64), n, k);
  });
}

/// out += product, beside the product and a sum of the two.
template <typename Tile>
void CheckAdds(int m, int n, int k) {
  const WgmmaCase<float> c(m, n, k);
  std::vector<float> before(c.out.size());
  for (size_t i = 0; i < before.size(); ++i) before[i] = static_cast<float>(i % 13) - 6.5f;
  UnderEveryPolicy(
      [&](gpu::Stream& stream) {
        c.Poison(stream);
        stream.Upload(c.other.data(), before.data(), before.size() * sizeof(float));
        Launch<Tile>(stream, c.Params(c.out.data()));
        auto adds = c.Params(c.other.data());
        adds.adds = true;
        Launch<Tile>(stream, adds);
      },
      [&](const std::string& policy) {
        const std::vector<float> product = c.out.Read(), sum = c.other.Read();
        for (size_t i = 0; i < before.size(); ++i) {
          const bool is_output = static_cast<int>(i % static_cast<size_t>(c.out_stride)) < n;
          ASSERT_EQ(sum[i], is_output ? before[i] + product[i] : before[i]) << policy << ", " << i;
        }
      });
}

TEST(CudaGemmWgmma, AddsToWhatIsThere) {
  CheckAdds<Narrow<16>>(5, 70, 136);
  CheckAdds<Narrow<128>>(130, 40, 64);
  CheckAdds<cuda::WgmmaTile<128>>(130, 33, 136);
}

#if defined(__CUDACC__)
constexpr auto& kProducts = cuda::kCheckedProducts;
#else
constexpr int kProducts[] = {72};
#endif
TEST(CudaGemmWgmma, AddsAsMmaSyncHere) {
  gpu::Stream stream;
  for (const int k : kProducts) {
    const cuda::DenseForms forms = cuda::AddAsMmaSync(stream, k);
    EXPECT_TRUE(forms.wgmma) << k;
    EXPECT_TRUE(forms.gemv) << k;
  }
}
#if !defined(__CUDACC__)
TEST(CudaGemmWgmma, AWorkerNoticesAGpuThatAddsOtherwise) {
  const auto on = [](const simt::Policy& policy, cuda::DenseForms asked) {
    gpu::Stream stream;
    stream.SetPolicy(policy);
    return cuda::AddAsMmaSync(stream, kProducts[0], asked);
  };
  const cuda::DenseForms only_wgmma{.gemv = false}, only_gemv{.wgmma = false};
  for (const int columns : {16, 32, 64, 128, 256})
    EXPECT_FALSE(on({.odd_wgmma = columns}, only_wgmma).wgmma) << "wgmma of " << columns << " columns";
  const cuda::DenseForms of_odd_wgmma = on({.odd_wgmma = 256}, {});
  EXPECT_FALSE(of_odd_wgmma.wgmma);
  EXPECT_TRUE(of_odd_wgmma.gemv);
  EXPECT_FALSE(on({.odd_mma = true}, only_gemv).gemv);
}
#endif

TEST(CudaGemmWgmma, AnyShape) {
  Sweep(2, [](Draw& draw) {
    const int m = draw.Size(200), k = draw.Multiple(8, 600);
    if (draw.Chance(2))
      CheckWgmmaTile<cuda::WgmmaTile<128>, px::bf16>(m, draw.Size(200), k);
    else
      CheckWgmmaTile<cuda::WgmmaTile<256>, float>(m, draw.Size(280), k);
  });
}

TEST(CudaGemmWgmma, ARowHasItsBitsWhateverMAndTheTile) {
  std::vector<std::string> rows;
  for (auto [m, sms] :
       {std::pair{1, 1}, {17, 0}, {40, 0}, {65, 1000}, {128, 0}, {130, 1}}) {  // 0: the form for few rows
    const WgmmaCase<float> c(m, 40, 200);  // the same weights, and row 0 comes first
    gpu::Stream stream;
    if (sms == 0)
      cuda::LaunchNarrowGemm(stream, c.Params(c.out.data()), m % 2 == 0 ? 1 : 1000);
    else
      cuda::LaunchWgmmaGemm(stream, c.Params(c.out.data()), sms);
    ASSERT_EQ(stream.Synchronize(), "");
    rows.emplace_back(reinterpret_cast<const char*>(c.out.Read().data()), 40 * 4);
  }
  for (const std::string& row : rows) EXPECT_EQ(row, rows[0]);
}

TEST(CudaGemmWgmma, OnlyHopperHasIt) {
  EXPECT_TRUE(cuda::HasWgmma("sm_90"));
  EXPECT_FALSE(cuda::HasWgmma("sm_80"));
  EXPECT_FALSE(cuda::HasWgmma("sm_100"));
}

#if !defined(__CUDACC__)
/// Behind a kernel that writes x and lets its dependents start at once.
PX_KERNEL void WriteRows(px::bf16* to, const px::bf16* from, int n) {
  px::GridDependencyRelease();
  for (int i = px::ThreadX(); i < n; i += px::BlockDimX()) px::Store(to + i, px::Load(from + i));
}

template <typename Tile>
void FindEveryMissingSynchronization(int m, int steps) {
  const WgmmaCase<float> c(m, 24, 64 * steps);
  const DeviceArray<px::bf16> source(c.x);
  ExpectEveryMutantFound([&](const simt::Policy& policy) {
    gpu::Stream stream;
    stream.SetPolicy(policy);
    c.Poison(stream);
    c.x_there.Poison(stream);
    gpu::Launch(stream, {.grid = {1}, .block = {64}}, &WriteRows, c.x_there.data(), source.data(),
                static_cast<int>(c.x.size()));
    Launch<Tile>(stream, c.Params(c.out.data()), true);
    const std::string error = stream.Synchronize();
    return error.empty() ? c.Check(3) : error;
  });
}

TEST(CudaGemmWgmma, EveryMissingSynchronizationIsFound) {
  FindEveryMissingSynchronization<cuda::WgmmaTile<128>>(70, 9);
  FindEveryMissingSynchronization<cuda::NarrowTile<16, 40 << 10>>(11, 9);  // four stages
}
#endif

}  // namespace
}  // namespace baton::cuda_test
