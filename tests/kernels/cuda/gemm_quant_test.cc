// Quantized GEMM: equals a double sum over bf16((q − zero) · scale), for both widths and every grouping.
#include "kernels/cuda/linear/quant_layout.h"
#include "tests/kernels/cuda/mutants.h"
#include "tests/kernels/cuda/shape_sweep.h"

namespace baton::cuda_test {
namespace {

template <int kBits>
struct QuantCase {
  QuantCase(int m_in, int n_in, int k_in, int group_in)
      : m(m_in), n(n_in), k(k_in), group(group_in), out(static_cast<size_t>(m) * (n + 2)) {
    Data data(static_cast<unsigned>(m * 31 + n + k));
    const int groups = k / group;
    for (int i = 0; i < n * k; ++i) codes.push_back(static_cast<uint8_t>(data.Int(0, (1 << kBits) - 1)));
    for (int i = 0; i < n * groups; ++i) {
      scales.push_back(0.01f + 0.1f * static_cast<float>(data.Int(0, 100)) / 100);
      zeros.push_back(static_cast<uint16_t>(data.Int(0, (1 << kBits) - 1)));
    }
    const auto layout = cuda::LayOutQuantized({kBits, n, k, group, codes, scales, zeros});
    words = std::make_unique<Array<px::U128>>(layout.words);
    meta = std::make_unique<Array<cuda::QuantMeta>>(layout.meta);
    bias = std::make_unique<Array<float>>(data.Normal<float>(n));
    x = std::make_unique<Array<px::bf16>>(data.Normal<px::bf16>(static_cast<size_t>(m) * k));
  }
  void Launch(gpu::Stream& stream) {
    std::fill_n(out.data(), out.size(), NAN);
    cuda::LaunchQuantGemm<kBits>(
        stream, cuda::QuantGemmParams<float>{x->data(), words->data(), meta->data(), bias->data(), out.data(), k, n + 2,
                                             m, n, k, group});
  }
  std::string Check() const {
    for (int r = 0; r < m; ++r)
      for (int c = 0; c < n; ++c) {
        double want = (*bias)[c], size = std::abs(want);
        for (int i = 0; i < k; ++i) {
          const int g = c * (k / group) + i / group;
          const float scale = px::ToFloat(px::FromFloat<px::bf16>(scales[g]));
          const float weight =
              px::ToFloat(px::FromFloat<px::bf16>(static_cast<float>(codes[c * k + i] - zeros[g]) * scale));
          const double product = double{px::ToFloat((*x)[r * k + i])} * weight;
          want += product;
          size += std::abs(product);
        }
        const double got = out[r * (n + 2) + c];
        if (!kernel_test::SumTolerance(size, k).Holds(got, want))
          return "row " + std::to_string(r) + " column " + std::to_string(c) + ": " + std::to_string(got) + ", want " +
                 std::to_string(want);
      }
    return {};
  }

  int m, n, k, group;
  std::vector<uint8_t> codes;
  std::vector<uint16_t> zeros;
  std::vector<float> scales;
  std::unique_ptr<Array<px::U128>> words;
  std::unique_ptr<Array<cuda::QuantMeta>> meta;
  std::unique_ptr<Array<float>> bias;
  std::unique_ptr<Array<px::bf16>> x;
  Array<float> out;
};

template <int kBits>
void CheckCase(int m, int n, int k, int group) {
  QuantCase<kBits> c(m, n, k, group);
  UnderEveryPolicy([&](gpu::Stream& stream) { c.Launch(stream); },
                   [&](const std::string& policy) {
                     EXPECT_EQ(c.Check(), "")
                         << policy << " bits " << kBits << " m " << m << " n " << n << " k " << k << " group " << group;
                   });
}

TEST(CudaQuantGemm, EqualsAGemmOverDequantizedWeights) {
  CheckCase<4>(1, 64, 128, 32);    // GGUF Q4_0
  CheckCase<4>(16, 72, 256, 128);  // AWQ, GPTQ
  CheckCase<4>(19, 33, 192, 64);
  CheckCase<8>(3, 80, 128, 32);  // GGUF Q8_0
  CheckCase<8>(65, 16, 256, 256);
}

template <int kBits>
void CheckDrawn(Draw& draw) {
  const int m = draw.Chance(8) ? 0 : draw.Size(80), n = draw.Size(90);
  if (draw.Chance(4)) {
    const int k = draw.Multiple(8, 500);
    CheckCase<kBits>(m, n, k, k);  // one group per output
  } else {
    const int group = draw.Pick({32, 64, 128, 256});
    CheckCase<kBits>(m, n, draw.Multiple(group, 768), group);
  }
}
TEST(CudaQuantGemm, AnyShape) {
  Sweep(6, [](Draw& draw) {
    CheckDrawn<4>(draw);
    CheckDrawn<8>(draw);
  });
}

#if !defined(__CUDACC__)
TEST(CudaQuantGemm, EveryMissingSynchronizationIsFound) {
  QuantCase<4> c(5, 64, 64 * 9, 64);
  ExpectEveryMutantFound([&](const simt::Policy& policy) {
    gpu::Stream stream;
    stream.SetPolicy(policy);
    c.Launch(stream);
    const std::string error = stream.Synchronize();
    return error.empty() ? c.Check() : error;
  });
}
#endif

}  // namespace
}  // namespace baton::cuda_test
