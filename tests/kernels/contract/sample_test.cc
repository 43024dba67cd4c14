// Sampling: every field does what SampleRow says, the draw follows the distribution, and
// its bits depend on the row alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "kernels/philox.h"
#include "tests/kernels/contract/backends.h"
#include "tests/kernels/contract/host_tensor.h"
#include "tests/kernels/tolerance.h"

namespace baton::kernels {
namespace {

class SampleContract : public testing::TestWithParam<Backend> {
 protected:
  SampleResult One(const std::vector<float>& logits, const SampleRow& row) {
    std::vector<float> copy(logits.begin(), logits.end());
    return ops_->Sample(Tensor(copy.data(), DType::kF32, {1, static_cast<int64_t>(logits.size())}), {&row, 1})[0];
  }
  // How often each token comes in `draws` positions.
  std::map<int32_t, int> Count(const std::vector<float>& logits, SampleRow row, int draws) {
    std::map<int32_t, int> count;
    for (int i = 0; i < draws; ++i) {
      row.position = static_cast<uint64_t>(i);
      ++count[One(logits, row).token];
    }
    return count;
  }
  /// Fewer draws on an emulated device.
  int Draws(int draws) const { return GetParam().slow ? std::max(40, draws / 100) : draws; }
  std::unique_ptr<Ops> ops_ = GetParam().make(GetParam().compute);
};

std::vector<float> RandomLogits(int n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> out(static_cast<size_t>(n));
  for (float& x : out) x = normal(rng);
  return out;
}

TEST(Philox, KnownAnswers) {
  const PhiloxBlock zero = Philox4x32({{0, 0, 0, 0}}, 0, 0);
  EXPECT_EQ(zero.word[0], 0x6627e8d5u);
  EXPECT_EQ(zero.word[1], 0xe169c58du);
  EXPECT_EQ(zero.word[2], 0xbc57ac4cu);
  EXPECT_EQ(zero.word[3], 0x9b00dbd8u);
  const uint32_t f = 0xffffffffu;
  const PhiloxBlock ones = Philox4x32({{f, f, f, f}}, f, f);
  EXPECT_EQ(ones.word[0], 0x408f276du);
  EXPECT_EQ(ones.word[3], 0x6d5451fdu);
}

TEST_P(SampleContract, GreedyTakesTheGreatestAndTheLowerIdOfATie) {
  std::vector<float> logits = RandomLogits(1000, 1);
  logits[701] = logits[40] = 50;
  EXPECT_EQ(One(logits, {.temperature = 0}).token, 40);
  logits[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(One(logits, {.temperature = 0}).token, 40);
}

TEST_P(SampleContract, TheDrawFollowsTheSoftmax) {
  const std::vector<float> logits{1.0f, 0.0f, -1.0f, 2.0f, 0.5f};
  for (float temperature : {0.5f, 1.0f, 2.0f}) {
    double sum = 0;
    for (float x : logits) sum += std::exp(x / temperature);
    const int draws = Draws(20000);
    auto count = Count(logits, {.temperature = temperature, .seed = 42}, draws);
    for (int t = 0; t < 5; ++t) {
      const double p = std::exp(logits[t] / temperature) / sum;
      EXPECT_NEAR(count[t] / double(draws), p, 5 * std::sqrt(p * (1 - p) / draws))
          << "token " << t << " temperature " << temperature;
    }
  }
}

TEST_P(SampleContract, TopKTopPAndMinPKeepTheRightTokens) {
  std::vector<float> logits(300, -30.0f);
  const std::vector<double> p{0.4, 0.3, 0.15, 0.1, 0.05};
  for (size_t i = 0; i < p.size(); ++i) logits[i * 50 + 7] = static_cast<float>(std::log(p[i]));
  auto kept = [&](SampleRow row) {
    std::vector<int32_t> tokens;
    for (auto [token, n] : Count(logits, row, Draws(3000))) tokens.push_back(token);
    return tokens;
  };
  EXPECT_EQ(kept({.top_k = 2}), (std::vector<int32_t>{7, 57}));
  EXPECT_EQ(kept({.top_p = 0.75f}), (std::vector<int32_t>{7, 57, 107}));
  EXPECT_EQ(kept({.top_p = 0.01f}), (std::vector<int32_t>{7}));
  EXPECT_EQ(kept({.min_p = 0.3f}), (std::vector<int32_t>{7, 57, 107}));
  EXPECT_EQ(kept({.top_k = 4, .top_p = 0.7f}), (std::vector<int32_t>{7, 57}));  // 0.4 + 0.3 of 0.95 is above 0.7
  EXPECT_EQ(kept({.top_k = 3, .min_p = 0.5f}), (std::vector<int32_t>{7, 57}));
}

TEST_P(SampleContract, ANucleusThatReachesTopPExactlyIsWhole) {
  const std::vector<float> logits{1, 1, 1, 1};  // each a quarter, without rounding
  const int draws = Draws(400);
  const auto one = Count(logits, {.top_p = 0.25f}, draws);
  EXPECT_EQ(one.size(), 1u);
  EXPECT_TRUE(one.contains(0));
  const auto two = Count(logits, {.top_p = 0.5f}, draws);
  EXPECT_EQ(two.size(), 2u);
  EXPECT_TRUE(two.contains(0) && two.contains(1));
}

TEST_P(SampleContract, MinPOfOneKeepsAllThatAreAsLikelyAsTheBest) {
  const auto count = Count({1, 0, 1, 0.5f}, {.min_p = 1}, Draws(400));
  EXPECT_EQ(count.size(), 2u);
  EXPECT_TRUE(count.contains(0) && count.contains(2));
}

TEST_P(SampleContract, TiesAtTheTopKEdgeKeepTheLowerId) {
  const std::vector<float> logits{1, 3, 3, 3, 0};
  const int draws = Draws(400);
  auto count = Count(logits, {.top_k = 2}, draws);
  EXPECT_GT(count[1], 0);
  EXPECT_GT(count[2], 0);
  EXPECT_EQ(count[1] + count[2], draws);
}

TEST_P(SampleContract, EditsComeInTheirOrder) {
  const std::vector<float> logits{1.0f, 2.0f, -1.0f, 0.5f};
  const std::vector<int32_t> allowed{0, 2, 3}, banned{0}, prompt{3}, output{3, 3, 2};
  EXPECT_EQ(One(logits, {.temperature = 0, .allowed_tokens = allowed}).token, 0);
  EXPECT_EQ(One(logits, {.temperature = 0, .allowed_tokens = allowed, .banned_tokens = banned}).token, 3);
  const std::vector<std::pair<int32_t, float>> bias{{2, 10.0f}};
  EXPECT_EQ(One(logits, {.temperature = 0, .logit_bias = bias}).token, 2);
  // 0.5 / 2 for a positive logit, -1 · 2 for a negative one.
  EXPECT_EQ(One({0.3f, -5, -5, 0.5f}, {.temperature = 0, .repetition_penalty = 2, .prompt_tokens = prompt}).token, 0);
  EXPECT_EQ(One({-1.5f, -5, -5, -1.0f}, {.temperature = 0, .repetition_penalty = 2, .prompt_tokens = prompt}).token, 0);
  EXPECT_EQ(One({0.1f, 0.2f, 0, 0.5f}, {.temperature = 0, .frequency_penalty = 0.16f, .output_tokens = output}).token,
            1);
  EXPECT_EQ(One({0.1f, 0.2f, 0, 0.5f}, {.temperature = 0, .frequency_penalty = 0.14f, .output_tokens = output}).token,
            3);
  EXPECT_EQ(One({0.1f, 0.2f, 0, 0.5f}, {.temperature = 0, .presence_penalty = 0.31f, .output_tokens = output}).token,
            1);
  EXPECT_EQ(One({0.1f, 0.2f, 0, 0.5f}, {.temperature = 0, .presence_penalty = 0.29f, .output_tokens = output}).token, 3)
      << "token 3 is there twice and counts once";
  const uint32_t mask = 0b0101;
  EXPECT_EQ(One({0, 9, 1, 9}, {.temperature = 0, .grammar_mask = &mask}).token, 2);
}

TEST_P(SampleContract, LogprobsAreOfTheRawLogits) {
  const std::vector<float> logits = RandomLogits(5000, 3);
  const std::vector<std::pair<int32_t, float>> bias{{123, 100.0f}};
  const SampleResult got = One(logits, {.temperature = 0.3f, .logit_bias = bias, .num_logprobs = 4});
  double sum = 0;
  for (float x : logits) sum += std::exp(double{x});
  EXPECT_EQ(got.token, 123);
  EXPECT_NEAR(got.chosen.logprob, logits[123] - std::log(sum), kernel_test::kLogProbability.absolute);
  std::vector<int32_t> order(5000);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  EXPECT_EQ(got.chosen.rank, 1 + std::find(order.begin(), order.end(), 123) - order.begin());
  ASSERT_EQ(got.top.size(), 4u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(got.top[i].token, order[i]);
    EXPECT_EQ(got.top[i].rank, i + 1);
    EXPECT_NEAR(got.top[i].logprob, logits[order[i]] - std::log(sum), kernel_test::kLogProbability.absolute);
  }
  std::vector<float> copy(logits.begin(), logits.end());
  const int32_t target = 77;
  const SampleResult prompt = ops_->Logprobs(Tensor(copy.data(), DType::kF32, {1, 5000}), {&target, 1}, 0)[0];
  EXPECT_NEAR(prompt.chosen.logprob, logits[77] - std::log(sum), kernel_test::kLogProbability.absolute);
  EXPECT_TRUE(prompt.top.empty());
}

TEST_P(SampleContract, ATokenDependsOnItsRowAlone) {
  const Backend theirs = ReferenceOf(GetParam());
  auto reference = theirs.make(theirs.compute);
  constexpr int kRows = 40, kVocab = 3001;
  const std::vector<float> logits = RandomLogits(kRows * kVocab, 4);
  std::vector<float> copy(logits.begin(), logits.end());
  std::vector<SampleRow> rows;
  std::vector<int32_t> history(50);
  std::iota(history.begin(), history.end(), 100);
  for (int i = 0; i < kRows; ++i) {
    SampleRow row{.temperature = i % 5 == 0 ? 0 : 0.3f + 0.1f * i,
                  .top_k = i % 3 == 0 ? 20 : 0,
                  .top_p = i % 4 == 0 ? 0.9f : 1.0f,
                  .min_p = i % 7 == 0 ? 0.05f : 0.0f,
                  .repetition_penalty = i % 2 == 0 ? 1.2f : 1.0f,
                  .prompt_tokens = history,
                  .seed = static_cast<uint64_t>(i) << 40,
                  .sequence_index = static_cast<uint32_t>(i % 2),
                  .position = static_cast<uint64_t>(1000 + i),
                  .num_logprobs = i % 3 - 1};
    rows.push_back(row);
  }
  const auto together = ops_->Sample(Tensor(copy.data(), DType::kF32, {kRows, kVocab}), rows);
  for (int i = 0; i < kRows; ++i) {
    std::vector<float> one(logits.begin() + i * kVocab, logits.begin() + (i + 1) * kVocab);
    const SampleResult alone = reference->Sample(Tensor(one.data(), DType::kF32, {1, kVocab}), {&rows[i], 1})[0];
    ASSERT_EQ(together[i].token, alone.token) << "row " << i;
    ASSERT_EQ(together[i].chosen.logprob, alone.chosen.logprob);
    ASSERT_EQ(together[i].top.size(), alone.top.size());
  }
}

TEST_P(SampleContract, EveryBackendDrawsTheSameToken) {
  const Backend cpu = Backends().front();
  auto reference = cpu.make(cpu.compute);
  constexpr int kRows = 24, kVocab = 2003;
  const std::vector<float> drawn = RandomLogits(kRows * kVocab, 5);
  std::vector<float> logits(drawn.begin(), drawn.end()), copy = logits;
  std::vector<SampleRow> rows;
  for (int i = 0; i < kRows; ++i)
    rows.push_back({.temperature = 0.4f + 0.1f * static_cast<float>(i),
                    .top_k = i % 3 == 0 ? 7 + i : 0,
                    .top_p = i % 2 == 0 ? 0.85f : 1.0f,
                    .min_p = i % 4 == 0 ? 0.02f : 0.0f,
                    .seed = 77u + static_cast<uint64_t>(i),
                    .position = static_cast<uint64_t>(i)});
  const Tensor all(logits.data(), DType::kF32, {kRows, kVocab}), theirs(copy.data(), DType::kF32, {kRows, kVocab});
  const auto got = ops_->Sample(all, rows), want = reference->Sample(theirs, rows);
  for (int i = 0; i < kRows; ++i) EXPECT_EQ(got[i].token, want[i].token) << "row " << i;
}

TEST_P(SampleContract, SeedSequenceAndPositionEachChangeTheDraw) {
  const std::vector<float> flat(512, 0.0f);
  const int32_t base = One(flat, {.seed = 1, .sequence_index = 0, .position = 0}).token;
  int changed = 0;
  for (uint64_t i = 1; i <= 8; ++i) {
    changed += One(flat, {.seed = 1 + (i << 33), .sequence_index = 0, .position = 0}).token != base;
    changed += One(flat, {.seed = 1, .sequence_index = static_cast<uint32_t>(i), .position = 0}).token != base;
    changed += One(flat, {.seed = 1, .sequence_index = 0, .position = i << 32}).token != base;
  }
  EXPECT_GE(changed, 22);  // a chance repeat has probability 1/512 each
  EXPECT_EQ(One(flat, {.seed = 1, .sequence_index = 0, .position = 0}).token, base);
}

INSTANTIATE_TEST_SUITE_P(All, SampleContract, testing::ValuesIn(Backends()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace baton::kernels
