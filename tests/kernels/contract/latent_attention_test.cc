// Multi-head latent attention over a paged cache: against double precision, and bitwise over chunks and batches.
#include <gtest/gtest.h>

#include "tests/kernels/contract/backends.h"
#include "tests/kernels/contract/paged_kv.h"
#include "tests/kernels/tolerance.h"

namespace baton::kernels {
namespace {

constexpr float kScale = 0.0416667f;  // 1 / sqrt(576)

struct LatentCase {
  int heads, tokens_per_block;
  DType kv;
  float softcap = 0;
};

class LatentAttentionContract : public testing::TestWithParam<Backend> {
 protected:
  /// Those of the cache types that this backend keeps.
  std::vector<LatentCase> Cases() const {
    std::vector<LatentCase> all{{16, 16, compute_}, {5, 48, DType::kBF16, 20}, {70, 64, DType::kF8E4M3}};
    std::erase_if(all, [&](const LatentCase& c) { return GetParam().make(c.kv) == nullptr; });
    return all;
  }
  const DType compute_ = GetParam().compute;
};

/// Element i of a token's vector.
void SetLatent(const PagedKv& kv, DType dtype, int sequence, int token, int i, float x) {
  char* at = const_cast<char*>(kv.VectorAt(false, sequence, token, 0));
  const uint16_t half = ToBf16(x);
  const uint8_t quarter = E4m3OfFloat(x);
  if (dtype == DType::kF32)
    std::memcpy(at + i * 4, &x, 4);
  else if (dtype == DType::kBF16)
    std::memcpy(at + i * 2, &half, 2);
  else
    std::memcpy(at + i, &quarter, 1);
}
/// Writes random vectors for the first `tokens` tokens of a sequence; the rest stays NaN.
void FillLatents(const PagedKv& kv, DType dtype, int sequence, int tokens, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  for (int t = 0; t < tokens; ++t) {
    for (int i = 0; i < kLatentDim; ++i) SetLatent(kv, dtype, sequence, t, i, normal(rng));
  }
}

std::vector<double> ExpectedLatent(const LatentCase& c, const HostTensor& q, int row, int head, const PagedKv& kv,
                                   int sequence, int tokens) {
  std::vector<double> logits, out(kLatentValues, 0.0);
  double best = -1e300, sum = 0;
  for (int t = 0; t < tokens; ++t) {
    double dot = 0;
    for (int i = 0; i < kLatentDim; ++i)
      dot += double{q.At(row, head * kLatentDim + i)} * kv.At(false, sequence, t, 0, i);
    dot *= kScale;
    if (c.softcap > 0) dot = c.softcap * std::tanh(dot / c.softcap);
    logits.push_back(dot), best = std::max(best, dot);
  }
  for (int t = 0; t < tokens; ++t) {
    const double p = std::exp(logits[static_cast<size_t>(t)] - best);
    sum += p;
    for (int i = 0; i < kLatentValues; ++i) out[static_cast<size_t>(i)] += p * kv.At(false, sequence, t, 0, i);
  }
  for (double& x : out) x /= sum;
  return out;
}

TEST_P(LatentAttentionContract, EqualsDoublePrecisionOverTheStoredCache) {
  const auto tolerance = kernel_test::ToleranceOf(compute_).attention;
  std::mt19937 rng(41);
  for (const LatentCase& c : Cases()) {
    auto ops = GetParam().make(c.kv);
    const std::vector<int> rows{1, 3, 1}, lengths{1, 40, 261};
    PagedKv kv({1, kLatentDim, c.tokens_per_block, c.kv}, 3, 288, 5);
    Step step;
    for (int s = 0; s < 3; ++s) {
      FillLatents(kv, c.kv, s, lengths[s], rng);
      step.Add(kv, s, lengths[s] - rows[s], rows[s]);
    }
    HostTensor q(compute_, step.rows(), c.heads * kLatentDim, 8),
        out(compute_, step.rows(), c.heads * kLatentValues, 8);
    q.Fill(rng);
    ops->LatentAttention(q.view(), step.batch(), kv.view().k, {.scale = kScale, .logit_softcap = c.softcap},
                         out.view());
    ops->Sync();
    for (int s = 0; s < 3; ++s) {
      for (int r = 0; r < rows[s]; ++r) {
        const int row = step.row_start[s] + r;
        for (int head = 0; head < c.heads; head += c.heads > 20 ? 13 : 1) {
          const auto want = ExpectedLatent(c, q, row, head, kv, s, lengths[s] - rows[s] + r + 1);
          for (int i = 0; i < kLatentValues; ++i)
            ASSERT_TRUE(tolerance.Holds(out.At(row, head * kLatentValues + i), want[static_cast<size_t>(i)]))
                << "row " << row << " head " << head << " column " << i << ": " << out.At(row, head * kLatentValues + i)
                << ", want " << want[static_cast<size_t>(i)];
        }
      }
    }
  }
}

TEST_P(LatentAttentionContract, ARowHasItsBitsWhateverTheBatch) {
  std::mt19937 rng(42);
  const LatentCase c{6, 16, compute_};
  auto ops = GetParam().make(c.kv), reference = ReferenceOf(GetParam()).make(c.kv);
  PagedKv kv({1, kLatentDim, c.tokens_per_block, c.kv}, 2, 288, 6);
  for (int s = 0; s < 2; ++s) FillLatents(kv, c.kv, s, 270, rng);
  constexpr int kRows = 17;
  Step together;
  together.Add(kv, 1, 30, 2), together.Add(kv, 0, 270 - kRows, kRows);
  HostTensor q(compute_, kRows + 2, c.heads * kLatentDim), out(compute_, kRows + 2, c.heads * kLatentValues),
      alone(compute_, 1, c.heads * kLatentValues);
  q.Fill(rng);
  ops->LatentAttention(q.view(), together.batch(), kv.view().k, {.scale = kScale}, out.view());
  ops->Sync();
  for (int r = 0; r < kRows; r += 8) {
    Step one;
    one.Add(kv, 0, 270 - kRows + r, 1);
    reference->LatentAttention(q.view().Rows(2 + r, 1), one.batch(), kv.view().k, {.scale = kScale}, alone.view());
    reference->Sync();
    ASSERT_EQ(out.Row(2 + r), alone.Row(0)) << "row " << r;
  }
}

TEST_P(LatentAttentionContract, AnInfiniteLatentIsInvisibleToRowsBeforeIt) {
  const LatentCase c{6, 16, compute_};
  auto ops = GetParam().make(c.kv);
  constexpr int kRows = 3, kTokens = 40;
  std::vector<HostTensor> out;
  for (bool wounded : {false, true}) {
    std::mt19937 same(44);
    PagedKv kv({1, kLatentDim, c.tokens_per_block, c.kv}, 1, 48, 7);
    FillLatents(kv, c.kv, 0, kTokens, same);
    if (wounded) SetLatent(kv, c.kv, 0, kTokens - 2, 5, std::numeric_limits<float>::infinity());
    Step step;
    step.Add(kv, 0, kTokens - kRows, kRows);
    HostTensor q(compute_, kRows, c.heads * kLatentDim);
    q.Fill(same);
    out.emplace_back(compute_, kRows, c.heads * kLatentValues);
    ops->LatentAttention(q.view(), step.batch(), kv.view().k, {.scale = kScale}, out.back().view());
    ops->Sync();
  }
  EXPECT_EQ(out[0].Row(0), out[1].Row(0));
  EXPECT_FALSE(std::isfinite(out[1].At(1, 5)));
  EXPECT_FALSE(std::isfinite(out[1].At(2, 5)));
}

INSTANTIATE_TEST_SUITE_P(All, LatentAttentionContract, testing::ValuesIn(Backends()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace baton::kernels
