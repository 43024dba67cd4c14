// Logits and greedy text beside Hugging Face transformers in f32 on the same random weights (make_goldens.py).
// Error: |ours - theirs| ÷ the standard deviation of their logits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "common/json.h"
#include "engine/model/decoder.h"
#include "engine/model/model_memory.h"
#include "kernels/cuda/host/cuda_ops.h"
#include "tests/engine/model/paged_model.h"

namespace baton::engine {
namespace {

constexpr const char* kGoldens = "tests/engine/model/goldens/";

struct Golden {
  std::vector<int32_t> prompt, greedy, rows;
  LogitRows logits;  // of `rows`
  std::vector<double> margins;
  double std = 0;
  ModelSource source;
};

Golden ReadGolden(const std::string& family) {
  std::ifstream in(kGoldens + family + "/golden.json");
  const nlohmann::json json = nlohmann::json::parse(in);
  Golden g;
  g.prompt = json["prompt"].get<std::vector<int32_t>>();
  g.greedy = json["greedy"].get<std::vector<int32_t>>();
  g.rows = json["rows"].get<std::vector<int32_t>>();
  g.logits = json["logits"].get<LogitRows>();
  g.margins = json["margins"].get<std::vector<double>>();
  g.std = json["std"];
  g.source = {.path = kGoldens + family, .dummy_weights = true, .dummy_seed = json["seed"]};
  return g;
}

struct Error {
  double max = 0, rms = 0;
};
Error ErrorOf(const Golden& golden, const LogitRows& all) {
  Error error;
  double squares = 0, n = 0;
  for (size_t r = 0; r < golden.rows.size(); ++r) {
    for (size_t i = 0; i < golden.logits[r].size(); ++i) {
      const double e = std::fabs(all[golden.rows[r]][i] - golden.logits[r][i]) / golden.std;
      error.max = std::max(error.max, e);
      squares += e * e;
      n += 1;
    }
  }
  error.rms = std::sqrt(squares / n);
  return error;
}

int32_t ArgMax(const std::vector<float>& row) {
  return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

// Greedy text after the prompt, equal up to the first step whose reference margin is below `tolerance`. Returns the
// steps that were compared.
int CompareGreedy(PagedModel& model, const Golden& golden, double tolerance) {
  int32_t token = ArgMax(model.Prefill(golden.prompt, PagedModel::kMaxTokens).value().back());
  int32_t context = static_cast<int32_t>(golden.prompt.size());
  for (size_t step = 0; step < golden.greedy.size(); ++step) {
    if (golden.margins[step] < tolerance) return static_cast<int>(step);
    EXPECT_EQ(token, golden.greedy[step]) << "step " << step << ", margin " << golden.margins[step];
    if (token != golden.greedy[step]) return static_cast<int>(step);
    token = ArgMax(model.Run({token}, context++, {0}).value()[0]);
  }
  return static_cast<int>(golden.greedy.size());
}

class Family : public testing::TestWithParam<const char*> {};

TEST_P(Family, LogitsInF32AreThoseOfTransformers) {
  const Golden golden = ReadGolden(GetParam());
  auto model = PagedModel::Load(golden.source, {.threads = 2, .dtype = DType::kF32});
  ASSERT_TRUE(model.ok()) << model.status();
  const auto logits = (*model)->Prefill(golden.prompt, PagedModel::kMaxTokens);
  ASSERT_TRUE(logits.ok()) << logits.status();
  const Error error = ErrorOf(golden, *logits);
  RecordProperty("max_error", std::to_string(error.max));
  EXPECT_LE(error.max, 1e-3);
}

TEST_P(Family, GreedyTextInF32IsThatOfTransformers) {
  const Golden golden = ReadGolden(GetParam());
  auto model = PagedModel::Load(golden.source, {.dtype = DType::kF32});
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(CompareGreedy(**model, golden, 2e-3 * golden.std), static_cast<int>(golden.greedy.size()));
}

TEST_P(Family, LogitsWithBf16KvAreClose) {
  const Golden golden = ReadGolden(GetParam());
  auto model = PagedModel::Load(golden.source, {.dtype = DType::kF32, .kv_dtype = DType::kBF16});
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_LE(ErrorOf(golden, *(*model)->Prefill(golden.prompt, PagedModel::kMaxTokens)).rms, 2e-2);
}

TEST_P(Family, LogitsInBf16AreClose) {
  const Golden golden = ReadGolden(GetParam());
  auto model = PagedModel::Load(golden.source, {.dtype = DType::kBF16, .emulate_bf16 = true});
  if (absl::IsFailedPrecondition(model.status())) GTEST_SKIP() << model.status();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_LE(ErrorOf(golden, *(*model)->Prefill(golden.prompt, PagedModel::kMaxTokens)).rms, 2e-2);
  CompareGreedy(**model, golden, 0.2 * golden.std);
}

// The whole CUDA backend on the emulator: block tables, prefill and decode kernels, GEMM, sampler's input.
TEST_P(Family, LogitsOfTheEmulatedGpuAreClose) {
  const Golden golden = ReadGolden(GetParam());
  auto model = PagedModel::LoadOn(kernels::MakeCudaOps({}).value(), golden.source);
  ASSERT_TRUE(model.ok()) << model.status();
  const LogitRows whole = (*model)->Prefill(golden.prompt, PagedModel::kMaxTokens).value();
  const Error error = ErrorOf(golden, whole);
  RecordProperty("rms_error", std::to_string(error.rms));
  EXPECT_LE(error.rms, 3e-2);
  EXPECT_EQ((*model)->Prefill(golden.prompt, 13).value(), whole) << "chunks of 13";
  EXPECT_EQ((*model)->Prefill(golden.prompt, 1).value(), whole) << "a token at a time, as what is decoded";
  CompareGreedy(**model, golden, 0.3 * golden.std);  // of some families no step: their margins are less
}

// Promise A at the model's level: chunking, thread count and the blocks' length change no bit.
void ExpectBitsOfThePromptAlone(Golden golden, kernels::CpuOpsConfig config) {
  config.threads = 1;
  auto one = PagedModel::Load(golden.source, config);
  if (absl::IsFailedPrecondition(one.status())) GTEST_SKIP() << one.status();
  golden.source.block_size = 32;
  config.threads = 2;
  auto two = PagedModel::Load(golden.source, config);
  ASSERT_TRUE(one.ok() && two.ok()) << one.status() << two.status();
  const LogitRows whole = (*one)->Prefill(golden.prompt, PagedModel::kMaxTokens).value();
  for (int chunk : {1, 7, 16, 48}) {
    EXPECT_EQ((*one)->Prefill(golden.prompt, chunk).value(), whole) << "chunks of " << chunk;
    EXPECT_EQ((*two)->Prefill(golden.prompt, chunk).value(), whole) << "2 threads, chunks of " << chunk;
  }
}

TEST_P(Family, TakesTheBytesThatWerePlanned) {
  const Golden golden = ReadGolden(GetParam());
  std::vector<std::unique_ptr<kernels::Ops>> all;
  all.push_back(kernels::MakeCudaOps({}).value());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    if (auto ops = kernels::MakeCpuOps({.dtype = dtype}); ops.ok()) all.push_back(*std::move(ops));
  }
  for (std::unique_ptr<kernels::Ops>& ops : all) {
    const kernels::OpsTraits traits = ops->traits();
    SCOPED_TRACE(traits.isa);
    const auto planned = PlanRankMemory(golden.source, traits, PagedModel::kMaxTokens);
    ASSERT_TRUE(planned.ok()) << planned.status();
    const auto model = PagedModel::LoadOn(std::move(ops), golden.source);
    ASSERT_TRUE(model.ok()) << model.status();
    const auto& decoder = dynamic_cast<const Decoder&>((*model)->model());
    EXPECT_EQ(planned->memory, decoder.memory());
    EXPECT_GT(planned->memory.weights.mlp, 0);
    EXPECT_GT(planned->memory.workspace, 0);
  }
}

TEST_P(Family, LogitBitsDoNotDependOnChunksThreadsOrBlocks) {
  ExpectBitsOfThePromptAlone(ReadGolden(GetParam()), {.dtype = DType::kF32});
}

TEST_P(Family, LogitBitsInBf16DoNotDependOnChunksThreadsOrBlocks) {
  ExpectBitsOfThePromptAlone(ReadGolden(GetParam()), {.dtype = DType::kBF16, .emulate_bf16 = true});
}

INSTANTIATE_TEST_SUITE_P(All, Family,
                         testing::Values("llama2", "llama3", "qwen2", "qwen3", "mistral", "smollm3", "gemma2",
                                         "gemma3"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Decoder, CancelIsSeenBeforeTheFirstLayer) {
  const Golden golden = ReadGolden("llama2");
  auto model = PagedModel::Load(golden.source);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_TRUE(absl::IsCancelled((*model)->Run(golden.prompt, 0, {0}, true).status()));
}

TEST(Decoder, TokenOutsideTheVocabularyIsAnError) {
  const Golden golden = ReadGolden("llama2");
  auto model = PagedModel::Load(golden.source);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT((*model)->Run({1, 320}, 0, {0}).status().ToString(),
              testing::HasSubstr("token id 320 is not in the vocabulary of 320"));
  EXPECT_TRUE(absl::IsInvalidArgument((*model)->Run({-1}, 0, {0}).status()));
}

TEST(Decoder, ARowMayBeWantedSeveralTimesAndTheLogitsGrow) {
  const Golden golden = ReadGolden("llama2");
  auto model = PagedModel::Load(golden.source);
  ASSERT_TRUE(model.ok()) << model.status();
  const std::vector<int32_t> many(100, 3);
  const LogitRows rows = (*model)->Run(golden.prompt, 0, many).value();
  const LogitRows one = (*model)->Run(golden.prompt, 0, {3}).value();
  for (const std::vector<float>& row : rows) EXPECT_EQ(row, one[0]);
  EXPECT_EQ(one[0], (*model)->Prefill(golden.prompt, PagedModel::kMaxTokens).value()[3]);
  EXPECT_TRUE((*model)->Run(golden.prompt, 0, {}).value().empty());
}

TEST(Decoder, AStepWithoutLogitsWritesItsKv) {
  for (const char* family : {"llama2", "gemma3"}) {
    const Golden golden = ReadGolden(family);
    auto model = PagedModel::Load(golden.source);
    ASSERT_TRUE(model.ok()) << model.status();
    const std::vector<float> wanted = (*model)->Prefill(golden.prompt, PagedModel::kMaxTokens).value().back();
    auto other = PagedModel::Load(golden.source);
    const std::vector<int32_t> most(golden.prompt.begin(), golden.prompt.end() - 1);
    EXPECT_TRUE((*other)->Run(most, 0, {}).value().empty());
    EXPECT_EQ((*other)->Run({golden.prompt.back()}, static_cast<int32_t>(most.size()), {0}).value()[0], wanted)
        << family;
  }
}

TEST(Decoder, SlidingAndFullLayersAreGroupsOfTheirOwn) {
  auto model = PagedModel::Load(ReadGolden("gemma3").source);
  ASSERT_TRUE(model.ok()) << model.status();
  const KvLayout& layout = (*model)->model().kv_layout();
  ASSERT_EQ(layout.groups.size(), 2u);
  EXPECT_EQ(layout.groups[0].kind, KvGroupKind::kPaged);
  EXPECT_THAT(layout.groups[0].layers, testing::ElementsAre(1, 3));
  EXPECT_EQ(layout.groups[1].window_tokens, 16);
  EXPECT_THAT(layout.groups[1].layers, testing::ElementsAre(0, 2));
}

}  // namespace
}  // namespace baton::engine
