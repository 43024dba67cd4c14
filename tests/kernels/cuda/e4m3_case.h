// A GEMM of e4m3 with e4m3: random inputs and codes, and what both must give.
#pragma once

#include "kernels/cuda/linear/gemm_e4m3.cuh"
#include "kernels/cuda/linear/quant_layout.h"
#include "tests/kernels/cuda/random_codes.h"
#include "tests/kernels/cuda/shape_sweep.h"

namespace baton::cuda_test {

inline int64_t ScaleStride(int m) { return (m + cuda::kE4m3PadM - 1) / cuda::kE4m3PadM * cuda::kE4m3PadM; }

/// Rows of x, and what is left of them by the rule.
struct Inputs {
  Inputs(int m_in, int k_in, int group_in, float fixed_in, Data& data)
      : m(m_in),
        k(k_in),
        group(group_in),
        fixed(fixed_in),
        x(Rows(data)),
        x_there(x),
        codes(static_cast<size_t>(m) * cuda::RoundedPitch(k)),
        scales(static_cast<size_t>(k / group) * ScaleStride(m)) {
    using kernels::InputRounding;
    const InputRounding how{fixed > 0 ? InputRounding::Kind::kFixed : InputRounding::Kind::kByToken, fixed};
    for (int r = 0; r < m; ++r) {
      std::vector<float> row;
      for (int i = 0; i < k; ++i) row.push_back(px::ToFloat(x[static_cast<size_t>(r) * (k + 8) + i]));
      kernels::RoundInputs(how, row.data(), k, group, row.data());
      rounded.insert(rounded.end(), row.begin(), row.end());
    }
  }
  std::vector<px::bf16> Rows(Data& data) const {
    std::vector<px::bf16> rows = data.Normal<px::bf16>(static_cast<size_t>(m) * (k + 8), 3.0f);
    if (m > 1) std::fill_n(rows.begin() + k + 8, k, px::FromFloat<px::bf16>(0.0f));  // a row of zeroes
    return rows;
  }
  void Launch(gpu::Stream& stream) {
    codes.Poison(stream);
    scales.Poison(stream);
    cuda::LaunchRoundInputs(stream,
                            {x_there.data(), codes.data(), scales.data(), k + 8, ScaleStride(m), m, k, group, fixed});
  }
  std::string Check() const {
    const std::vector<px::e4m3> codes_there = codes.Read();
    const std::vector<float> scales_there = scales.Read();
    // What the code of input i of a row stands for.
    const auto at = [&](int row, int i) {
      return px::ToFloat(codes_there[static_cast<size_t>(row * cuda::RoundedPitch(k) + i)]);
    };
    for (int r = 0; r < m; ++r)
      for (int i = 0; i < cuda::RoundedPitch(k); ++i) {
        const float want = i < k ? rounded[static_cast<size_t>(r) * k + i] : 0.0f;
        const float scale = i < k ? scales_there[static_cast<size_t>(i / group * ScaleStride(m) + r)] : 1.0f;
        if (!(at(r, i) * scale == want))
          return "row " + std::to_string(r) + " input " + std::to_string(i) + ": " + std::to_string(at(r, i)) + " · " +
                 std::to_string(scale) + ", want " + std::to_string(want);
      }
    return {};
  }

  int m, k, group;
  float fixed;
  std::vector<px::bf16> x;  ///< [m, k + 8]
  DeviceArray<px::bf16> x_there;
  DeviceArray<px::e4m3> codes;
  DeviceArray<float> scales;
  std::vector<float> rounded;  // [m, k]
};

struct E4m3Case {
  E4m3Case(int m, int n_in, int k, int group, float fixed = 0.0f)
      : data(static_cast<unsigned>(m * 31 + n_in + k)),
        n(n_in),
        inputs(m, k, group, fixed, data),
        weight(Rounding(RandomCodes(cuda::WeightFormat::kE4m3, n, k, group, data))),
        layout(cuda::LayOutQuantized(weight)),
        codes(layout.words),
        meta(layout.meta),
        bias(data.Normal<float>(n)),
        bias_there(bias),
        out(static_cast<size_t>(m) * (n + 2)) {}
  static kernels::QuantizedWeight Rounding(kernels::QuantizedWeight weight) {
    weight.rounding.kind = kernels::InputRounding::Kind::kByToken;
    return weight;
  }
  cuda::E4m3GemmParams<float> Params(float* to) {
    return {inputs.codes.data(),
            inputs.scales.data(),
            reinterpret_cast<const px::e4m3*>(codes.data()),
            meta.data(),
            bias_there.data(),
            to,
            ScaleStride(inputs.m),
            n + 2,
            inputs.m,
            n,
            inputs.k,
            inputs.group};
  }
  void Launch(gpu::Stream& stream) {
    inputs.Launch(stream);
    out.Poison(stream);
    cuda::LaunchE4m3Gemm(stream, Params(out.data()));
  }
  std::string Check() const {
    if (std::string wrong = inputs.Check(); !wrong.empty()) return wrong;
    const std::vector<float> there = out.Read();
    const std::vector<float> values = kernels::DequantizedF32(weight);
    for (int r = 0; r < inputs.m; ++r)
      for (int c = 0; c < n; ++c) {
        double want = bias[c], size = std::abs(want);
        for (int i = 0; i < inputs.k; ++i) {
          const double product = double{inputs.rounded[static_cast<size_t>(r) * inputs.k + i]} *
                                 values[static_cast<size_t>(c) * inputs.k + i];
          want += product;
          size += std::abs(product);
        }
        const double got = there[static_cast<size_t>(r) * (n + 2) + c];
        if (!kernel_test::E4m3SumTolerance(size, inputs.k + 4).Holds(got, want))
          return "row " + std::to_string(r) + " column " + std::to_string(c) + ": " + std::to_string(got) + ", want " +
                 std::to_string(want);
      }
    return {};
  }

  Data data;
  int n;
  Inputs inputs;
  kernels::QuantizedWeight weight;
  cuda::QuantLayout layout;
  DeviceArray<px::U128> codes;
  DeviceArray<cuda::QuantMeta> meta;
  std::vector<float> bias;
  DeviceArray<float> bias_there, out;
};

}  // namespace baton::cuda_test
