// KV in fp8 with a checkpoint's scales: ranks, stages, threads, chunks and hits of the prefix cache change no bit of an
// answer; layers of windows among them.
#include <gtest/gtest.h>

#include "tests/engine/model/kv_scaled.h"
#include "tests/engine/parallel/rank_threads.h"
#include "tests/engine/step/requests.h"

namespace baton::engine {
namespace {

using Shape = RankThreads::Shape;
using Answers = std::map<AnswerKey, std::string>;

struct ScaledCase {
  std::string model;
  Shape shape{.width = 4};
  int threads = 1;
  int32_t chunk = 2048;
  bool together = true;  ///< else one request at a time
  DType kv = DType::kF8E4M3;
};

struct Ran {
  Answers first, again;  ///< the same requests once more: what they begin with is in the cache
  int64_t cached_tokens = 0;
};

Ran RunOf(const ScaledCase& run) {
  RankThreads ranks({.source = {.path = run.model},
                     .ops = {.threads = run.threads, .dtype = DType::kF32, .kv_dtype = run.kv},
                     .shape = run.shape});
  SteppedEngineOptions options;
  options.layout = ranks.layout();
  options.num_blocks.assign(options.layout.groups.size(), 256);
  options.scheduler.max_model_len = 200;
  options.scheduler.max_num_batched_tokens = run.chunk;
  options.scheduler.max_step_ms = 0;
  SteppedEngine h(options, nullptr, ranks.model(), ranks.ops(), ranks.channel.get());
  const int32_t vocab = ranks.model().config().vocab_size;
  Ran out;
  for (Answers* answers : {&out.first, &out.again}) {
    const RequestKey before = answers == &out.first ? 0 : 100;
    for (int i = 0; i < 5; ++i) {
      const auto key = before + static_cast<RequestKey>(i + 1);
      EXPECT_TRUE(h.Add(MixedRequest(key, 50 + static_cast<uint64_t>(i), 5 + (i * 37) % 90, vocab)).ok());
      if (!run.together) h.RunAll();
    }
    h.RunAll();
    for (const auto& [key, answer] : h.answers)
      if (key.first > before) (*answers)[{key.first - before, key.second}] = answer.Text();
  }
  out.cached_tokens = h.scheduler().Load().cached_tokens;
  return out;
}

class KvScalesOfACheckpoint : public testing::TestWithParam<const char*> {};

TEST_P(KvScalesOfACheckpoint, GiveTheSameBitsHoweverTheWorkIsCut) {
  const KvScaledModel model(GetParam());
  const Ran alone = RunOf({.model = model.path(), .together = false});
  ASSERT_FALSE(alone.first.empty());
  EXPECT_GT(alone.cached_tokens, 0) << "else the cache was not asked";
  EXPECT_EQ(alone.again, alone.first);
  for (const ScaledCase& run :
       {ScaledCase{.model = model.path(), .shape = {.tensor = 2, .width = 4}},
        ScaledCase{.model = model.path(), .shape = {.tensor = 4, .width = 4}, .chunk = 48},
        ScaledCase{.model = model.path(), .shape = {.tensor = 2, .stages = 2, .width = 4}, .chunk = 17},
        ScaledCase{.model = model.path(), .threads = 3, .chunk = 16}, ScaledCase{.model = model.path()}}) {
    const Ran got = RunOf(run);
    const std::string what =
        StrCat(run.shape.tensor, " × ", run.shape.stages, ", ", run.threads, " threads, ", run.chunk);
    EXPECT_EQ(got.first, alone.first) << what;
    EXPECT_EQ(got.again, alone.first) << what << ", with hits";
  }
}

TEST_P(KvScalesOfACheckpoint, AreLookedAtWhereKvIsInFloat8Alone) {
  const KvScaledModel model(GetParam()), plain(GetParam(), WithoutKvScales);
  EXPECT_NE(RunOf({.model = model.path()}).first, RunOf({.model = plain.path()}).first);
  EXPECT_EQ(RunOf({.model = model.path(), .kv = DType::kF32}).first,
            RunOf({.model = plain.path(), .kv = DType::kF32}).first);
}

INSTANTIATE_TEST_SUITE_P(Families, KvScalesOfACheckpoint, testing::Values("llama3", "gemma3"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace baton::engine
