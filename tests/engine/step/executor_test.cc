// Executor: what a request asks for is what the sampler is told.
#include "engine/step/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/stepped_engine.h"

namespace baton::engine {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::IsEmpty;
using testing::Pair;

// A row and what its views pointed to.
struct SeenRow {
  kernels::SampleRow row;
  std::vector<int32_t> prompt, output, allowed, banned;
  std::vector<std::pair<int32_t, float>> bias;
};

template <class T>
std::vector<T> Copy(std::span<const T> view) {
  return {view.begin(), view.end()};
}

class ExecutorRows : public testing::Test {
 protected:
  static SteppedEngineOptions Options() {
    SteppedEngineOptions options;
    options.scheduler.max_model_len = 300;
    return options;
  }
  std::vector<SeenRow> seen_;
  FakeModel model_{FakeLayout()};
  std::unique_ptr<kernels::Ops> ops_ = MakeFakeOps([this](const kernels::SampleRow& r) {
    seen_.push_back({r, Copy(r.prompt_tokens), Copy(r.output_tokens), Copy(r.allowed_tokens), Copy(r.banned_tokens),
                     Copy(r.logit_bias)});
  });
  SteppedEngine h_{Options(), nullptr, model_, *ops_};
};

// Every field has a value of its own: one that is dropped, or put in another's place, shows.
Request Everything(int32_t max_tokens) {
  Request r = MakeRequest(1, RandomTokens(5, 20), max_tokens);
  SamplingParams& p = r.sampling;
  p.temperature = 0.5f;
  p.top_k = 40;
  p.top_p = 0.875f;
  p.min_p = 0.125f;
  p.repetition_penalty = 1.25f;
  p.presence_penalty = 0.75f;
  p.frequency_penalty = 0.25f;
  p.logit_bias = {{7, 2.5f}, {9, -1.5f}};
  p.allowed_token_ids = {7, 9, 11};
  p.eos_token_ids = {3, 1000};  // one beyond the vocabulary, as some models have it
  p.stop_token_ids = {5};
  p.min_tokens = 2;
  p.seed = 1234567890123;
  p.logprobs = 3;
  r.sequence_index = 6;
  return r;
}

TEST_F(ExecutorRows, EveryFieldOfARequestReachesTheSampler) {
  const Request request = Everything(4);
  ASSERT_TRUE(h_.Add(request).ok());
  h_.RunAll();
  ASSERT_EQ(seen_.size(), 4u);
  for (const SeenRow& s : seen_) {
    EXPECT_EQ(s.row.temperature, 0.5f);
    EXPECT_EQ(s.row.top_k, 40);
    EXPECT_EQ(s.row.top_p, 0.875f);
    EXPECT_EQ(s.row.min_p, 0.125f);
    EXPECT_EQ(s.row.repetition_penalty, 1.25f);
    EXPECT_EQ(s.row.presence_penalty, 0.75f);
    EXPECT_EQ(s.row.frequency_penalty, 0.25f);
    EXPECT_THAT(s.bias, ElementsAre(Pair(7, 2.5f), Pair(9, -1.5f)));
    EXPECT_THAT(s.allowed, ElementsAre(7, 9, 11));
    EXPECT_EQ(s.row.seed, 1234567890123u);
    EXPECT_EQ(s.row.sequence_index, 6u);
    EXPECT_EQ(s.row.num_logprobs, 3);
    EXPECT_THAT(s.prompt, ElementsAreArray(request.tokens));
  }
}

TEST_F(ExecutorRows, PositionAndOutputGrowAndStopsAreBannedUntilMinTokens) {
  ASSERT_TRUE(h_.Add(Everything(4)).ok());
  h_.RunAll();
  ASSERT_EQ(seen_.size(), 4u);
  const Answer& answer = h_.answers[{1, 6}];
  ASSERT_EQ(answer.tokens.size(), 4u);
  for (size_t i = 0; i < seen_.size(); ++i) {
    EXPECT_EQ(seen_[i].row.position, 20 + i) << "of the token drawn";
    ASSERT_EQ(seen_[i].output.size(), i);
    for (size_t k = 0; k < i; ++k) EXPECT_EQ(seen_[i].output[k], answer.tokens[k].token);
    if (i < 2) {
      EXPECT_THAT(seen_[i].banned, ElementsAre(3, 5)) << "what the vocabulary has of them";
    } else {
      EXPECT_THAT(seen_[i].banned, IsEmpty());
    }
  }
}

TEST_F(ExecutorRows, APreemptedOrAttachedSequenceKeepsWhatWasItsPrompt) {
  Request request = Everything(6);
  request.prompt_len = 17;  // the last three of its tokens are output already
  request.sampling.min_tokens = 0;
  request.sampling.prompt_logprobs = 0;
  ASSERT_TRUE(h_.Add(request).ok());
  ASSERT_TRUE(h_.Step());
  ASSERT_EQ(seen_.size(), 1u);
  EXPECT_EQ((h_.answers[{1, 6}].prompt_logprobs.size()), 16u) << "of the prompt alone, but its first";
  EXPECT_EQ(seen_[0].prompt.size(), 17u);
  EXPECT_THAT(seen_[0].output, ElementsAre(request.tokens[17], request.tokens[18], request.tokens[19]));
  EXPECT_EQ(seen_[0].row.position, 20u);
  h_.RunAll();
}

}  // namespace
}  // namespace baton::engine
