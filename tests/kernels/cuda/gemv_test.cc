// GEMV: equal to a double sum, bit for bit equal to the GEMM, its fusions bit for bit equal to the kernels they
// replace, and its synchronization against mutants.
#include "kernels/cuda/linear/gemv.cuh"

#include <algorithm>
#include <cstring>

#include "kernels/cuda/instances/instances.h"
#include "kernels/cuda/linear/quant_layout.h"
#include "tests/kernels/cuda/mutants.h"
#include "tests/kernels/cuda/random_codes.h"
#include "tests/kernels/cuda/shape_sweep.h"

namespace baton::cuda_test {
namespace {

using cuda::GemvStore;
using cuda::WeightFormat;

struct Shape {
  int m, n, k, group = 64;  ///< n: rows of w
};

/// x [m, k], w [n, k] in one of the formats, bias [n]; NaN wherever the kernel must not look.
template <WeightFormat kWeight>
struct GemvCase {
  explicit GemvCase(const Shape& shape)
      : s(shape),
        x_stride(s.k + 8),
        x(static_cast<size_t>(s.m) * x_stride),
        bias(static_cast<size_t>(s.n)),
        dense(static_cast<size_t>(s.n) * s.k) {
    Data data(static_cast<unsigned>(s.m * 131 + s.n * 7 + s.k));
    std::fill_n(x.host(), x.size(), Nan<px::bf16>());
    for (int r = 0; r < s.m; ++r)
      for (int i = 0; i < s.k; ++i) x[r * x_stride + i] = data.Normal<px::bf16>(1)[0];
    for (int i = 0; i < s.n; ++i) bias[i] = data.Normal<float>(1)[0];
    if constexpr (kWeight == WeightFormat::kBf16)
      MakeDense(data);
    else
      MakeQuantized(data);
  }
  void MakeDense(Data& data) {
    w_stride = (s.k + cuda::kGemmPadK - 1) / cuda::kGemmPadK * cuda::kGemmPadK;
    const int rows = (s.n + cuda::kGemmPadN - 1) / cuda::kGemmPadN * cuda::kGemmPadN;
    w = std::make_unique<Array<px::bf16>>(std::vector<px::bf16>(static_cast<size_t>(rows) * w_stride, px::bf16{0}));
    for (int r = 0; r < s.n; ++r)
      for (int i = 0; i < s.k; ++i) {
        (*w)[r * w_stride + i] = data.Normal<px::bf16>(1)[0];
        dense[static_cast<size_t>(r) * s.k + i] = px::ToFloat((*w)[r * w_stride + i]);
      }
  }
  void MakeQuantized(Data& data) {
    const kernels::QuantizedWeight weight = RandomCodes(kWeight, s.n, s.k, s.group, data);
    const auto layout = cuda::LayOutQuantized(weight);
    words = std::make_unique<Array<px::U128>>(layout.words);
    meta = std::make_unique<Array<cuda::QuantMeta>>(layout.meta);
    std::ranges::transform(kernels::DequantizedBf16(weight), dense.data(), FloatOfBf16);
  }
  cuda::GemvParams Params(void* out, int64_t out_stride, GemvStore store) const {
    cuda::GemvParams p;
    p.x = x.data();
    p.x_stride = x_stride;
    p.w = w != nullptr ? static_cast<const void*>(w->data()) : words->data();
    p.w_stride = w_stride;
    if (meta != nullptr) p.meta = meta->data();
    p.group = s.group;
    p.bias = bias.data();
    p.out = out, p.out_stride = out_stride, p.store = store;
    p.m = s.m, p.n = s.n, p.k = s.k;
    return p;
  }
  /// The GEMM of the same format, over any rows of bf16.
  template <typename Out>
  void LaunchGemm(gpu::Stream& stream, const px::bf16* rows, int64_t stride, Out* out, int64_t out_stride) const {
    if constexpr (kWeight == WeightFormat::kBf16)
      cuda::LaunchGemm(stream, cuda::GemmParams<Out>{rows, w->data(), bias.data(), out, stride, w_stride, out_stride,
                                                     s.m, s.n, s.k});
    else
      cuda::LaunchQuantGemm<kWeight>(
          stream, cuda::QuantGemmParams<Out>{rows, words->data(), meta->data(), bias.data(), out, stride, out_stride,
                                             s.m, s.n, s.k, s.group});
  }
  /// `got` [m, stride] is the double sum within f32 rounding; gaps between rows are still poisoned.
  std::string Check(const Array<float>& got, int64_t stride) const {
    for (int r = 0; r < s.m; ++r)
      for (int c = 0; c < stride; ++c) {
        if (c >= s.n) {
          if (!std::isnan(got[r * stride + c])) return "writes beyond its columns";
          continue;
        }
        double want = bias[c], size = std::abs(want);
        for (int i = 0; i < s.k; ++i) {
          const double product = double{px::ToFloat(x[r * x_stride + i])} * dense[static_cast<size_t>(c) * s.k + i];
          want += product;
          size += std::abs(product);
        }
        if (!kernel_test::SumTolerance(size, s.k).Holds(got[r * stride + c], want))
          return "row " + std::to_string(r) + " column " + std::to_string(c) + ": " +
                 std::to_string(got[r * stride + c]) + ", want " + std::to_string(want);
      }
    return {};
  }

