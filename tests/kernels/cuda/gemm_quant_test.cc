// Quantized GEMM: equals a double sum over bf16((q − zero) · scale), for every format and grouping.
#include "kernels/cuda/linear/dequantize.cuh"
#include "kernels/cuda/linear/quant_layout.h"
#include "tests/kernels/cuda/mutants.h"
#include "tests/kernels/cuda/random_codes.h"
#include "tests/kernels/cuda/shape_sweep.h"

namespace baton::cuda_test {
namespace {

using cuda::WeightFormat;

template <WeightFormat kFormat>
struct QuantCase {
  QuantCase(int m_in, int n_in, int k_in, int group_in)
      : m(m_in), n(n_in), k(k_in), group(group_in), out(static_cast<size_t>(m) * (n + 2)) {
    Data data(static_cast<unsigned>(m * 31 + n + k));
    const kernels::QuantizedWeight weight = RandomCodes(kFormat, n, k, group, data);
    dense = kernels::DequantizedBf16(weight);
    const auto layout = cuda::LayOutQuantized(weight);
    words = std::make_unique<DeviceArray<px::U128>>(layout.words);
    meta = std::make_unique<DeviceArray<cuda::QuantMeta>>(layout.meta);
    bias = data.Normal<float>(n);
    bias_there = std::make_unique<DeviceArray<float>>(bias);
    x = data.Normal<px::bf16>(static_cast<size_t>(m) * k);
    x_there = std::make_unique<DeviceArray<px::bf16>>(x);
  }
  void Launch(gpu::Stream& stream) {
    out.Poison(stream);
    cuda::LaunchQuantGemm<kFormat>(
        stream, cuda::QuantGemmParams<float>{x_there->data(), words->data(), meta->data(), bias_there->data(),
                                             out.data(), k, n + 2, m, n, k, group});
  }
  std::string Check() const {
    const std::vector<float> there = out.Read();
    for (int r = 0; r < m; ++r)
      for (int c = 0; c < n; ++c) {
        double want = bias[c], size = std::abs(want);
        for (int i = 0; i < k; ++i) {
          const double product = double{px::ToFloat(x[r * k + i])} * FloatOfBf16(dense[c * k + i]);
          want += product;
          size += std::abs(product);
        }
        const double got = there[r * (n + 2) + c];
        if (!kernel_test::SumTolerance(size, k).Holds(got, want))
          return "row " + std::to_string(r) + " column " + std::to_string(c) + ": " + std::to_string(got) + ", want " +
                 std::to_string(want);
      }
    return {};
  }

  int m, n, k, group;
  std::vector<uint16_t> dense;  // [n, k] bf16
  std::vector<float> bias;
  std::vector<px::bf16> x;
  std::unique_ptr<DeviceArray<px::U128>> words;
  std::unique_ptr<DeviceArray<cuda::QuantMeta>> meta;
  std::unique_ptr<DeviceArray<float>> bias_there;
  std::unique_ptr<DeviceArray<px::bf16>> x_there;
  DeviceArray<float> out;
};

template <WeightFormat kFormat>
void CheckQuantizedSums(int m, int n, int k, int group) {
  QuantCase<kFormat> c(m, n, k, group);
  UnderEveryPolicy([&](gpu::Stream& stream) { c.Launch(stream); },
                   [&](const std::string& policy) {
                     EXPECT_EQ(c.Check(), "") << policy << " format " << static_cast<int>(kFormat) << " m " << m
                                              << " n " << n << " k " << k << " group " << group;
                   });
}

TEST(CudaQuantGemm, EqualsAGemmOverDequantizedWeights) {
  CheckQuantizedSums<WeightFormat::kInt4>(1, 64, 128, 32);    // GGUF Q4_0
  CheckQuantizedSums<WeightFormat::kInt4>(16, 72, 256, 128);  // AWQ, GPTQ
  CheckQuantizedSums<WeightFormat::kInt4>(19, 33, 192, 64);
  CheckQuantizedSums<WeightFormat::kInt8>(3, 80, 128, 32);  // GGUF Q8_0
  CheckQuantizedSums<WeightFormat::kInt8>(65, 16, 256, 256);
  CheckQuantizedSums<WeightFormat::kE4m3>(5, 40, 256, 128);   // blocks
  CheckQuantizedSums<WeightFormat::kE4m3>(33, 17, 200, 200);  // a scale for each output
}

template <WeightFormat kFormat>
void CheckDrawn(Draw& draw) {
  const int m = draw.Chance(8) ? 0 : draw.Size(80), n = draw.Size(90);
  if (draw.Chance(4)) {
    const int k = draw.Multiple(8, 500);
    CheckQuantizedSums<kFormat>(m, n, k, k);  // one group per output
  } else {
    const int group = draw.Pick({32, 64, 128, 256});
    CheckQuantizedSums<kFormat>(m, n, draw.Multiple(group, 768), group);
  }
}
TEST(CudaQuantGemm, AnyShape) {
  Sweep(6, [](Draw& draw) {
    CheckDrawn<WeightFormat::kInt4>(draw);
    CheckDrawn<WeightFormat::kInt8>(draw);
    CheckDrawn<WeightFormat::kE4m3>(draw);
  });
}

// Any box of outputs, with zeroes beyond the weight's outputs and inputs.
template <WeightFormat kFormat>
void CheckDequantized(int n, int k, int group, int first, int outputs) {
  Data data(static_cast<unsigned>(n + k));
  const kernels::QuantizedWeight weight = RandomCodes(kFormat, n, k, group, data);
  const std::vector<uint16_t> dense = kernels::DequantizedBf16(weight);
  const auto layout = cuda::LayOutQuantized(weight);
  const DeviceArray<px::U128> words(layout.words);
  const DeviceArray<cuda::QuantMeta> meta(layout.meta);
  const int stride = cuda::QuantSteps(k) * cuda::kGemmStepK;
  const DeviceArray<px::bf16> out(static_cast<size_t>(outputs) * stride);
  UnderEveryPolicy(
      [&](gpu::Stream& stream) {
        out.Poison(stream);
        cuda::LaunchDequantize<kFormat>(stream, {words.data(), meta.data(), out.data(), first, outputs, n, k, group});
      },
      [&](const std::string& policy) {
        const std::vector<px::bf16> there = out.Read();
        for (int c = 0; c < outputs; ++c)
          for (int i = 0; i < stride; ++i) {
            const float want = first + c < n && i < k ? FloatOfBf16(dense[(first + c) * k + i]) : 0.0f;
            ASSERT_EQ(px::ToFloat(there[c * stride + i]), want) << policy << " output " << first + c << " input " << i;
          }
      });
}
TEST(CudaQuantGemm, ItsWeightsAsBf16AreTheDequantizedOnes) {
  CheckDequantized<WeightFormat::kInt4>(40, 160, 32, 0, 128);
  CheckDequantized<WeightFormat::kInt8>(70, 200, 200, 32, 64);
  CheckDequantized<WeightFormat::kE4m3>(150, 256, 128, 128, 128);
  CheckDequantized<WeightFormat::kE4m3>(33, 72, 72, 0, 48);
}

#if !defined(__CUDACC__)
TEST(CudaQuantGemm, EveryMissingSynchronizationIsFound) {
  QuantCase<WeightFormat::kInt4> c(5, 64, 64 * 9, 64);
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
