// Dense and quantized GEMM at the shapes of an 8B model.
#include <memory>

#include "bench/gpu/kernel_case.h"
#include "bench/gpu/random_codes.h"
#include "kernels/cuda/instances/instances.h"
#include "kernels/cuda/linear/quant_layout.h"

namespace baton::bench {
namespace {

using cuda::WeightFormat;
using px::bf16;

std::string ShapeName(int m, int n, int k) {
  return std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k);
}

/// Sampled outputs against input(row, i) · weight(column, i) in double.
template <typename Input, typename Weight>
std::string CheckSums(gpu::Stream& stream, const DeviceArray<bf16>& out, int m, int n, int k, Input input,
                      Weight weight) {
  for (int sample = 0; sample < 40; ++sample) {
    const int row = static_cast<int>((sample * 7919L) % m), col = static_cast<int>((sample * 104729L + 11) % n);
    double want = 0, size = 0;
    for (int i = 0; i < k; ++i) {
      const double product = static_cast<double>(input(row, i)) * weight(col, i);
      want += product;
      size += std::abs(product);
    }
    const double got = px::ToFloat(out.Download(stream, static_cast<size_t>(row) * n + col, 1)[0]);
    if (auto wrong = CheckNear(got, want, size * k * 0x1p-24 + std::abs(want) / 256 + 1e-6, "gemm"); !wrong.empty())
      return wrong;
  }
  return {};
}
template <typename Weight>
std::string CheckProducts(gpu::Stream& stream, const DeviceArray<bf16>& out, const std::vector<bf16>& x, int m, int n,
                          int k, Weight weight) {
  return CheckSums(
      stream, out, m, n, k, [&](int row, int i) { return px::ToFloat(x[static_cast<size_t>(row) * k + i]); }, weight);
}

enum class Form { kMma, kWgmma, kNarrow };

/// Those of wgmma: the form for sm_90; the time of its tensor maps is the host's.
KernelCase DenseCase(int m, int n, int k, Form form = Form::kMma) {
  const size_t padded = static_cast<size_t>((n + cuda::kGemmPadN - 1) / cuda::kGemmPadN * cuda::kGemmPadN) * k;
  auto x = std::make_shared<std::vector<bf16>>(RandomValues<bf16>(static_cast<size_t>(m) * k, 1));
  auto w = std::make_shared<std::vector<bf16>>(RandomValues<bf16>(padded, 2));
  auto dx = std::make_shared<DeviceArray<bf16>>(*x), dw = std::make_shared<DeviceArray<bf16>>(*w);
  auto out = std::make_shared<DeviceArray<bf16>>(static_cast<size_t>(m) * n);
  const int multiprocessors = gpu::CurrentDevice().multiprocessors;  // asking takes longer than a kernel
  auto launch = [=](gpu::Stream& stream) {
    const cuda::GemmParams<bf16> p{dx->data(), dw->data(), nullptr, out->data(), k, k, n, m, n, k};
    switch (form) {
      case Form::kMma: return cuda::LaunchGemm(stream, p, false);
      case Form::kWgmma: return cuda::LaunchWgmmaGemm(stream, p, multiprocessors, false);
      case Form::kNarrow: return cuda::LaunchNarrowGemm(stream, p, multiprocessors, false);
    }
  };
  auto check = [=](gpu::Stream& stream) {
    launch(stream);
    return CheckProducts(stream, *out, *x, m, n, k,
                         [&](int col, int i) { return px::ToFloat((*w)[static_cast<size_t>(col) * k + i]); });
  };
  return {ShapeName(m, n, k),
          2.0 * (static_cast<double>(m) * k + static_cast<double>(n) * k + static_cast<double>(m) * n), 2.0 * m * n * k,
          launch, check};
}

/// `expanded`: the weight becomes bf16 in memory first, as for many rows; then `wgmma` or mma.sync.
template <WeightFormat kFormat>
KernelCase QuantCase(int m, int n, int k, int group, bool expanded = false, bool wgmma = false) {
  const auto weight = RandomCodes(kFormat, n, k, group, 0.5f);
  auto x = std::make_shared<std::vector<bf16>>(RandomValues<bf16>(static_cast<size_t>(m) * k, 3));
  const auto layout = cuda::LayOutQuantized(*weight);
  auto words = std::make_shared<DeviceArray<px::U128>>(layout.words);
  auto meta = std::make_shared<DeviceArray<cuda::QuantMeta>>(layout.meta);
  auto dx = std::make_shared<DeviceArray<bf16>>(*x),
       out = std::make_shared<DeviceArray<bf16>>(static_cast<size_t>(m) * n);
  const int padded = (n + cuda::kGemmPadN - 1) / cuda::kGemmPadN * cuda::kGemmPadN;
  auto rows = std::make_shared<DeviceArray<bf16>>(expanded ? static_cast<size_t>(padded) * k : 1);
  auto launch = [=](gpu::Stream& stream) {
    if (expanded) {
      cuda::LaunchDequantize<kFormat>(stream, {words->data(), meta->data(), rows->data(), 0, padded, n, k, group});
      const cuda::GemmParams<bf16> p{dx->data(), rows->data(), nullptr, out->data(), k, k, n, m, n, k};
      if (wgmma) return cuda::LaunchWgmmaGemm(stream, p, gpu::CurrentDevice().multiprocessors, false);
      return cuda::LaunchGemm(stream, p, false);
    }
    cuda::LaunchQuantGemm<kFormat>(stream,
                                   cuda::QuantGemmParams<bf16>{dx->data(), words->data(), meta->data(), nullptr,
                                                               out->data(), k, n, m, n, k, group},
                                   false);
  };
  auto check = [=](gpu::Stream& stream) {
    launch(stream);
    return CheckProducts(stream, *out, *x, m, n, k, [&](int col, int i) { return ValueOf(*weight, col, i); });
  };
  const double weights = static_cast<double>(n) * k;
  return {ShapeName(m, n, k) + GroupName(k, group),
          weights * weight->bits / 8 + weights / group * 4 + 2.0 * m * (n + k), 2.0 * m * weights, launch, check};
}

/// e4m3 with e4m3, by mma.sync or wgmma: of x what round_inputs.cuh leaves, once.
KernelCase E4m3Case(int m, int n, int k, int group, bool wgmma) {
  auto weight = std::make_shared<kernels::QuantizedWeight>(*RandomCodes(WeightFormat::kE4m3, n, k, group, 0.5f));
  weight->rounding.kind = kernels::InputRounding::Kind::kByToken;
  auto x = std::make_shared<std::vector<bf16>>(RandomValues<bf16>(static_cast<size_t>(m) * k, 5));
  auto rounded = std::make_shared<std::vector<float>>();
  for (const bf16 value : *x) rounded->push_back(px::ToFloat(value));
  for (int r = 0; r < m; ++r) {
    float* const row = rounded->data() + static_cast<size_t>(r) * k;
    kernels::RoundInputs(weight->rounding, row, k, group, row);
  }
  const auto layout = cuda::LayOutQuantized(*weight);
  auto rows = std::make_shared<DeviceArray<px::U128>>(layout.words);
  auto meta = std::make_shared<DeviceArray<cuda::QuantMeta>>(layout.meta);
  const int padded = (m + cuda::kE4m3PadM - 1) / cuda::kE4m3PadM * cuda::kE4m3PadM;
  auto dx = std::make_shared<DeviceArray<bf16>>(*x),
       out = std::make_shared<DeviceArray<bf16>>(static_cast<size_t>(m) * n);
  auto codes = std::make_shared<DeviceArray<px::e4m3>>(static_cast<size_t>(m) * cuda::RoundedPitch(k));
  auto scales = std::make_shared<DeviceArray<float>>(static_cast<size_t>(k / group) * padded);
  const int multiprocessors = gpu::CurrentDevice().multiprocessors;
  auto launch = [=](gpu::Stream& stream) {
    const cuda::E4m3GemmParams<bf16> p{codes->data(),
                                       scales->data(),
                                       reinterpret_cast<const px::e4m3*>(rows->data()),
                                       meta->data(),
                                       nullptr,
                                       out->data(),
                                       padded,
                                       n,
                                       m,
                                       n,
                                       k,
                                       group};
    return wgmma ? cuda::LaunchE4m3Wgmma(stream, p, multiprocessors, false) : cuda::LaunchE4m3Gemm(stream, p, false);
  };
  auto check = [=](gpu::Stream& stream) {
    cuda::LaunchRoundInputs(stream, {dx->data(), codes->data(), scales->data(), k, padded, m, k, group, 0.0f});
    launch(stream);
    return CheckSums(
        stream, *out, m, n, k, [&](int row, int i) { return (*rounded)[static_cast<size_t>(row) * k + i]; },
        [&](int col, int i) { return ValueOf(*weight, col, i); });
  };
  const double weights = static_cast<double>(n) * k;
  return {ShapeName(m, n, k) + GroupName(k, group), weights + weights / group * 4 + 1.0 * m * k + 2.0 * m * n,
          2.0 * m * weights, launch, check};
}

}  // namespace