  Shape s;
  int64_t x_stride, w_stride = 0;
  Array<px::bf16> x;
  Array<float> bias;
  std::vector<float> dense;  ///< [n, k] what the weights are
  std::unique_ptr<Array<px::bf16>> w;
  std::unique_ptr<Array<px::U128>> words;
  std::unique_ptr<Array<cuda::QuantMeta>> meta;
};

template <typename T>
std::string BytesOf(const Array<T>& a) {
  return {reinterpret_cast<const char*>(a.host()), a.size() * sizeof(T)};
}

/// Against the double sum and, bit for bit, the GEMM.
template <WeightFormat kWeight>
void CheckSums(const Shape& s) {
  const GemvCase<kWeight> c(s);
  const int64_t stride = s.n + 3;
  Array<float> out(static_cast<size_t>(s.m) * stride), gemm(out.size());
  UnderEveryPolicy(
      [&](gpu::Stream& stream) {
        stream.FillAsync(out.data(), 0xFF, out.size() * 4);
        stream.FillAsync(gemm.data(), 0xFF, gemm.size() * 4);
        cuda::LaunchGemv<kWeight, false>(stream, c.Params(out.data(), stride, GemvStore::kF32), false);
        c.LaunchGemm(stream, c.x.data(), c.x_stride, gemm.data(), stride);
      },
      [&](const std::string& policy) {
        EXPECT_EQ(c.Check(out, stride), "") << policy << " m " << s.m << " n " << s.n << " k " << s.k;
        EXPECT_TRUE(BytesOf(out) == BytesOf(gemm)) << policy << ": not the GEMM's bits, m " << s.m << " n " << s.n;
      });
}

TEST(CudaGemv, EqualsTheDoubleSumAndTheGemmsBits) {
  CheckSums<WeightFormat::kBf16>({1, 1, 8});
  CheckSums<WeightFormat::kBf16>({2, 33, 136});
  CheckSums<WeightFormat::kBf16>({3, 70, 1032});  // the ring goes around
  CheckSums<WeightFormat::kBf16>({4, 48, 64});
  CheckSums<WeightFormat::kBf16>({8, 17, 584});
}

TEST(CudaGemv, EqualsTheDoubleSumOverQuantizedWeights) {
  CheckSums<WeightFormat::kInt4>({1, 40, 128, 32});
  CheckSums<WeightFormat::kInt4>({4, 35, 1152, 128});
  CheckSums<WeightFormat::kInt4>({2, 16, 64, 64});
  CheckSums<WeightFormat::kInt8>({1, 33, 192, 32});
  CheckSums<WeightFormat::kInt8>({3, 48, 1024, 128});
  CheckSums<WeightFormat::kE4m3>({2, 48, 768, 128});
  CheckSums<WeightFormat::kE4m3>({1, 33, 200, 200});
}

/// GEMV → addition to the residual stream, beside the kernels one after another.
template <WeightFormat kWeight>
void CheckResidual(const Shape& s) {
  const GemvCase<kWeight> c(s);
  const std::vector<float> before = Data(3).Normal<float>(static_cast<size_t>(s.m) * s.n);
  Array<float> fused(before), apart(before);
  Array<float> product(static_cast<size_t>(s.m) * s.n);
  UnderEveryPolicy(
      [&](gpu::Stream& stream) {
        stream.Upload(fused.data(), before.data(), before.size() * 4);
        cuda::LaunchGemv<kWeight, false>(stream, c.Params(fused.data(), s.n, GemvStore::kAddF32), false);
        c.LaunchGemm(stream, c.x.data(), c.x_stride, product.data(), s.n);
      },
      [&](const std::string& policy) {
        for (size_t i = 0; i < before.size(); ++i) apart[i] = before[i] + product[i];
        EXPECT_TRUE(BytesOf(fused) == BytesOf(apart)) << policy << " m " << s.m << " k " << s.k;
      });
}

TEST(CudaGemv, TheResidualHasTheBitsOfItsKernels) {
  CheckResidual<WeightFormat::kBf16>({2, 24, 72});
  CheckResidual<WeightFormat::kInt4>({1, 20, 1088, 64});
}

/// act(gate) · up, beside its kernels one after another. s.n: gate and up together.
template <WeightFormat kWeight, cuda::Gate kGate>
void CheckGated(const Shape& s) {
  const GemvCase<kWeight> c(s);
  const int n = s.n / 2;
  Array<px::bf16> fused(static_cast<size_t>(s.m) * n), apart(fused.size()), both(static_cast<size_t>(s.m) * s.n);
  UnderEveryPolicy(
      [&](gpu::Stream& stream) {
        stream.FillAsync(fused.data(), 0xFF, fused.size() * 2);
        cuda::GemvParams p = c.Params(fused.data(), n, GemvStore::kBf16);
        p.n = n, p.gate = kGate;
        cuda::LaunchGemv<kWeight, true>(stream, p, false);
        c.LaunchGemm(stream, c.x.data(), c.x_stride, both.data(), s.n);
        cuda::LaunchGatedActivation<kGate>(
            stream, cuda::GatedActivationParams<px::bf16>{both.data(), apart.data(), s.n, n, s.m, n, 1.0f});
      },
      [&](const std::string& policy) { EXPECT_TRUE(BytesOf(fused) == BytesOf(apart)) << policy << " m " << s.m; });
}

TEST(CudaGemv, GatedIsTheBitsOfItsKernels) {
  CheckGated<WeightFormat::kBf16, cuda::Gate::kSilu>({1, 80, 584});
  CheckGated<WeightFormat::kBf16, cuda::Gate::kGeluTanh>({4, 48, 72});
  CheckGated<WeightFormat::kInt4, cuda::Gate::kSilu>({2, 96, 640, 128});
  CheckGated<WeightFormat::kInt8, cuda::Gate::kGeluTanh>({3, 32, 448, 32});
}

/// Every fusion with each of the numbers of rows that decoding has, and the most.
template <WeightFormat kWeight>
void CheckFusions() {
  for (int m : {1, 2, 3, 4, cuda::kGemvMaxRows}) {
    CheckSums<kWeight>({m, 21, 192, 64});
    CheckResidual<kWeight>({m, 20, 128, 64});
    CheckGated<kWeight, cuda::Gate::kSilu>({m, 32, 192, 64});
    CheckGated<kWeight, cuda::Gate::kGeluTanh>({m, 32, 128, 64});
  }
}
TEST(CudaGemv, EveryFusionOfOneRowAndMore) {
  CheckFusions<WeightFormat::kBf16>();
  CheckFusions<WeightFormat::kInt8>();
  CheckFusions<WeightFormat::kInt4>();
  CheckFusions<WeightFormat::kE4m3>();
}

/// Rows, outputs and inputs of any size; groups as checkpoints have them.
template <WeightFormat kWeight>
Shape DrawGemvShape(Draw& draw) {
  Shape s{draw.Int(1, cuda::kGemvMaxRows), draw.Size(90), 0};
  if (kWeight == WeightFormat::kBf16) {
    s.k = draw.Multiple(8, 1600);
  } else if (draw.Chance(5)) {
    s.k = s.group = draw.Multiple(8, 900);  // one group per output
  } else {
    s.group = draw.Pick({32, 64, 128, 256});
    s.k = draw.Multiple(s.group, 1536);
  }
  return s;
}
template <WeightFormat kWeight>
void CheckAnyShape(Draw& draw) {
  CheckSums<kWeight>(DrawGemvShape<kWeight>(draw));
  CheckResidual<kWeight>(DrawGemvShape<kWeight>(draw));
  Shape gated = DrawGemvShape<kWeight>(draw);
  gated.n = kWeight == WeightFormat::kBf16 ? 16 * draw.Size(6) : 32 * draw.Int(1, 3);  // as the activation takes
  if (draw.Chance(2))
    CheckGated<kWeight, cuda::Gate::kSilu>(gated);
  else
    CheckGated<kWeight, cuda::Gate::kGeluTanh>(gated);
}

TEST(CudaGemv, AnyShape) {
  Sweep(4, [](Draw& draw) {
    CheckAnyShape<WeightFormat::kBf16>(draw);
    CheckAnyShape<WeightFormat::kInt8>(draw);
    CheckAnyShape<WeightFormat::kInt4>(draw);
    CheckAnyShape<WeightFormat::kE4m3>(draw);
  });
}

TEST(CudaGemv, NoRowsAreNothing) {
  const GemvCase<WeightFormat::kBf16> c({1, 16, 64});
  Array<float> out(16);
  UnderEveryPolicy(
      [&](gpu::Stream& stream) {
        stream.FillAsync(out.data(), 0xFF, 64);
        cuda::GemvParams p = c.Params(out.data(), 16, GemvStore::kF32);
        p.m = 0;
        cuda::LaunchGemv<WeightFormat::kBf16, false>(stream, p, false);
      },
      [&](const std::string& policy) { EXPECT_TRUE(std::isnan(out[0])) << policy; });
}

#if !defined(__CUDACC__)
/// Behind a kernel that writes x and lets its dependents start at once.
PX_KERNEL void WriteGemvInputs(px::bf16* to, const px::bf16* from, int n) {
  px::GridDependencyRelease();
  for (int i = px::ThreadX(); i < n; i += px::BlockDimX()) px::Store(to + i, px::Load(from + i));
}

TEST(CudaGemv, EveryMissingSynchronizationIsFound) {
  const GemvCase<WeightFormat::kBf16> c({3, 33, 64 * 15});
  Array<px::bf16> source(Copy(c.x)), x(c.x.size());
  Array<float> plain(static_cast<size_t>(c.s.m) * c.s.n);
  ExpectEveryMutantFound([&](const simt::Policy& policy) {
    gpu::Stream stream;
    stream.SetPolicy(policy);
    std::fill_n(plain.host(), plain.size(), NAN);
    std::fill_n(x.host(), x.size(), Nan<px::bf16>());
    gpu::Launch(stream, {.grid = {1}, .block = {64}}, &WriteGemvInputs, x.data(), source.data(),
                static_cast<int>(x.size()));
    cuda::GemvParams p = c.Params(plain.data(), c.s.n, GemvStore::kF32);
    p.x = x.data();
    cuda::LaunchGemv<WeightFormat::kBf16, false>(stream, p, true);
    const std::string error = stream.Synchronize();
    return error.empty() ? c.Check(plain, c.s.n) : error;
  });
}

TEST(CudaGemv, QuantizedNeedsItsWaits) {
  const GemvCase<WeightFormat::kInt4> c({2, 32, 64 * 20, 64});
  Array<float> out(static_cast<size_t>(c.s.m) * c.s.n);
  ExpectEveryMutantFound([&](const simt::Policy& policy) {
    gpu::Stream stream;
    stream.SetPolicy(policy);
    std::fill_n(out.host(), out.size(), NAN);
    cuda::LaunchGemv<WeightFormat::kInt4, false>(stream, c.Params(out.data(), c.s.n, GemvStore::kF32), false);
    const std::string error = stream.Synchronize();
    return error.empty() ? c.Check(out, c.s.n) : error;
  });
}

TEST(CudaGemv, ReadsEveryWeightOnceAndWithoutBankConflicts) {
  const GemvCase<WeightFormat::kBf16> c({4, 32, 64 * 13});
  Array<float> out(static_cast<size_t>(c.s.m) * c.s.n);
  gpu::Stream stream;
  stream.SetPolicy({.count = true});
  cuda::LaunchGemv<WeightFormat::kBf16, false>(stream, c.Params(out.data(), c.s.n, GemvStore::kF32), false);
  ASSERT_EQ(stream.Synchronize(), "");
  EXPECT_EQ(stream.counters().mma, 2u * 13 * 4);
  EXPECT_EQ(stream.counters().cp_async, 2u * 13 * 128);  // 16 bytes each
  EXPECT_EQ(stream.counters().bank_conflicts, 0u) << stream.counters().worst_site;
}
#endif

}  // namespace
}  // namespace baton::cuda_test
