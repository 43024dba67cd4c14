// What sparse models add: routing, the lists of the grouped GEMM, and the grouped GEMM over them.
#include <algorithm>
#include <memory>
#include <numeric>

#include "bench/gpu/kernel_case.h"
#include "kernels/cuda/instances/instances.h"

namespace baton::bench {
namespace {

using px::bf16;

KernelCase MoeCase(int tokens, int experts, int k) {
  struct Problem {
    std::vector<float> host;
    DeviceArray<float> logits, weights;
    DeviceArray<int32_t> chosen, offsets, row_of_pair, token_of_row;
  };
  auto logits = RandomValues<float>(static_cast<size_t>(tokens) * experts, 1);
  const size_t pairs = static_cast<size_t>(tokens) * k;
  auto p = std::make_shared<Problem>(Problem{logits, DeviceArray<float>(logits), DeviceArray<float>(pairs),
                                             DeviceArray<int32_t>(pairs),
                                             DeviceArray<int32_t>(static_cast<size_t>(experts) + 1),
                                             DeviceArray<int32_t>(pairs), DeviceArray<int32_t>(pairs)});
  auto launch = [=](gpu::Stream& stream) {
    cuda::LaunchMoeRoute(stream,
                         {p->logits.data(), experts, p->chosen.data(), p->weights.data(), tokens, experts, k, true});
    cuda::LaunchMoeLists(stream, {p->chosen.data(), p->offsets.data(), p->row_of_pair.data(), p->token_of_row.data(),
                                  static_cast<int>(pairs), experts, k});
  };
  auto check = [=](gpu::Stream& stream) -> std::string {
    launch(stream);
    const auto chosen = p->chosen.Download(stream, 0, pairs), rows = p->row_of_pair.Download(stream, 0, pairs);
    std::vector<int> order(pairs);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return chosen[a] < chosen[b]; });
    for (size_t row = 0; row < pairs; ++row)
      if (rows[order[row]] != static_cast<int32_t>(row))
        return "pair " + std::to_string(order[row]) + " lies in another row";
    for (int t = 0; t < tokens; t += 1 + tokens / 16)
      for (int e = 0, best = chosen[static_cast<size_t>(t) * k]; e < experts; ++e)
        if (p->host[static_cast<size_t>(t) * experts + e] > p->host[static_cast<size_t>(t) * experts + best])
          return "not the best expert";
    return {};
  };
  return {std::to_string(tokens) + "x" + std::to_string(experts) + " k" + std::to_string(k),
          4.0 * tokens * experts + 20.0 * static_cast<double>(pairs), 0, launch, check};
}

/// `tokens` × k pairs over `experts` weights of [n, depth], lists as the routing makes them.
struct GroupedProblem {
  GroupedProblem(int tokens_in, int experts_in, int k_in, int n_in, int depth_in)
      : tokens(tokens_in),
        experts(experts_in),
        k(k_in),
        n(n_in),
        depth(depth_in),
        pairs(tokens * k),
        expert_stride(static_cast<int64_t>((n + cuda::kGemmPadN - 1) / cuda::kGemmPadN * cuda::kGemmPadN) * depth),
        host_x(RandomValues<bf16>(static_cast<size_t>(tokens) * depth, 1)),
        host_w(RandomValues<bf16>(static_cast<size_t>(experts) * expert_stride, 2)),
        x(host_x),
        w(host_w),
        out(static_cast<size_t>(pairs) * n),
        logits(RandomValues<float>(static_cast<size_t>(tokens) * experts, 3)),
        weights(static_cast<size_t>(pairs)),
        chosen(static_cast<size_t>(pairs)),
        offsets(static_cast<size_t>(experts) + 1),
        row_of_pair(static_cast<size_t>(pairs)),
        token_of_row(static_cast<size_t>(pairs)) {
    gpu::Stream stream;
    cuda::LaunchMoeRoute(stream, {logits.data(), experts, chosen.data(), weights.data(), tokens, experts, k, true});
    cuda::LaunchMoeLists(stream,
                         {chosen.data(), offsets.data(), row_of_pair.data(), token_of_row.data(), pairs, experts, k});
    const auto ends = offsets.Download(stream, 0, static_cast<size_t>(experts) + 1);
    for (int e = 0; e < experts; ++e) experts_with_rows += ends[e + 1] > ends[e];
  }
  void Launch(gpu::Stream& stream) const {
    cuda::LaunchGroupedGemm(
        stream,
        cuda::GroupedGemmParams<bf16>{x.data(), token_of_row.data(), offsets.data(), w.data(), nullptr, out.data(),
                                      depth, depth, expert_stride, n, pairs, n, depth, experts},
        false);
  }
  std::string Check(gpu::Stream& stream) const {
    Launch(stream);
    for (int sample = 0; sample < 40; ++sample) {
      const int pair = static_cast<int>(sample * 7919L % pairs), col = static_cast<int>(sample * 104729L % n);
      const auto row = static_cast<size_t>(row_of_pair.Download(stream, pair, 1)[0]);
      const int64_t expert = chosen.Download(stream, pair, 1)[0];
      double want = 0, size = 0;
      for (int i = 0; i < depth; ++i) {
        const double product = double{px::ToFloat(host_x[static_cast<size_t>(pair / k) * depth + i])} *
                               px::ToFloat(host_w[expert * expert_stride + static_cast<int64_t>(col) * depth + i]);
        want += product, size += std::abs(product);
      }
      const double got = px::ToFloat(out.Download(stream, row * n + col, 1)[0]);
      if (auto wrong = CheckNear(got, want, size * depth * 0x1p-24 + std::abs(want) / 256 + 1e-6, "grouped");
          !wrong.empty())
        return wrong;
    }
    return {};
  }

  int tokens, experts, k, n, depth, pairs, experts_with_rows = 0;
  int64_t expert_stride;
  std::vector<bf16> host_x, host_w;
  DeviceArray<bf16> x, w, out;
  DeviceArray<float> logits, weights;
  DeviceArray<int32_t> chosen, offsets, row_of_pair, token_of_row;
};

KernelCase GroupedCase(int tokens, int experts, int k, int n, int depth) {
  auto p = std::make_shared<GroupedProblem>(tokens, experts, k, n, depth);
  const double rows = p->pairs;
  return {std::to_string(tokens) + "x" + std::to_string(n) + "x" + std::to_string(depth) + " e" +
              std::to_string(experts) + " k" + std::to_string(k),
          2.0 * p->experts_with_rows * n * depth + 2.0 * rows * (n + depth), 2.0 * rows * n * depth,
          [p](gpu::Stream& stream) { p->Launch(stream); }, [p](gpu::Stream& stream) { return p->Check(stream); }};
}

}  // namespace

std::vector<CaseMaker> MoeCases(const Sizes& s) {
  std::vector<CaseMaker> cases;
  auto route = [&](int tokens, int experts, int k) {
    cases.push_back({"moe_route_lists", [=] { return MoeCase(tokens, experts, k); }});
  };
  auto grouped = [&](int tokens, int experts, int k, int n, int depth) {
    cases.push_back({"gemm_grouped", [=] { return GroupedCase(tokens, experts, k, n, depth); }});
  };
  if (s.tiny) {
    route(40, 64, 4), grouped(10, 6, 2, 40, 128);
    return cases;
  }
  route(256, 256, 8), route(16384, 256, 8);
  for (int tokens : {1, 64, 4096}) grouped(tokens, 128, 8, 1536, 4096);
  return cases;
}

}  // namespace baton::bench
