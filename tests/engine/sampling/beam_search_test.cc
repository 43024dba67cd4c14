// The core of beam search beside transformers' generate(num_beams), on tables of logits by the last token
// (make_beam_goldens.py), and by hand.
#include "engine/sampling/beam_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "common/json.h"
#include "tests/engine/sampling/beam_goldens.h"

namespace baton::engine {
namespace {

using ::testing::ElementsAre;

using Logits = std::vector<std::vector<float>>;

// What a sampler says of a row: the k best of its log-softmax.
kernels::SampleResult Drawn(const std::vector<float>& logits, int32_t k) {
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x));
  kernels::SampleResult out;
  for (size_t t = 0; t < logits.size(); ++t)
    out.top.push_back({static_cast<int32_t>(t), static_cast<float>(logits[t] - std::log(sum)), 0});
  std::sort(out.top.begin(), out.top.end(), [](const auto& a, const auto& b) {
    return std::pair(-a.logprob, a.token) < std::pair(-b.logprob, b.token);
  });
  out.top.resize(static_cast<size_t>(k));
  for (size_t i = 0; i < out.top.size(); ++i) out.top[i].rank = static_cast<int32_t>(i) + 1;
  out.token = out.top[0].token;
  out.chosen = out.top[0];
  return out;
}

struct Searched {
  std::vector<BeamSearch::Answer> answers;
  int steps = 0;
};

// Runs a search whose next logits are those of the last token.
Searched Search(const Logits& table, int32_t last, const SamplingParams& params) {
  Searched out;
  BeamSearch search(params, params.max_tokens);
  const int32_t k = BeamCandidates(params, static_cast<int32_t>(table.size()));
  std::vector<int32_t> ends = {last};
  while (!ends.empty()) {
    std::vector<kernels::SampleResult> rows;
    std::vector<const kernels::SampleResult*> drawn;
    rows.reserve(ends.size());
    for (const int32_t token : ends) drawn.push_back(&rows.emplace_back(Drawn(table[static_cast<size_t>(token)], k)));
    ends.clear();
    ++out.steps;
    for (const BeamSearch::Beam& beam : search.Advance(drawn)) ends.push_back(beam.token);
  }
  out.answers = search.TakeAnswers(params.n);
  return out;
}

TEST(BeamSearch, AnswersAreThoseOfTransformers) {
  const nlohmann::json golden = BeamGoldens();
  size_t ended = 0;
  for (const nlohmann::json& one : golden["cases"]) {
    const SamplingParams params = BeamParams(one);
    const auto table = golden["tables"][one["table"].get<size_t>()].get<Logits>();
    const std::vector<BeamSearch::Answer> answers = Search(table, one["prompt"][0], params).answers;
    const auto expected = one["answers"].get<std::vector<std::vector<int32_t>>>();
    ASSERT_EQ(answers.size(), expected.size()) << one;
    for (size_t i = 0; i < answers.size(); ++i) {
      EXPECT_EQ(TokensOf(answers[i].tokens), expected[i]) << "answer " << i << " of " << one;
      EXPECT_NEAR(answers[i].score, one["scores"][i].get<double>(), 1e-4) << "answer " << i << " of " << one;
      ended += answers[i].ended;
    }
  }
  EXPECT_GE(golden["cases"].size(), 100u);
  EXPECT_GE(ended, 50u);
}

// Token 0 begins; 1 leads to the end (2) with certainty, 3 goes on and on.
constexpr float kLow = -30;
const Logits kFork = {{kLow, 1, kLow, 0.9f, kLow, kLow},
                      {kLow, kLow, 5, kLow, kLow, kLow},
                      {0, 0, 0, 0, 0, 0},
                      {kLow, kLow, kLow, 1, kLow, 0.9f},
                      {0, 0, 0, 0, 0, 0},
                      {kLow, kLow, 5, 1, kLow, 1}};

SamplingParams Params(int32_t width, int32_t max_tokens) {
  SamplingParams p;
  p.use_beam_search = true;
  p.n = width;
  p.max_tokens = max_tokens;
  p.eos_token_ids = {2};
  return p;
}

