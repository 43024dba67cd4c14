// Beam search with small models of three families, beside transformers' generate(num_beams) on the same weights
// (tests/engine/sampling/make_beam_goldens.py).
#include <gtest/gtest.h>

#include "kernels/cpu/cpu_ops.h"
#include "sim/stepped_engine.h"
#include "tests/engine/sampling/beam_goldens.h"

namespace baton::engine {
namespace {

class BeamFamily : public testing::TestWithParam<const char*> {};

TEST_P(BeamFamily, AnswersAreThoseOfTransformers) {
  const std::string name = GetParam();
  auto ops = kernels::MakeCpuOps({.threads = 2, .dtype = DType::kF32});
  ASSERT_TRUE(ops.ok()) << ops.status();
  const ModelSource source{.path = "tests/engine/model/goldens/" + name, .dummy_weights = true, .dummy_seed = 7};
  auto model = LoadModel(source, **ops, 256, nullptr);
  ASSERT_TRUE(model.ok()) << model.status();
  SteppedEngineOptions options;
  options.layout = (*model)->kv_layout();
  options.num_blocks.assign(options.layout.groups.size(), 200);
  options.scheduler.max_model_len = 100;
  options.scheduler.max_num_batched_tokens = 256;
  options.scheduler.max_step_ms = 0;
  SteppedEngine h(options, nullptr, **model, **ops);
  const nlohmann::json cases = BeamGoldens()["families"][name];
  RequestKey key = 0;
  for (const nlohmann::json& one : cases) {
    Request r = MakeRequest(++key, one["prompt"].get<std::vector<int32_t>>(), 1);
    r.sampling = BeamParams(one);
    const absl::Status added = h.Add(std::move(r));
    ASSERT_TRUE(added.ok()) << added;
  }
  h.RunAll();
  key = 0;
  for (const nlohmann::json& one : cases) {
    ++key;
    const auto expected = one["answers"].get<std::vector<std::vector<int32_t>>>();
    for (uint32_t i = 0; i < expected.size(); ++i)
      EXPECT_EQ(TokensOf(h.answers[AnswerKey(key, i)].tokens), expected[i]) << "answer " << i << " of " << one;
  }
  EXPECT_EQ(key, 10u);
}

INSTANTIATE_TEST_SUITE_P(All, BeamFamily, testing::Values("llama3", "qwen3", "gemma3"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace baton::engine
