// Mixtures of experts: routing as a stable sort, every row its token times its expert's weight with the bits of Linear,
// and the weighted sum of what the experts said.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/kernels/contract/backends.h"
#include "tests/kernels/contract/host_tensor.h"
#include "tests/kernels/tolerance.h"

namespace baton::kernels {
namespace {

/// Routes with memory that says which entries nobody wrote.
struct RoutesOf {
  RoutesOf(int tokens, int experts, int per_token)
      : chosen(static_cast<size_t>(tokens * per_token) + 1, -7),
        offsets(static_cast<size_t>(experts) + 1, -7),
        row_of_pair(chosen),
        token_of_row(chosen),
        weights(chosen.size(), NAN),
        routes{tokens,         experts,        per_token,          chosen.data(),
               weights.data(), offsets.data(), row_of_pair.data(), token_of_row.data()} {}
  RoutesOf(const RoutesOf&) = delete;
  std::vector<int32_t> chosen, offsets, row_of_pair, token_of_row;
  std::vector<float> weights;
  MoeRoutes routes;
};

class ExpertsContract : public testing::TestWithParam<Backend> {
 protected:
  const DType compute_ = GetParam().compute;
  std::unique_ptr<Ops> ops_ = GetParam().make(compute_);
  std::mt19937 rng_{31};
};

TEST_P(ExpertsContract, RoutesAsAStableSort) {
  struct {
    int tokens, experts, per_token;
  } const shapes[] = {{1, 8, 2}, {37, 60, 6}, {5, 256, 16}, {3, 1, 1}, {0, 4, 2}};
  for (const auto& s : shapes) {
    for (bool renormalize : {false, true}) {
      HostTensor logits(DType::kF32, s.tokens, s.experts, 3);
      for (int t = 0; t < s.tokens; ++t)
        for (int e = 0; e < s.experts; ++e) logits.Set(t, e, 0.5f * static_cast<float>(rng_() % 9));  // with ties
      RoutesOf to(s.tokens, s.experts, s.per_token);
      ops_->RouteTokens(logits.view(), renormalize, to.routes);
      ops_->Sync();
      std::vector<std::vector<int>> pairs(static_cast<size_t>(s.experts));
      for (int t = 0; t < s.tokens; ++t) {
        std::vector<int> order(static_cast<size_t>(s.experts));
        std::iota(order.begin(), order.end(), 0);
        std::ranges::stable_sort(order, [&](int a, int b) { return logits.At(t, a) > logits.At(t, b); });
        double sum = 0;
        for (int i = 0; i < (renormalize ? s.per_token : s.experts); ++i)
          sum += std::exp(double{logits.At(t, order[i])});
        for (int c = 0; c < s.per_token; ++c) {
          const int pair = t * s.per_token + c;
          ASSERT_EQ(to.chosen[pair], order[c]) << "token " << t << " choice " << c << " of " << s.experts;
          const double share = std::exp(double{logits.At(t, order[c])}) / sum;
          ASSERT_TRUE(kernel_test::kRoutingWeight.Holds(to.weights[pair], share))
              << to.weights[pair] << ", want " << share;
          pairs[static_cast<size_t>(order[c])].push_back(pair);
        }
      }
      int row = 0;
      for (int e = 0; e < s.experts; ++e) {
        ASSERT_EQ(to.offsets[e], row) << "expert " << e;
        for (int pair : pairs[static_cast<size_t>(e)]) {
          ASSERT_EQ(to.row_of_pair[pair], row);
          ASSERT_EQ(to.token_of_row[row++], pair / s.per_token);
        }
      }
      ASSERT_EQ(to.offsets[s.experts], row);
      EXPECT_EQ(to.chosen[row], -7) << "writes beyond its pairs";
    }
  }
}

TEST_P(ExpertsContract, ATokenOfNaNsStillHasDifferentExperts) {
  HostTensor logits(DType::kF32, 3, 6);
  for (int t = 0; t < 3; ++t)
    for (int e = 0; e < 6; ++e) logits.Set(t, e, e % 2 == 0 ? NAN : -INFINITY);
  logits.Set(1, 4, 0.0f);
  RoutesOf to(3, 6, 3);
  ops_->RouteTokens(logits.view(), true, to.routes);
  ops_->Sync();
  EXPECT_EQ((std::vector<int32_t>(to.chosen.begin(), to.chosen.end() - 1)),
            (std::vector<int32_t>{0, 1, 2, 4, 0, 1, 0, 1, 2}));
  for (int i = 0; i < 9; ++i) EXPECT_TRUE(std::isfinite(to.weights[i])) << i;
}

TEST_P(ExpertsContract, ARowHasTheBitsOfItsExpertsLinearLayer) {
  constexpr int kExperts = 5, kPerToken = 2, kN = 40, kK = 72;
  HostTensor weights(DType::kBF16, kExperts * kN, kK);
  weights.Fill(rng_, 0.3f);
  std::vector<float> biases(kExperts * kN);
  for (float& b : biases) b = std::normal_distribution<float>()(rng_);
  const Tensor all(weights.view().data, DType::kBF16, {kExperts, kN, kK});
  auto packed = ops_->PackExperts(all, biases.data());
  ASSERT_TRUE(packed.ok()) << packed.status();
  EXPECT_EQ((*packed)->experts(), kExperts);
  for (int tokens : {0, 1, 33}) {
    HostTensor logits(DType::kF32, tokens, kExperts), x(compute_, tokens, kK, 8);
    logits.Fill(rng_), x.Fill(rng_);
    for (int t = 0; t < tokens; ++t) logits.Set(t, 3, t % 3 == 0 ? -50.0f : 50.0f);  // crowded, and one left empty
    for (int t = 0; t < tokens; ++t) logits.Set(t, 2, -90.0f);
    RoutesOf to(tokens, kExperts, kPerToken);
    ops_->RouteTokens(logits.view(), true, to.routes);
    for (DType out_dtype : {DType::kF32, compute_}) {
      HostTensor out(out_dtype, tokens * kPerToken, kN), rows(compute_, tokens * kPerToken, kK), again = out;
      ops_->ExpertLinear(x.view(), false, to.routes, **packed, out.view());
      ops_->Sync();
      ops_->GatherRows(x.view(), {to.token_of_row.data(), static_cast<size_t>(to.routes.rows())}, rows.view());
      ops_->ExpertLinear(rows.view(), true, to.routes, **packed, again.view());
      for (int e = 0; e < kExperts; ++e) {
        auto one = *ops_->Pack(weights.view().Rows(e * kN, kN), biases.data() + e * kN);
        HostTensor alone(out_dtype, tokens, kN);
        ops_->Linear(x.view(), *one, alone.view());
        ops_->Sync();
        for (int row = to.offsets[e]; row < to.offsets[e + 1]; ++row) {
          ASSERT_EQ(out.Row(row), alone.Row(to.token_of_row[row])) << "expert " << e << " row " << row;
          ASSERT_EQ(again.Row(row), out.Row(row)) << "by row, " << row;
        }
      }
    }
  }
}

TEST_P(ExpertsContract, TheirWordsAreWeighed) {
  constexpr int kTokens = 19, kExperts = 6, kPerToken = 3, kN = 24;
  HostTensor logits(DType::kF32, kTokens, kExperts), y(compute_, kTokens * kPerToken, kN, 8),
      out(DType::kF32, kTokens, kN, 8);
  logits.Fill(rng_), y.Fill(rng_);
  RoutesOf to(kTokens, kExperts, kPerToken);
  ops_->RouteTokens(logits.view(), true, to.routes);
  ops_->CombineExperts(y.view(), to.routes, out.view());
  ops_->Sync();
  for (int t = 0; t < kTokens; ++t) {
    for (int i = 0; i < kN; ++i) {
      double sum = 0;
      for (int pair = t * kPerToken; pair < (t + 1) * kPerToken; ++pair)
        sum += double{to.weights[pair]} * y.At(to.row_of_pair[pair], i);
      ASSERT_TRUE(kernel_test::ToleranceOf(DType::kF32).row.Holds(out.At(t, i), sum))
          << out.At(t, i) << ", want " << sum;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ExpertsContract, testing::ValuesIn(Backends()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace baton::kernels