std::vector<CaseMaker> GemmCases(const Sizes& s) {
  std::vector<CaseMaker> cases;
  // The four linear layers of an 8B model.
  struct Layer {
    int n, k;
  };
  const std::vector<Layer> layers = s.tiny
                                        ? std::vector<Layer>{{128, 192}}
                                        : std::vector<Layer>{{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}};
  const auto dense = [&](const char* kernel, Form form, const std::vector<int>& rows) {
    for (const auto [n, k] : layers)
      for (const int m : rows) cases.push_back({kernel, [=] { return DenseCase(m, n, k, form); }});
  };
  using Rows = std::vector<int>;
  dense("gemm_bf16", Form::kMma, s.tiny ? Rows{1, 20} : Rows{16, 64, 256, 4096});
  dense("gemm_narrow", Form::kNarrow, s.tiny ? Rows{1, 20} : Rows{1, 8, 16, 32, 64, 128, 256});
  dense("gemm_wgmma", Form::kWgmma, s.tiny ? Rows{130} : Rows{256, 1024, 4096});
  const int n = s(8192, 64), k = s(8192, 256);
  for (int m : s.tiny ? std::vector<int>{1} : std::vector<int>{1, 16, 64}) {
    cases.push_back({"gemm_w4a16", [=] { return QuantCase<WeightFormat::kInt4>(m, n, k, 128); }});
    cases.push_back({"gemm_w8a16", [=] { return QuantCase<WeightFormat::kInt8>(m, n, k, 128); }});
  }
  for (int m : s.tiny ? std::vector<int>{20} : std::vector<int>{32, 2048})
    for (const int group : {128, k})
      cases.push_back({"gemm_fp8a16", [=] { return QuantCase<WeightFormat::kE4m3>(m, n, k, group); }});
  for (const bool wgmma : {false, true})
    for (int m : s.tiny ? std::vector<int>{1, 20} : std::vector<int>{1, 16, 64, 256, 2048, 4096})
      for (const int group : {128, k})
        cases.push_back({wgmma ? "gemm_fp8a8_wgmma" : "gemm_fp8a8", [=] { return E4m3Case(m, n, k, group, wgmma); }});
  for (const bool wgmma : {false, true})
    cases.push_back({wgmma ? "gemm_fp8_to_bf16_wgmma" : "gemm_fp8_to_bf16",
                     [=] { return QuantCase<WeightFormat::kE4m3>(s(2048, 130), n, k, 128, true, wgmma); }});
  return cases;
}

}  // namespace baton::bench
