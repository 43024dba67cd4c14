// The real SmolLM2-135M-Instruct, when `make demo` has fetched it: greedy text of a double precision
// reference on the dequantized weights (make_smollm2_golden.py). Each step goes on from the reference's token; steps
// whose margin is in the noise are not compared.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "common/json.h"
#include "tests/engine/model/paged_model.h"

namespace baton::engine {
namespace {

int32_t ArgMax(const std::vector<float>& row) {
  return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

struct Compute {
  DType dtype;
  double rms;  ///< with what rounding the weights costs, of the errors of all logits compared, in standard deviations
               ///< of their prompt's logits
  double margin;    ///< below it, in the same, the reference's choice is in the noise
  double compared;  ///< share of the steps that must be above it
};
void PrintTo(const Compute& c, std::ostream* out) { *out << DTypeName(c.dtype); }

class SmolLm2 : public testing::TestWithParam<Compute> {};

TEST_P(SmolLm2, GreedyTextIsThatOfTheDequantizedWeights) {
  const Compute& compute = GetParam();
  const char* home = std::getenv("HOME");
  const std::string path = StrCat(home != nullptr ? home : "", "/.cache/baton/models/SmolLM2-135M-Instruct.Q4_1.gguf");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there (make demo fetches it)";
  if (!kernels::MakeCpuOps({.dtype = compute.dtype}).ok()) GTEST_SKIP() << "no " << DTypeName(compute.dtype) << " here";
  std::ifstream in("tests/engine/model/goldens/smollm2.json");
  const nlohmann::json golden = nlohmann::json::parse(in);
  auto model = PagedModel::Load({.path = path}, {.threads = 2, .dtype = compute.dtype});
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->model().config().num_layers, 30);
  size_t compared = 0, steps = 0, logits_compared = 0;
  double squares = 0;
  for (const nlohmann::json& one : golden["cases"]) {
    const std::vector<int32_t> prompt = one["prompt"], greedy = one["greedy"];
    const std::vector<double> margins = one["margins"], first_logits = one["first_logits"];
    const double std = one["std"];
    std::vector<float> logits = (*model)->Prefill(prompt, PagedModel::kMaxTokens).value().back();
    for (size_t i = 0; i < first_logits.size(); ++i) {
      const double error = (logits[97 * i] - first_logits[i]) / std;
      squares += error * error;
      ++logits_compared;
      if (compute.dtype == DType::kF32) {
        ASSERT_LE(std::abs(error), 1e-3) << one["text"] << " logit " << 97 * i;
      }
    }
    int32_t context = static_cast<int32_t>(prompt.size());
    steps += greedy.size();
    for (size_t step = 0; step < greedy.size(); ++step) {
      if (margins[step] >= compute.margin * std) {
        ++compared;
        ASSERT_EQ(ArgMax(logits), greedy[step]) << one["text"] << " step " << step << ", margin " << margins[step];
      }
      logits = (*model)->Run({greedy[step]}, context++, {0}).value()[0];
    }
  }
  EXPECT_LE(std::sqrt(squares / static_cast<double>(logits_compared)), compute.rms);
  EXPECT_GE(static_cast<double>(compared), static_cast<double>(steps) * compute.compared);
}

INSTANTIATE_TEST_SUITE_P(All, SmolLm2,
                         testing::Values(Compute{DType::kF32, 1e-3, 2e-3, 0.9}, Compute{DType::kBF16, 3e-2, 1e-1, 0.6}),
                         [](const auto& info) { return std::string(DTypeName(info.param.dtype)); });

}  // namespace
}  // namespace baton::engine
