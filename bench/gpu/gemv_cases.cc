// GEMV at the four linear layers of an 8B model's decode step, with the fusions each has there.
#include <memory>

#include "bench/gpu/kernel_case.h"
#include "bench/gpu/random_codes.h"
#include "kernels/cuda/instances/instances.h"
#include "kernels/cuda/linear/quant_layout.h"

namespace baton::bench {
namespace {

using cuda::WeightFormat;
using px::bf16;

/// x [m, k], w [rows, k] in bf16.
struct GemvProblem {
  GemvProblem(int m_in, int n_in, int k_in, bool gated_in)
      : m(m_in),
        n(n_in),
        k(k_in),
        gated(gated_in),
        host_x(RandomValues<float>(static_cast<size_t>(m) * k, 1)),
        host_w(RandomValues<bf16>(static_cast<size_t>((Rows() + 127) / 128 * 128) * k, 2, 0.05f)),
        x(Narrow(host_x)),
        w(host_w),
        out(static_cast<size_t>(m) * n) {}
  int Rows() const { return gated ? 2 * n : n; }
  static std::vector<bf16> Narrow(const std::vector<float>& wide) {
    std::vector<bf16> out;
    for (float v : wide) out.push_back(px::FromFloat<bf16>(v));
    return out;
  }
  void Launch(gpu::Stream& stream) const {
    cuda::GemvParams p{.x_stride = k, .w = w.data(), .w_stride = k, .out = out.data(), .out_stride = n};
    p.m = m, p.n = n, p.k = k;
    p.x = x.data();
    if (gated)
      cuda::LaunchGemv<WeightFormat::kBf16, true>(stream, p, false);
    else
      cuda::LaunchGemv<WeightFormat::kBf16, false>(stream, p, false);
  }
  double Dot(int row, int weight_row) const {
    double dot = 0;
    for (int i = 0; i < k; ++i)
      dot += host_x[static_cast<size_t>(row) * k + i] *
             double{px::ToFloat(host_w[static_cast<size_t>(weight_row) * k + i])};
    return dot;
  }
  std::string Check(gpu::Stream& stream) const {
    Launch(stream);
    for (int sample = 0; sample < 40; ++sample) {
      const int row = sample % m, col = static_cast<int>(sample * 104729L % n);
      double want = Dot(row, col);
      if (gated) want = want / (1 + std::exp(-want)) * Dot(row, n + col);
      const double got = px::ToFloat(out.Download(stream, static_cast<size_t>(row) * n + col, 1)[0]);
      // x is rounded to bf16: √k roundings of 2⁻⁹ at weights of 0.05.
      if (auto wrong = CheckNear(got, want, 3e-2 + 2e-2 * std::abs(want), "gemv"); !wrong.empty()) return wrong;
    }
    return {};
  }

  int m, n, k;
  bool gated;
  std::vector<float> host_x;
  std::vector<bf16> host_w;
  DeviceArray<bf16> x, w, out;
};

KernelCase GemvCase(int m, int n, int k, bool gated) {
  auto p = std::make_shared<GemvProblem>(m, n, k, gated);
  const double weights = static_cast<double>(p->Rows()) * k;
  return {std::to_string(m) + "x" + std::to_string(p->Rows()) + "x" + std::to_string(k),
          2.0 * weights + 2.0 * m * (k + n), 2.0 * m * weights, [p](gpu::Stream& stream) { p->Launch(stream); },
          [p](gpu::Stream& stream) { return p->Check(stream); }};
}

template <WeightFormat kFormat>
KernelCase QuantGemvCase(int m, int n, int k, int group) {
  struct Problem {
    std::shared_ptr<const kernels::QuantizedWeight> weight;
    std::vector<bf16> host_x;
    std::unique_ptr<DeviceArray<px::U128>> words;
    std::unique_ptr<DeviceArray<cuda::QuantMeta>> meta;
    std::unique_ptr<DeviceArray<bf16>> x, out;
  };
  auto p = std::make_shared<Problem>();
  p->weight = RandomCodes(kFormat, n, k, group, 0.125f);
  p->host_x = RandomValues<bf16>(static_cast<size_t>(m) * k, 3);
  const auto layout = cuda::LayOutQuantized(*p->weight);
  p->words = std::make_unique<DeviceArray<px::U128>>(layout.words);
  p->meta = std::make_unique<DeviceArray<cuda::QuantMeta>>(layout.meta);
  p->x = std::make_unique<DeviceArray<bf16>>(p->host_x);
  p->out = std::make_unique<DeviceArray<bf16>>(static_cast<size_t>(m) * n);
  auto launch = [=](gpu::Stream& stream) {
    cuda::GemvParams g{
        .x = p->x->data(), .x_stride = k, .w = p->words->data(), .meta = p->meta->data(), .group = group};
    g.out = p->out->data(), g.out_stride = n, g.m = m, g.n = n, g.k = k;
    cuda::LaunchGemv<kFormat, false>(stream, g, false);
  };
  auto check = [=](gpu::Stream& stream) -> std::string {
    launch(stream);
    for (int sample = 0; sample < 40; ++sample) {
      const int row = sample % m, col = static_cast<int>(sample * 104729L % n);
      double want = 0;
      for (int i = 0; i < k; ++i)
        want += double{px::ToFloat(p->host_x[static_cast<size_t>(row) * k + i])} * ValueOf(*p->weight, col, i);
      const double got = px::ToFloat(p->out->Download(stream, static_cast<size_t>(row) * n + col, 1)[0]);
      if (auto wrong = CheckNear(got, want, 1e-2 + 1e-2 * std::abs(want), "gemv"); !wrong.empty()) return wrong;
    }
    return {};
  };
  const double weights = static_cast<double>(n) * k;
  return {std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k) + GroupName(k, group),
          weights * p->weight->bits / 8 + weights / group * 4 + 2.0 * m * (n + k), 2.0 * m * weights, launch, check};
}

}  // namespace

std::vector<CaseMaker> GemvCases(const Sizes& s) {
  std::vector<CaseMaker> cases;
  auto dense = [&](int m, int n, int k, bool gated) {
    cases.push_back({gated ? "gemv_silu" : "gemv", [=] { return GemvCase(m, n, k, gated); }});
  };
  auto quantized = [&](int m, int n, int k) {
    cases.push_back({"gemv_w4a16", [=] { return QuantGemvCase<WeightFormat::kInt4>(m, n, k, 128); }});
    cases.push_back({"gemv_w8a16", [=] { return QuantGemvCase<WeightFormat::kInt8>(m, n, k, 128); }});
    for (const int group : {128, k})
      cases.push_back({"gemv_fp8a16", [=] { return QuantGemvCase<WeightFormat::kE4m3>(m, n, k, group); }});
  };
  if (s.tiny) {
    dense(1, 48, 192, false), dense(3, 40, 128, true), quantized(2, 32, 256);
    return cases;
  }
  for (int m : {1, 2, 4, 8}) {
    dense(m, 6144, 4096, false), dense(m, 4096, 4096, false), dense(m, 14336, 4096, true);
    if (cuda::GemvFits(m, 14336)) dense(m, 4096, 14336, false);
    if (m == 1 || m == 4) quantized(m, 8192, 8192);
    if (m == 1 || m == 8) dense(m, 128256, 4096, false);  // logits
  }
  return cases;
}

}  // namespace baton::bench
