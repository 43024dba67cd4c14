// MoE routing against double precision and a stable sort, and its synchronization against mutants.
#include <algorithm>
#include <numeric>

#include "kernels/cuda/moe/moe_lists.cuh"
#include "kernels/cuda/moe/moe_route.cuh"
#include "tests/kernels/cuda/mutants.h"
#include "tests/kernels/cuda/shape_sweep.h"

namespace baton::cuda_test {
namespace {

struct MoeCase {
  MoeCase(int tokens_in, int experts_in, int k_in, bool renormalize_in, bool ties)
      : tokens(tokens_in),
        experts(experts_in),
        k(k_in),
        renormalize(renormalize_in),
        logits(Drawn(ties)),
        logits_there(logits),
        chosen(static_cast<size_t>(tokens) * k + 1),
        row_of_pair(chosen.size()),
        token_of_row(chosen.size()),
        offsets(static_cast<size_t>(experts) + 1),
        weights(chosen.size()) {}
  /// Numbers of which many are equal, or none.
  std::vector<float> Drawn(bool ties) const {
    Data data(static_cast<unsigned>(tokens + experts));
    std::vector<float> drawn(static_cast<size_t>(tokens) * experts + 1);
    for (int i = 0; i < tokens * experts; ++i)
      drawn[i] = ties ? static_cast<float>(data.Int(0, 3)) : data.Normal<float>(1)[0];
    return drawn;
  }
  void Launch(gpu::Stream& stream) {
    for (const auto* poisoned : {&chosen, &row_of_pair, &token_of_row}) poisoned->Poison(stream);
    weights.Poison(stream);
    cuda::LaunchMoeRoute(
        stream, {logits_there.data(), experts, chosen.data(), weights.data(), tokens, experts, k, renormalize});
    cuda::LaunchMoeLists(
        stream, {chosen.data(), offsets.data(), row_of_pair.data(), token_of_row.data(), tokens * k, experts, k});
  }
  std::string Check() const {
    const std::vector<int32_t> chosen_there = chosen.Read(), rows = row_of_pair.Read(), tokens_of = token_of_row.Read(),
                               starts = offsets.Read();
    const std::vector<float> weights_there = weights.Read();
    std::vector<std::vector<int>> pairs(experts);
    for (int t = 0; t < tokens; ++t) {
      const float* x = logits.data() + t * experts;
      std::vector<int> order(experts);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return x[a] > x[b]; });
      double sum = 0;
      for (int i = 0; i < (renormalize ? k : experts); ++i) sum += std::exp(double{x[order[i]]});
      for (int c = 0; c < k; ++c) {
        if (chosen_there[t * k + c] != order[c]) return "token " + std::to_string(t) + " goes to another expert";
        if (!kernel_test::kRoutingWeight.Holds(weights_there[t * k + c], std::exp(double{x[order[c]]}) / sum))
          return "another weight";
        pairs[order[c]].push_back(t * k + c);
      }
    }
    int row = 0;
    for (int e = 0; e < experts; ++e) {
      if (starts[e] != row) return "offset of expert " + std::to_string(e);
      for (int pair : pairs[e]) {
        if (rows[pair] != row) return "row of pair " + std::to_string(pair);
        if (tokens_of[row] != pair / k) return "token of row " + std::to_string(row);
        ++row;
      }
    }
    return starts[experts] == row ? "" : "last offset";
  }

  int tokens, experts, k;
  bool renormalize;
  std::vector<float> logits;
  DeviceArray<float> logits_there;
  DeviceArray<int32_t> chosen, row_of_pair, token_of_row, offsets;
  DeviceArray<float> weights;
};

TEST(CudaMoe, RoutesAndListsAsAStableSort) {
  for (auto [tokens, experts, k] : {std::array{1, 8, 2}, {37, 64, 6}, {300, 128, 8}, {5, 256, 16}, {0, 4, 1}}) {
    for (bool ties : {false, true}) {
      MoeCase c(tokens, experts, k, ties, ties);
      UnderEveryPolicy([&](gpu::Stream& stream) { c.Launch(stream); },
                       [&](const std::string& policy) {
                         EXPECT_EQ(c.Check(), "") << policy << " tokens " << tokens << " experts " << experts;
                       });
    }
  }
}

TEST(CudaMoe, AnyShape) {
  Sweep(6, [](Draw& draw) {
    const int experts = draw.Size(cuda::kMaxExperts), k = draw.Int(1, std::min(experts, cuda::kMaxChosenExperts));
    MoeCase c(draw.Chance(8) ? 0 : draw.Size(400), experts, k, draw.Chance(2), draw.Chance(2));
    UnderEveryPolicy([&](gpu::Stream& stream) { c.Launch(stream); },
                     [&](const std::string& policy) {
                       EXPECT_EQ(c.Check(), "")
                           << policy << " tokens " << c.tokens << " experts " << experts << " k " << k;
                     });
  });
}

TEST(CudaMoe, ATokenOfNaNsStillHasDifferentExperts) {
  MoeCase c(33, 40, 4, false, false);
  for (int i = 0; i < 33 * 40; ++i) c.logits[i] = i % 2 ? NAN : -INFINITY;
  c.logits_there.Write(c.logits);
  UnderEveryPolicy([&](gpu::Stream& stream) { c.Launch(stream); },
                   [&](const std::string& policy) {
                     const std::vector<int32_t> chosen = c.chosen.Read();
                     for (int i = 0; i < 33 * 4; ++i) ASSERT_EQ(chosen[i], i % 4) << policy;
                     EXPECT_EQ(c.offsets.Read()[40], 33 * 4);
                   });
}

#if !defined(__CUDACC__)
TEST(CudaMoe, EveryMissingSynchronizationIsFound) {
  MoeCase c(300, 256, 4, true, false);  // eight warps place the experts
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
