// Memory for KV by default, and what start-up says when there is too little.
#include "worker/process/start_up.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "engine/model/config/config_reader.h"
#include "engine/model/kv_groups.h"
#include "sim/fake_model.h"
#include "tests/common/gguf_builder.h"
#include "worker/process/kv_budget.h"
#include "worker/process/numerics_id.h"
#include "worker/process/text_memory.h"

namespace baton::worker {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr char kModel[] = "tests/data/tiny-llama";

WorkerConfig StartConfig() {
  WorkerConfig c;
  c.model = kModel;
  c.load_format = "dummy";
  c.dtype = "float32";
  c.threads = 1;
  c.max_num_seqs = 4;
  c.max_num_batched_tokens = 64;
  return c;
}

// As the second worker finds it whose GPU another one has.
TEST(KvBudget, OfAGpuThatHasTooLittleLeftIsRefusedWithWhatIsFree) {
  const engine::ModelConfig model = engine::ReadHfConfig(kModel)->config;
  const KvLayout layout = engine::MakeKvLayout(model, DType::kBF16, 16).value();
  const kernels::DeviceMemory left[] = {{.free_bytes = 100'000, .total_bytes = 8 * kGiB}};
  WorkerConfig c = StartConfig();
  const std::string said(PlanKvOnDevices(c, left, model, layout, 2048).status().message());
  EXPECT_THAT(said, AllOf(HasSubstr("bytes of KV cache, 90000 given"),
                          HasSubstr("--gpu-memory-utilization 0.9 of the 100000 bytes of the GPU's 8589934592 that")));
  c.kv_cache_memory = 100'000;
  const std::string of_flag(PlanKvOnDevices(c, left, model, layout, 2048).status().message());
  EXPECT_THAT(of_flag, AllOf(HasSubstr("100000 given"), Not(HasSubstr("utilization"))));
}

TEST(KvBudget, AHeadThatSeveralRanksKeepCountsForEach) {
  engine::ModelConfig model = engine::ReadHfConfig(kModel)->config;
  model.num_heads = 8;
  model.num_kv_heads = 2;
  const KvLayout layout = engine::MakeKvLayout(model, DType::kBF16, 16).value();
  const auto heads = [&](int tensor_size) {
    return KeptLayout(model, engine::RankPlace::Of(0, tensor_size, 1, 1), layout).groups[0].planes[1].heads;
  };
  EXPECT_EQ(heads(1), 2);
  EXPECT_EQ(heads(2), 2);
  EXPECT_EQ(heads(8), 8);
}

TEST(KvBudget, TheFlagCounts) {
  WorkerConfig c = StartConfig();
  c.kv_cache_memory = 12345;
  EXPECT_EQ(KvBytes(c, engine::FakeLayout(), 2048, 100 * kGiB), 12345);
}

TEST(KvBudget, ByDefaultWhatAllSequencesNeedAtFullLength) {
  const WorkerConfig c = StartConfig();
  // 4 sequences of 100 tokens and a block of 16; K and V of 2 floats per token and a digest per block.
  EXPECT_EQ(KvBytes(c, engine::FakeLayout(), 100, 100 * kGiB), 4 * (100 + 16) / 16 * 2 * (16 * 8 + 8));
}

TEST(KvBudget, ByDefaultLayersWithAWindowCountForWindowsAndNotForWholeSequences) {
  const WorkerConfig c = StartConfig();
  const KvLayout layout = engine::FakeLayout(16, 32);
  ASSERT_EQ(layout.groups.size(), 2u);
  const int64_t bytes = KvBytes(c, layout, 4096, 100 * kGiB);
  const engine::BlockBudget blocks = PlanKv(c, layout, bytes, 4096).value();
  EXPECT_EQ(blocks.tokens, 4 * (4096 + 16)) << "four sequences and a block for each, as without windows";
  EXPECT_EQ(blocks.bytes, bytes) << "nothing is left over";
  EXPECT_LT(blocks.num_blocks[1] * 16, 4 * (32 + 3 * 16) + 64 + 2 * 16);
}

TEST(KvBudget, AtMostTwoFifthsOfTheFreeMemoryOverTheWorkersHere) {
  WorkerConfig c = StartConfig();
  c.max_num_seqs = 65536;
  EXPECT_EQ(KvBytes(c, engine::FakeLayout(), 1 << 20, 10 * kGiB), 4 * kGiB);
  c.local_workers = 2;
  EXPECT_EQ(KvBytes(c, engine::FakeLayout(), 1 << 20, 10 * kGiB), 2 * kGiB);
}

TEST(KvBudget, AnUnknownAmountOfFreeMemoryIsNoCap) {
  EXPECT_EQ(KvBytes(StartConfig(), engine::FakeLayout(), 100, std::nullopt), 4 * (100 + 16) / 16 * 2 * (16 * 8 + 8));
}

TEST(TextBytes, AreOfATokenizerThatIsThereInAFolderOrInAGgufFile) {
  const std::string path = testing::TempDir() + "/text_bytes.gguf";
  const auto of = [&path](const GgufBuilder& builder) {
    const std::vector<uint8_t> bytes = builder.Build();
    std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
    WorkerConfig c;
    c.model = path;
    return TextBytes(c, 1000);
  };
  GgufBuilder model;
  model.AddString("general.architecture", "llama");
  EXPECT_EQ(of(model), 0) << "it has no tokens";
  model.AddString("tokenizer.ggml.model", "gpt2").AddStrings("tokenizer.ggml.tokens", {"a", "b"});
  EXPECT_EQ(of(model), 1000 * kTextBytesPerId);
  WorkerConfig folder = StartConfig();
  EXPECT_EQ(TextBytes(folder, 10), 10 * kTextBytesPerId);
  folder.tokenizer = testing::TempDir();
  EXPECT_EQ(TextBytes(folder, 10), 0);
  std::filesystem::remove(path);
}

TEST(StartUp, LoadsATinyModelPhaseByPhase) {
  StartUpProgress progress;
  EXPECT_EQ(progress.Get().phase, "resolve");
  const absl::StatusOr<LoadedModel> loaded = StartUp(StartConfig(), progress);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->name, "tiny-llama");
  EXPECT_EQ(progress.Get().phase, "warm-up");
  EXPECT_EQ(loaded->numerics_id.size(), 32u);
  ASSERT_FALSE(loaded->blocks.num_blocks.empty());
  EXPECT_GE(loaded->blocks.tokens, loaded->max_model_len);
  ASSERT_NE(loaded->grammars, nullptr);
  EXPECT_EQ(loaded->grammars->vocab_size(), loaded->model->config().vocab_size);
  EXPECT_TRUE(loaded->grammars->Compile(GrammarKind::kJsonSchema, "{}").ok());
}

TEST(StartUp, WithoutATokenizerThereAreNoGrammars) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "no-tokenizer";
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(std::string(kModel) + "/config.json", folder / "config.json",
                             std::filesystem::copy_options::overwrite_existing);
  WorkerConfig c = StartConfig();
  c.model = folder;
  StartUpProgress progress;
  const absl::StatusOr<LoadedModel> loaded = StartUp(c, progress);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->grammars, nullptr);
}

