// The real SmolLM2-135M-Instruct, when `make demo` has fetched it: greedy text of transformers on the dequantized
// weights (make_smollm2_golden.py). Each step goes on from the reference's token; steps whose margin is
// in the noise are not compared.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/engine/model/paged_model.h"

namespace baton::engine {
namespace {

int32_t ArgMax(const std::vector<float>& row) {
  return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

TEST(SmolLm2, GreedyTextIsThatOfTransformersOnTheDequantizedWeights) {
  const char* home = std::getenv("HOME");
  const std::string path = StrCat(home != nullptr ? home : "", "/.cache/baton/models/SmolLM2-135M-Instruct.Q4_1.gguf");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there (make demo fetches it)";
  std::ifstream in("tests/engine/model/goldens/smollm2.json");
  const nlohmann::json golden = nlohmann::json::parse(in);
  auto model = PagedModel::Load({.path = path}, {.threads = 2, .dtype = DType::kF32});
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->model().config().num_layers, 30);
  size_t compared = 0, steps = 0;
  for (const nlohmann::json& one : golden["cases"]) {
    const std::vector<int32_t> prompt = one["prompt"], greedy = one["greedy"];
    const std::vector<double> margins = one["margins"], first_logits = one["first_logits"];
    const double std = one["std"];
    std::vector<float> logits = (*model)->Prefill(prompt, PagedModel::kMaxTokens).value().back();
    for (size_t i = 0; i < first_logits.size(); ++i) {
      ASSERT_NEAR(logits[97 * i], first_logits[i], 1e-3 * std) << one["text"] << " logit " << 97 * i;
    }
    int32_t context = static_cast<int32_t>(prompt.size());
    steps += greedy.size();
    for (size_t step = 0; step < greedy.size(); ++step) {
      if (margins[step] >= 2e-3 * std) {
        ++compared;
        ASSERT_EQ(ArgMax(logits), greedy[step]) << one["text"] << " step " << step << ", margin " << margins[step];
      }
      logits = (*model)->Run({greedy[step]}, context++, {0}).value()[0];
    }
  }
  RecordProperty("steps_compared", static_cast<int>(compared));
  EXPECT_GE(compared, steps * 9 / 10);
}

}  // namespace
}  // namespace baton::engine