TEST(BeamSearch, StopsWithAsManyAnswersAsBeamsOnlyWhenAskedTo) {
  SamplingParams p = Params(2, 12);
  p.early_stopping = 1;
  const int soon = Search(kFork, 0, p).steps;
  p.early_stopping = 2;
  p.length_penalty = 2;
  EXPECT_GT(Search(kFork, 0, p).steps, soon) << "a longer answer may always become better";
}

TEST(BeamSearch, MoreAnswersAtOnceThanAreMissingAreAsManyAsBeamsToo) {
  Logits table = kFork;
  table[0][2] = 1.5f;  // one ends at once, and the two beams beside it at the next token
  table[3][2] = 9;
  SamplingParams p = Params(2, 12);
  p.early_stopping = 1;
  const Searched searched = Search(table, 0, p);
  EXPECT_EQ(searched.steps, 2);
  EXPECT_EQ(searched.answers.size(), 2u);
}

TEST(BeamSearch, ALengthPenaltyPrefersLongAnswers) {
  SamplingParams p = Params(3, 8);
  p.n = 1, p.best_of = 3;
  p.length_penalty = -4;
  EXPECT_THAT(TokensOf(Search(kFork, 0, p).answers[0].tokens), ElementsAre(1, 2));
  p.length_penalty = 4, p.early_stopping = 2;
  EXPECT_EQ(Search(kFork, 0, p).answers[0].tokens.size(), 8u);
}

TEST(BeamSearch, OfEqualBeamsTheLowerTokenComesFirst) {
  const Logits flat(8, std::vector<float>(8, 0.5f));
  SamplingParams p = Params(3, 2);
  p.ignore_eos = true;
  const auto answers = Search(flat, 0, p).answers;
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_THAT(TokensOf(answers[0].tokens), ElementsAre(0, 0));
  EXPECT_THAT(TokensOf(answers[1].tokens), ElementsAre(0, 1));
  EXPECT_THAT(TokensOf(answers[2].tokens), ElementsAre(0, 2));
}

TEST(BeamSearch, NoEndComesBeforeMinTokens) {
  SamplingParams p = Params(2, 6);
  p.min_tokens = 4;
  for (const auto& answer : Search(kFork, 0, p).answers) {
    EXPECT_GE(answer.tokens.size(), 4u);
    for (size_t i = 0; i < 4 && i + 1 < answer.tokens.size(); ++i) EXPECT_NE(answer.tokens[i].token, 2);
  }
}

TEST(BeamSearch, LogprobsAreOfTheTokensOnTheAnswersWay) {
  SamplingParams p = Params(2, 4);
  p.logprobs = 2;
  for (const auto& answer : Search(kFork, 0, p).answers) {
    float sum = 0;
    for (const kernels::SampleResult& t : answer.tokens) {
      EXPECT_EQ(t.chosen.token, t.token);
      EXPECT_EQ(t.top.size(), 2u);
      sum += t.chosen.logprob;
    }
    EXPECT_FLOAT_EQ(answer.score, sum / static_cast<float>(answer.tokens.size()));
  }
  p.logprobs = -1;
  for (const auto& answer : Search(kFork, 0, p).answers) {
    for (const kernels::SampleResult& t : answer.tokens) EXPECT_EQ(t.chosen.rank, 0) << "nobody asked for them";
  }
}

TEST(BeamSearch, RowsThatAllowFewerTokensThanBeamsGiveFewerAnswers) {
  Logits lonely(4, std::vector<float>(4, -std::numeric_limits<float>::infinity()));
  for (auto& row : lonely) row[3] = 0;
  SamplingParams p = Params(2, 3);
  const Searched searched = Search(lonely, 0, p);
  ASSERT_EQ(searched.answers.size(), 1u);
  EXPECT_THAT(TokensOf(searched.answers[0].tokens), ElementsAre(3, 3, 3));
}

TEST(BeamCandidates, AreEnoughBehindAllThatMayBeSkipped) {
  SamplingParams p = Params(4, 8);
  EXPECT_EQ(BeamCandidates(p, 1000), 8);
  p.eos_token_ids = {1, 2, 3, 4, 5, 6};
  EXPECT_EQ(BeamCandidates(p, 1000), 10);
  p.logprobs = 20;
  EXPECT_EQ(BeamCandidates(p, 1000), 20);
  EXPECT_EQ(BeamCandidates(p, 15), 15);
}

}  // namespace
}  // namespace baton::engine
