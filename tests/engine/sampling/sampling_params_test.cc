#include "engine/sampling/sampling_params.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/engine/sampling/params.h"

namespace baton::engine {
namespace {

TEST(ValidateSampling, EachBrokenFieldIsNamed) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto broken = [](auto&& change, const char* name) {
    SamplingParams p = Params();
    EXPECT_TRUE(ValidateSampling(p, 100).ok());
    change(p);
    const absl::Status s = ValidateSampling(p, 100);
    EXPECT_EQ(s.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_NE(s.message().find(name), std::string::npos) << s;
  };
  broken([&](auto& p) { p.temperature = nan; }, "temperature");
  broken([&](auto& p) { p.temperature = -1; }, "temperature");
  broken([&](auto& p) { p.top_p = 0; }, "top_p");
  broken([&](auto& p) { p.top_p = nan; }, "top_p");
  broken([&](auto& p) { p.top_k = -2; }, "top_k");
  broken([&](auto& p) { p.min_p = 1.5f; }, "min_p");
  broken([&](auto& p) { p.repetition_penalty = 0; }, "repetition_penalty");
  broken([&](auto& p) { p.repetition_penalty = INFINITY; }, "repetition_penalty");
  broken([&](auto& p) { p.presence_penalty = 3; }, "presence_penalty");
  broken([&](auto& p) { p.frequency_penalty = -3; }, "frequency_penalty");
  broken([&](auto& p) { p.logit_bias = {{100, 1.0f}}; }, "logit_bias");
  broken([&](auto& p) { p.logit_bias = {{1, nan}}; }, "logit_bias");
  broken([&](auto& p) { p.logit_bias = {{1, -INFINITY}}; }, "logit_bias must be finite, got -inf");
  broken([&](auto& p) { p.allowed_token_ids = {-1}; }, "allowed_token_ids");
  broken([&](auto& p) { p.stop_token_ids = {100}; }, "stop_token_ids");
  broken([&](auto& p) { p.max_tokens = 0; }, "max_tokens");
  broken([&](auto& p) { p.min_tokens = 6; }, "min_tokens");
  broken([&](auto& p) { p.n = 0; }, "n must");
  broken([&](auto& p) { p.top_p = 1.5f; }, "top_p must be in (0, 1], got 1.5");
  broken([&](auto& p) { p.repetition_penalty = -1; }, "repetition_penalty must be greater than 0, got -1");
  broken([&](auto& p) { p.logprobs = -2; }, "logprobs must be at least 0, got -2");
  broken([&](auto& p) { p.prompt_logprobs = -2; }, "prompt_logprobs must be at least 0, got -2");
}

TEST(ValidateSampling, PenaltiesMayBeAsGreatAsTheApiAllows) {
  for (const float most : {-2.0f, 2.0f}) {
    SamplingParams p = Params();
    p.presence_penalty = p.frequency_penalty = most;
    EXPECT_TRUE(ValidateSampling(p, 100).ok()) << most;
  }
}

}  // namespace
}  // namespace baton::engine
