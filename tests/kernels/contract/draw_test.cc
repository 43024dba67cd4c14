// Draws that are taken later: the tokens of Sample, and a name for them meanwhile.
#include <gtest/gtest.h>

#include <random>

#include "tests/kernels/contract/backends.h"

namespace baton::kernels {
namespace {

constexpr int kDrawnRows = 5, kVocab = 200, kHidden = 16;

class DrawContract : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    StepLimits limits;
    limits.rows = limits.sequences = limits.logit_rows = kDrawnRows;
    limits.positions = 64;
    limits.vocab = kVocab;
    ASSERT_TRUE(ops_->Prepare(limits).ok());
  }
  std::vector<float> Logits() {
    std::normal_distribution<float> normal(0, 2);
    std::vector<float> out(size_t{kDrawnRows} * kVocab);
    for (float& x : out) x = normal(random_);
    return out;
  }
  static Tensor Rows(std::vector<float>& logits) { return Tensor(logits.data(), DType::kF32, {kDrawnRows, kVocab}); }
  /// Greedy and drawn rows, with log-probabilities or without; `lists`: some with a bias and a ban.
  std::vector<SampleRow> SomeRows(uint64_t position, bool lists) {
    std::vector<SampleRow> rows(kDrawnRows);
    for (size_t r = 0; r < rows.size(); ++r) {
      rows[r].temperature = r == 0 ? 0.0f : 1.0f;
      rows[r].seed = r;
      rows[r].position = position;
      rows[r].num_logprobs = r % 2 == 0 ? 3 : -1;
      if (r % 2 == 0) rows[r].top_k = 20;
      if (lists && r % 2 == 1) rows[r].logit_bias = bias_;
      if (lists && r % 3 == 2) rows[r].banned_tokens = banned_;
    }
    return rows;
  }
  static void ExpectEqual(const std::vector<SampleResult>& got, const std::vector<SampleResult>& want) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t r = 0; r < got.size(); ++r) {
      EXPECT_EQ(got[r].token, want[r].token) << "row " << r;
      EXPECT_EQ(got[r].chosen.logprob, want[r].chosen.logprob) << "row " << r;
      EXPECT_EQ(got[r].chosen.rank, want[r].chosen.rank) << "row " << r;
      ASSERT_EQ(got[r].top.size(), want[r].top.size()) << "row " << r;
      for (size_t i = 0; i < got[r].top.size(); ++i) {
        EXPECT_EQ(got[r].top[i].token, want[r].top[i].token) << "row " << r;
        EXPECT_EQ(got[r].top[i].logprob, want[r].top[i].logprob) << "row " << r;
      }
    }
  }

  std::mt19937 random_{5};
  const std::vector<std::pair<int32_t, float>> bias_{{5, 9.0f}, {9, -1.0f}};
  const std::vector<int32_t> banned_{1, 2, 3};
  std::unique_ptr<Ops> ops_ = GetParam().make(GetParam().compute);
};

TEST_P(DrawContract, TwoThatAreBegunAreTakenInTheirOrderWithTheTokensOfSample) {
  std::vector<std::vector<float>> logits;
  std::vector<std::vector<SampleRow>> rows;
  std::vector<std::vector<SampleResult>> want;
  for (uint64_t i = 0; i < 4; ++i) {
    logits.push_back(Logits());
    rows.push_back(SomeRows(i, i % 2 == 1));
    std::vector<float> copy = logits.back();
    want.push_back(ops_->Sample(Rows(copy), rows.back()));
  }
  std::unique_ptr<Draw> first = ops_->BeginSample(Rows(logits[0]), rows[0]);
  for (size_t i = 1; i < 4; ++i) {
    std::unique_ptr<Draw> second = ops_->BeginSample(Rows(logits[i]), rows[i]);
    ExpectEqual(first->Take(), want[i - 1]);
    first = std::move(second);
  }
  ExpectEqual(first->Take(), want[3]);
}

TEST_P(DrawContract, OneThatNobodyTakesIsInNobodysWay) {
  for (uint64_t i = 0; i < 5; ++i) {
    std::vector<float> logits = Logits(), copy = logits;
    const std::vector<SampleRow> rows = SomeRows(i, false);
    const std::vector<SampleResult> want = ops_->Sample(Rows(copy), rows);
    const std::unique_ptr<Draw> draw = ops_->BeginSample(Rows(logits), rows);
    if (i % 2 == 1) ExpectEqual(draw->Take(), want);
  }
}

TEST_P(DrawContract, ANamedTokenHasTheEmbeddingOfItsId) {
  std::vector<float> table(size_t{kVocab} * kHidden);
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<float>(i);
  const Tensor rows_of_table(table.data(), DType::kF32, {kVocab, kHidden});
  std::vector<float> logits = Logits(), got(size_t{kDrawnRows} * kHidden), want(got.size());
  const std::vector<SampleRow> rows = SomeRows(7, true);
  const std::unique_ptr<Draw> draw = ops_->BeginSample(Rows(logits), rows);
  const std::vector<int32_t> named{DrawnToken(3), 11, DrawnToken(0), DrawnToken(4), DrawnToken(3)};
  ops_->Embedding(named, rows_of_table, 2.0f, Tensor(got.data(), DType::kF32, {kDrawnRows, kHidden}));
  std::vector<int32_t> ids;
  const std::vector<SampleResult> drawn = draw->Take();
  for (const int32_t id : named) ids.push_back(id >= 0 ? id : drawn[static_cast<size_t>(~id)].token);
  ops_->Embedding(ids, rows_of_table, 2.0f, Tensor(want.data(), DType::kF32, {kDrawnRows, kHidden}));
  ops_->Sync();
  EXPECT_EQ(got, want);
}

TEST_P(DrawContract, AStepThatIsToldWhatToDrawDrawsIt) {
  const std::vector<int32_t> row_start{0, 1, 2, 3, 4, 5}, context{0, 0, 0, 0, 0}, tables{0, 0, 0, 0, 0},
      tokens{1, 2, 3, 4, 5}, logit_rows{0, 1, 2, 3, 4};
  const RaggedBatch group{row_start, context, tables, 1};
  for (const bool lists : {false, true}) {
    std::vector<float> logits = Logits(), copy = logits;
    const std::vector<SampleRow> rows = SomeRows(3, lists);
    const std::vector<SampleResult> want = ops_->Sample(Rows(copy), rows);
    StepInputs step{tokens, {&group, 1}, logit_rows, nullptr, false, rows};
    ASSERT_TRUE(ops_->RunStep(step, [](const StepInputs&) { return Tensor(); }).ok());
    ExpectEqual(ops_->BeginSample(Rows(logits), rows)->Take(), want);
    // Without a step before it, what to draw is sent anew.
    std::vector<float> again = Logits(), copy_again = again;
    const std::vector<SampleRow> others = SomeRows(4, lists);
    const std::vector<SampleResult> want_again = ops_->Sample(Rows(copy_again), others);
    ExpectEqual(ops_->BeginSample(Rows(again), others)->Take(), want_again);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, DrawContract, testing::ValuesIn(Backends()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace baton::kernels
