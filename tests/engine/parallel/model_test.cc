// Tensor and pipeline parallelism change no bit of an answer: tokens, log-probabilities, prompt scores.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tests/engine/model/paged_model.h"
#include "tests/engine/parallel/rank_threads.h"
#include "tests/engine/step/requests.h"

namespace baton::engine {
namespace {

using ::testing::HasSubstr;
using Shape = RankThreads::Shape;
using Answers = std::map<AnswerKey, std::string>;

constexpr const char* kEightHeads = "tests/data/tiny-llama";  // 8 heads, 4 KV heads, 3 layers
constexpr int kRequests = 10;

struct Case {
  std::string model = kEightHeads;
  Shape shape;
  int32_t chunk = 2048;
  int requests = kRequests;
  kernels::CpuOpsConfig ops{.dtype = DType::kF32};
};

Answers AnswersOf(const Case& run) {
  RankThreads ranks(
      {.source = {.path = run.model, .dummy_weights = true, .dummy_seed = 7}, .ops = run.ops, .shape = run.shape});
  SteppedEngineOptions options;
  options.layout = ranks.layout();
  options.num_blocks.assign(options.layout.groups.size(), 256);
  options.scheduler.max_model_len = 300;
  options.scheduler.max_num_batched_tokens = run.chunk;
  options.scheduler.max_step_ms = 0;
  SteppedEngine h(options, nullptr, ranks.model(), ranks.ops(), ranks.channel.get());
  const int32_t vocab = ranks.model().config().vocab_size;
  for (int i = 0; i < run.requests; ++i) {
    EXPECT_TRUE(
        h.Add(MixedRequest(static_cast<RequestKey>(i + 1), 50 + static_cast<uint64_t>(i), 5 + (i * 37) % 90, vocab))
            .ok());
  }
  h.RunAll();
  Answers out;
  for (const auto& [key, answer] : h.answers) out[key] = answer.Text();
  return out;
}

const Answers& WidthFourAlone() {
  static const Answers answers = AnswersOf(Case{.shape = {.width = 4}});
  return answers;
}

TEST(TensorParallel, OneTwoAndFourRanksHaveTheSameBitsAtOneWidth) {
  EXPECT_FALSE(WidthFourAlone().empty());
  EXPECT_EQ(AnswersOf({.shape = {.tensor = 2, .width = 4}}), WidthFourAlone());
  EXPECT_EQ(AnswersOf({.shape = {.tensor = 4, .width = 4}}), WidthFourAlone());
}

TEST(TensorParallel, NeitherDoChunksChangeThem) {
  for (const int32_t chunk : {16, 17, 64}) {
    EXPECT_EQ(AnswersOf({.shape = {.tensor = 2, .width = 4}, .chunk = chunk}), WidthFourAlone()) << chunk;
  }
}

TEST(TensorParallel, AnotherWidthIsAnotherSum) {
  EXPECT_NE(AnswersOf({.shape = {.width = 1}}), WidthFourAlone());  // else the tests above compare nothing
}

TEST(TensorParallel, WithoutWidthTwoRanksStillAnswer) {
  for (const auto& [key, text] : AnswersOf({.shape = {.tensor = 2}})) EXPECT_THAT(text, HasSubstr(" OK")) << key.first;
}

TEST(PipelineParallel, StagesChangeNoBit) {
  const Answers alone = AnswersOf({});
  EXPECT_EQ(AnswersOf({.shape = {.stages = 2}}), alone);
  EXPECT_EQ(AnswersOf({.shape = {.stages = 3}, .chunk = 16}), alone);
}

TEST(PipelineParallel, WithTensorParallelismToo) {
  const Case four_ranks{.shape = {.tensor = 2, .stages = 2, .width = 4}, .chunk = 48};
  EXPECT_EQ(AnswersOf(four_ranks), WidthFourAlone());
}

TEST(TensorParallel, RowsDoNotDependOnRanksInBf16) {
  const kernels::CpuOpsConfig bf16{.dtype = DType::kBF16, .emulate_bf16 = true};
  const auto probe = PagedModel::Load({.path = kEightHeads, .dummy_weights = true}, bf16);
  if (absl::IsFailedPrecondition(probe.status())) GTEST_SKIP() << probe.status();
  const Answers alone = AnswersOf({.shape = {.width = 4}, .requests = 4, .ops = bf16});
  EXPECT_EQ(AnswersOf({.shape = {.tensor = 2, .width = 4}, .requests = 4, .ops = bf16}), alone);
  EXPECT_EQ(AnswersOf({.shape = {.tensor = 4, .width = 4}, .requests = 4, .ops = bf16}), alone);
}

// llama2 has biases on both attention layers, gemma3 windows and norms on both sides, qwen3 two KV heads for four
// ranks.
class Family : public testing::TestWithParam<const char*> {};

TEST_P(Family, RanksChangeNoBit) {
  const std::string path = std::string("tests/engine/model/goldens/") + GetParam();
  const Answers alone = AnswersOf({.model = path, .shape = {.width = 4}, .requests = 4});
  EXPECT_EQ(AnswersOf({.model = path, .shape = {.tensor = 2, .width = 4}, .requests = 4}), alone);
  EXPECT_EQ(AnswersOf({.model = path, .shape = {.tensor = 4, .width = 4}, .requests = 4}), alone);
  EXPECT_EQ(AnswersOf({.model = path, .shape = {.tensor = 2, .stages = 2, .width = 4}, .requests = 4}), alone);
}

INSTANTIATE_TEST_SUITE_P(All, Family,
                         testing::Values("llama2", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "smollm3"),
                         [](const auto& info) { return std::string(info.param); });

TEST(RankWeights, EachRankHoldsItsShare) {
  const auto load = [](Shape shape) {
    return std::make_unique<RankThreads>(RankThreads::Options{
        .source = {.path = kEightHeads, .dummy_weights = true, .dummy_seed = 7}, .shape = shape, .blocks = 4});
  };
  const auto whole = load({.width = 4}), four = load({.tensor = 4, .width = 4});
  for (int rank = 1; rank < 4; ++rank) {
    EXPECT_LT(four->weight_bytes(rank), whole->weight_bytes(0) * 3 / 10) << rank;  // a quarter, norms and padding
  }
}

struct SeenLayers final : LayerObserver {
  void OnLayerKv(const StepPlan&, int layer) override { layers.push_back(layer); }
  std::vector<int> layers;
};

TEST(Ranks, EachLayerIsReportedOnceAndInOrder) {
  for (const Shape shape : {Shape{}, Shape{.tensor = 2}, Shape{.stages = 2}, Shape{.tensor = 2, .stages = 3}}) {
    RankThreads ranks({.source = {.path = kEightHeads, .dummy_weights = true}, .shape = shape});
    const std::vector<int32_t> blocks(ranks.layout().groups.size(), 256);
    const auto memory = KvMemory::Create(ranks.layout(), blocks, ranks.ops()).value();
    SeenLayers seen;
    Executor executor(ranks.model(), *memory, ranks.ops(), &seen, ranks.channel.get());
    StepPlan plan{.step = 1, .add = {{.id = 1, .tokens = RandomTokens(1, 300, 500), .prompt_len = 300}}};
    for (const bool sample : {false, true}) {  // a chunk without logits, then the rest of the prompt
      const int32_t context = sample ? 150 : 0;
      std::vector<int32_t> table(300 / 16 + 1);
      std::iota(table.begin(), table.end(), 3);
      plan.sequences = {{.id = 1, .num_tokens = 150, .context = context, .block_tables = {table}, .sample = sample}};
      plan.total_tokens = 150;
      const auto result = executor.Execute(plan);
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_THAT(seen.layers, testing::ElementsAre(0, 1, 2)) << shape.tensor << " " << shape.stages << " " << sample;
      seen.layers.clear();
      plan.add.clear();
    }
  }
}

TEST(Ranks, AStepOfManyRanksIsNotCancelledHalfWay) {
  RankThreads ranks({.source = {.path = kEightHeads, .dummy_weights = true}, .shape = {.tensor = 2}});
  SteppedEngineOptions options;
  options.layout = ranks.layout();
  SteppedEngine h(options, nullptr, ranks.model(), ranks.ops(), ranks.channel.get());
  Request request = MakeRequest(1, RandomTokens(3, 40, 500), 3);
  request.sampling.ignore_eos = true;
  ASSERT_TRUE(h.Add(request).ok());
  h.RunAll();
  EXPECT_EQ((h.answers[{1, 0}].tokens.size()), 3u);
}

TEST(Ranks, BrokenLinksAreAnErrorOfTheStep) {
  RankThreads ranks({.source = {.path = kEightHeads, .dummy_weights = true}, .shape = {.tensor = 2}});
  SteppedEngineOptions options;
  options.layout = ranks.layout();
  SteppedEngine h(options, nullptr, ranks.model(), ranks.ops(), ranks.channel.get());
  ASSERT_TRUE(h.Add(MakeRequest(1, RandomTokens(3, 40, 500), 8)).ok());
  ASSERT_TRUE(h.Step());
  ranks.world().Abort(absl::UnavailableError("rank 1 is gone"));
  h.RunAll();
  EXPECT_TRUE(absl::IsUnavailable(h.answers[{1, 0}].error)) << h.answers[{1, 0}].error;
}

TEST(StepBatch, WordsAreTheBatch) {
  const StepBatch batch{.copies = {{0, 4, 5}, {1, 2, 3}},
                        .row_start = {0, 3, 4},
                        .context = {0, 17},
                        .logit_rows = {2, 3, 3},
                        .block_tables = {{1, 2, 3, 4}, {5, 6}},
                        .open = true,
                        .followed = true};
  std::vector<int32_t> words = batch.Encode();
  EXPECT_EQ(words,
            (std::vector<int32_t>{3, 6, 0, 4, 5, 1, 2, 3, 3, 0, 3, 4, 2, 0, 17, 3, 2, 3, 3, 4, 1, 2, 3, 4, 2, 5, 6}))
      << "other words: StepBatch::kForm is another, too";
  EXPECT_EQ(StepBatch::Decode(words).value(), batch);
  for (size_t n = 0; n + 1 < words.size(); ++n) {  // cut anywhere, it is refused or a batch with fewer tables
    const auto cut = StepBatch::Decode(std::span(words).first(n));
    EXPECT_TRUE(!cut.ok() || cut->block_tables.size() < 2) << n;
  }
  words[0] = 0;
  EXPECT_FALSE(StepBatch::Decode(words)->open || StepBatch::Decode(words)->followed);
  words[0] = 4;
  EXPECT_FALSE(StepBatch::Decode(words).ok());
}

}  // namespace
}  // namespace baton::engine