TEST(StartUp, TooLittleKvMemoryIsRefusedWithBothNumbersAndTheFlags) {
  WorkerConfig c = StartConfig();
  c.kv_cache_memory = 1000;
  c.max_model_len = 128;
  StartUpProgress progress;
  const absl::Status s = StartUp(c, progress).status();
  EXPECT_TRUE(absl::IsResourceExhausted(s)) << s;
  EXPECT_THAT(std::string(s.message()), AllOf(HasSubstr("one sequence of 128 tokens needs"), HasSubstr("1000"),
                                              HasSubstr("--kv-cache-memory"), HasSubstr("--max-model-len")));
}

TEST(StartUp, AContextLongerThanTheModelsIsRefusedWithBothNumbers) {
  WorkerConfig c = StartConfig();
  c.max_model_len = 1'000'000;
  StartUpProgress progress;
  const absl::Status s = StartUp(c, progress).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(s)) << s;
  EXPECT_THAT(std::string(s.message()), AllOf(HasSubstr("--max-model-len 1000000"), HasSubstr("context of")));
  EXPECT_EQ(progress.Get().phase, "read") << "before a large model's weights are";
}

TEST(StartUp, AContextOfOneTokenIsRefused) {
  WorkerConfig c = StartConfig();
  c.max_model_len = 1;
  StartUpProgress progress;
  const absl::Status s = StartUp(c, progress).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(s)) << s;
  EXPECT_THAT(std::string(s.message()), AllOf(HasSubstr("--max-model-len 1,"), HasSubstr("2048")));
}

TEST(StartUp, AModelThatIsNotThereIsNamed) {
  WorkerConfig c = StartConfig();
  c.model = "tests/data/no-such-model";
  StartUpProgress progress;
  const absl::Status s = StartUp(c, progress).status();
  EXPECT_TRUE(absl::IsNotFound(s)) << s;
  EXPECT_THAT(std::string(s.message()), HasSubstr("no-such-model"));
}

