// RMSNorm and gated activation, to bf16 and to e4m3, and the sampler.
#include <memory>

#include "bench/gpu/kernel_case.h"
#include "kernels/cuda/host/sample_rows.h"
#include "kernels/cuda/instances/instances.h"

namespace baton::bench {
namespace {

using px::bf16;

constexpr float kInverseScale = 4.0f;  ///< of e4m3 outputs
template <typename Out>
constexpr float kFactor = sizeof(Out) == 1 ? kInverseScale : 1.0f;
/// One rounding to Out.
template <typename Out>
double ToleranceOf(double want) {
  return sizeof(Out) == 1 ? 1e-2 + 7e-2 * std::abs(want) : 4e-3 + 1e-2 * std::abs(want);
}

template <typename Out>
KernelCase RmsNormCase(int rows, int n) {
  struct Memory {
    DeviceArray<bf16> x;
    DeviceArray<Out> out;
    DeviceArray<float> residual, weight;
    std::vector<bf16> host_x;
    std::vector<float> host_residual, host_weight;
  };
  auto x = RandomValues<bf16>(static_cast<size_t>(rows) * n, 1);
  auto residual = RandomValues<float>(x.size(), 2);
  auto weight = RandomValues<float>(n, 3);
  auto m =
      std::make_shared<Memory>(Memory{DeviceArray<bf16>(x), DeviceArray<Out>(x.size()), DeviceArray<float>(residual),
                                      DeviceArray<float>(weight), x, residual, weight});
  auto launch = [=](gpu::Stream& stream) {
    cuda::LaunchRmsNorm(stream,
                        cuda::RmsNormParams<bf16, Out>{m->x.data(), m->residual.data(), m->weight.data(), m->out.data(),
                                                       n, n, n, rows, n, 1e-5f, 0.0f, kFactor<Out>},
                        false);
  };
  auto check = [=](gpu::Stream& stream) -> std::string {
    stream.Upload(m->residual.data(), m->host_residual.data(), m->host_residual.size() * 4);
    launch(stream);
    const int row = rows / 2;
    const auto got = m->out.Download(stream, static_cast<size_t>(row) * n, n);
    double squares = 0;
    auto sum = [&](int i) {
      return static_cast<double>(m->host_residual[static_cast<size_t>(row) * n + i]) +
             px::ToFloat(m->host_x[static_cast<size_t>(row) * n + i]);
    };
    for (int i = 0; i < n; ++i) squares += sum(i) * sum(i);
    for (int i = 0; i < n; ++i) {
      const double want = sum(i) / std::sqrt(squares / n + 1e-5) * m->host_weight[i] * kFactor<Out>;
      if (auto wrong = CheckNear(px::ToFloat(got[i]), want, ToleranceOf<Out>(want), "rmsnorm"); !wrong.empty())
        return wrong;
    }
    return {};
  };
  return {std::to_string(rows) + "x" + std::to_string(n), (10.0 + sizeof(Out)) * rows * n, 6.0 * rows * n, launch,
          check};
}

template <typename Out>
KernelCase SiluCase(int rows, int n) {
  auto x = RandomValues<bf16>(static_cast<size_t>(rows) * 2 * n, 4);
  auto in = std::make_shared<DeviceArray<bf16>>(x);
  auto out = std::make_shared<DeviceArray<Out>>(static_cast<size_t>(rows) * n);
  auto launch = [=](gpu::Stream& stream) {
    cuda::LaunchGatedActivation<cuda::Gate::kSilu>(
        stream, cuda::GatedActivationParams<Out>{in->data(), out->data(), 2 * n, n, rows, n, kFactor<Out>}, false);
  };
  auto check = [=](gpu::Stream& stream) -> std::string {
    launch(stream);
    const int row = rows - 1;
    const auto got = out->Download(stream, static_cast<size_t>(row) * n, n);
    for (int i = 0; i < n; ++i) {
      const double g = px::ToFloat(x[static_cast<size_t>(row) * 2 * n + i]),
                   up = px::ToFloat(x[static_cast<size_t>(row) * 2 * n + n + i]);
      const double want = g / (1 + std::exp(-g)) * up * kFactor<Out>;
      if (auto wrong = CheckNear(px::ToFloat(got[i]), want, ToleranceOf<Out>(want), "silu"); !wrong.empty())
        return wrong;
    }
    return {};
  };
  return {std::to_string(rows) + "x" + std::to_string(n), (4.0 + sizeof(Out)) * rows * n, 12.0 * rows * n, launch,
          check};
}

KernelCase SampleCase(int rows, int vocab, int top_k, float top_p) {
  struct Memory {
    DeviceArray<float> logits;
    DeviceArray<cuda::SampleRowParams> params;
    DeviceArray<cuda::SampleRowOutput> out;
  };
  std::vector<kernels::SampleRow> plan;
  for (int r = 0; r < rows; ++r)
    plan.push_back({.temperature = 0.8f, .top_k = top_k, .top_p = top_p, .seed = static_cast<uint64_t>(r)});
  auto logits = RandomValues<float>(static_cast<size_t>(rows) * vocab, 5, 2.0f);
  auto m = std::make_shared<Memory>(Memory{DeviceArray<float>(logits),
                                           DeviceArray<cuda::SampleRowParams>(cuda::PlanSample(plan, vocab).rows),
                                           DeviceArray<cuda::SampleRowOutput>(static_cast<size_t>(rows))});
  auto launch = [=](gpu::Stream& stream) {
    cuda::LaunchSample(stream, {m->logits.data(), nullptr, vocab, m->params.data(), nullptr, nullptr, m->out.data(),
                                nullptr, nullptr, nullptr, rows, vocab});
  };
  auto check = [=](gpu::Stream& stream) -> std::string {
    launch(stream);
    const auto got = m->out.Download(stream, 0, rows);
    for (int r = 0; r < rows; r += 1 + rows / 8) {
      if (top_k == 0 && !(top_p < 1.0f)) {  // the race, in double
        double best = -INFINITY;
        int winner = -1;
        for (int t = 0; t < vocab; ++t) {
          const double u =
              (kernels::PhiloxWordOf(static_cast<uint64_t>(r), 0, 0, static_cast<uint32_t>(t)) + 0.5) * 0x1p-32;
          const double score =
              logits[static_cast<size_t>(r) * vocab + t] / static_cast<double>(0.8f) - std::log(-std::log(u));
          if (score > best) best = score, winner = t;
        }
        if (winner != got[r].token)
          return "row " + std::to_string(r) + ": token " + std::to_string(got[r].token) + ", want " +
                 std::to_string(winner);
      }
      int better = 0;
      for (int t = 0; t < vocab; ++t)
        better += logits[static_cast<size_t>(r) * vocab + t] > logits[static_cast<size_t>(r) * vocab + got[r].token];
      if (top_k > 0 && better >= top_k)
        return "row " + std::to_string(r) + ": a token of rank " + std::to_string(better + 1);
    }
    return {};
  };
  const std::string filter =
      (top_k > 0 ? " top_k " + std::to_string(top_k) : std::string()) + (top_p < 1.0f ? " top_p 0.9" : "");
  return {std::to_string(rows) + "x" + std::to_string(vocab) + filter, 4.0 * rows * vocab, 0, launch, check};
}

}  // namespace

std::vector<CaseMaker> RowCases(const Sizes& s) {
  const int few = s(256, 3), many = s(16384, 4), hidden = s(4096, 256), gate = s(14336, 1032);
  return {{"rmsnorm_add", [=] { return RmsNormCase<bf16>(few, hidden); }},
          {"rmsnorm_add", [=] { return RmsNormCase<bf16>(many, s(4096, 512)); }},
          {"rmsnorm_add_fp8", [=] { return RmsNormCase<px::e4m3>(many, hidden); }},
          {"silu_mul", [=] { return SiluCase<bf16>(few, gate); }},
          {"silu_mul_fp8", [=] { return SiluCase<px::e4m3>(few, gate); }}};
}

std::vector<CaseMaker> SamplerCases(const Sizes& s) {
  const int rows = s(256, 2), vocab = s(128256, 1000);
  return {{"sample", [=] { return SampleCase(1, vocab, 0, 1.0f); }},
          {"sample", [=] { return SampleCase(rows, vocab, 0, 1.0f); }},
          {"sample", [=] { return SampleCase(1, vocab, 50, 0.9f); }},
          {"sample", [=] { return SampleCase(1, vocab, 0, 0.9f); }},
          {"sample", [=] { return SampleCase(rows, vocab, 50, 0.9f); }}};
}

}  // namespace baton::bench