TEST(WorkerConfig, EachBadFlagIsNamedWithItsValue) {
  const auto why = [](auto&& change) {
    WorkerConfig c = StartConfig();
    EXPECT_TRUE(c.Validate().ok());
    change(c);
    const absl::Status s = c.Validate();
    EXPECT_TRUE(absl::IsInvalidArgument(s)) << s;
    return std::string(s.message());
  };
  EXPECT_THAT(why([](auto& c) { c.model = ""; }), HasSubstr("--model"));
  EXPECT_THAT(why([](auto& c) { c.block_size = 24; }), HasSubstr("--block-size 24"));
  EXPECT_THAT(why([](auto& c) { c.max_num_seqs = 0; }), HasSubstr("--max-num-seqs 0"));
  EXPECT_THAT(why([](auto& c) { c.dtype = "int3"; }), HasSubstr("--dtype int3"));
  EXPECT_THAT(why([](auto& c) { c.max_step_ms = -1; }), HasSubstr("--max-step-ms -1"));
  EXPECT_THAT(why([](auto& c) { c.max_stall_ms = -1; }), HasSubstr("--max-stall-ms -1"));
  EXPECT_THAT(why([](auto& c) { c.max_num_batched_tokens = 0; }), HasSubstr("--max-num-batched-tokens 0"));
  EXPECT_THAT(why([](auto& c) { c.port = 70000; }), HasSubstr("--port 70000"));
}

WorkerConfig RanksConfig(int tensor, int stages, int width) {
  WorkerConfig c = StartConfig();
  c.tensor_parallel_size = tensor;
  c.pipeline_parallel_size = stages;
  c.reduction_width = width;
  c.max_model_len = 256;
  return c;
}

TEST(StartUpOfRanks, EachHasItsPartAndAllHaveTheSameBlocks) {
  const WorkerConfig c = RanksConfig(2, 2, 2);
  const auto ranks = StartRankThreads(c).value();
  StartUpProgress progress;
  const absl::StatusOr<LoadedModel> loaded = StartUp(c, progress, ranks.get());
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const std::vector<const engine::KvMemory*> all = loaded->AllMemory();
  ASSERT_EQ(all.size(), 4u);
  for (const engine::KvMemory* memory : all) {
    EXPECT_EQ(memory->num_blocks(), loaded->blocks.num_blocks);
    EXPECT_EQ(memory->layout().groups[0].planes[0].heads, 2);
  }
  EXPECT_EQ(all[0]->layout().groups[0].layers.size() + all[2]->layout().groups[0].layers.size(), 3u);
  EXPECT_EQ(all[3]->first_head(), 2);
  EXPECT_TRUE(ranks->Health().ok()) << ranks->Health();
  EXPECT_EQ(loaded->channel->running()->load(), 0u) << "a step of the warm-up counts as one that does not end";
}

TEST(StartUpOfRanks, AStepThatOneRankCannotDoIsGivenUpByAll) {
  WorkerConfig c = RanksConfig(2, 1, 1);
  c.kv_cache_memory = 1000;
  const auto ranks = StartRankThreads(c).value();
  StartUpProgress progress;
  const absl::Status short_of_memory = StartUp(c, progress, ranks.get()).status();
  EXPECT_TRUE(absl::IsResourceExhausted(short_of_memory)) << short_of_memory;
  const WorkerConfig sixteen = RanksConfig(16, 1, 1);
  const auto too_many = StartRankThreads(sixteen).value();
  const absl::Status heads = StartUp(sixteen, progress, too_many.get()).status();
  EXPECT_THAT(heads.ToString(), HasSubstr("--tensor-parallel-size 16 does not divide 8 attention heads"));
}

TEST(NumericsId, HoldsTheTensorParallelSizeOnlyWhereTheWidthIsSmaller) {
  const kernels::OpsTraits traits;
  const auto id = [&](int tensor, int stages, int width) {
    return NumericsIdOf("digest", traits, engine::RankPlace::Of(0, tensor, stages, width)).id;
  };
  EXPECT_EQ(id(1, 1, 4), id(4, 1, 4));
  EXPECT_EQ(id(2, 1, 4), id(1, 3, 4));
  EXPECT_NE(id(1, 1, 4), id(1, 1, 2));
  EXPECT_NE(id(1, 1, 1), id(2, 1, 1));
  EXPECT_NE(id(8, 1, 4), id(4, 1, 4));
}

}  // namespace
}  // namespace baton::worker
