// What is said of sampling twice or copied by hand: the router's ranges beside the engine's, and a request's numbers on
// their way into a row.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <map>
#include <string>

#include "engine/sampling/sampling_params.h"
#include "kernels/ops.h"
#include "router/sampling_options.h"
#include "tests/sampling_wire.h"

namespace baton::worker {
namespace {

TEST(SamplingRanges, AreTheSameInRouterAndEngine) {
  // Lowest values that differ on purpose: the router's, then the engine's.
  const std::map<std::string, std::pair<double, double>> different = {
      {"top_k", {-1, 0}},            // -1 and 0: all
      {"max_tokens", {0, 1}},        // 0: what the context leaves, or the prompt alone
      {"logprobs", {0, -1}},         // absent: -1
      {"prompt_logprobs", {0, -1}},  // absent: -1
      {"best_of", {1, 0}},           // absent: 0
  };
  std::map<std::string, router::SamplingField> fields;
  router::VisitSampling(
      [&](auto, const router::SamplingField& field) { fields.emplace(std::string(field.name), field); });
  for (const engine::SamplingRange& range : engine::kSamplingRanges) {
    ASSERT_TRUE(fields.contains(range.name)) << range.name;
    const router::SamplingField& field = fields.at(range.name);
    const auto apart = different.find(range.name);
    const auto [router_low, engine_low] =
        apart == different.end() ? std::pair(range.low, range.low) : std::pair<double, double>(apart->second);
    EXPECT_EQ(field.low, router_low) << range.name;
    EXPECT_EQ(range.low, engine_low) << range.name;
    EXPECT_EQ(std::isfinite(field.high) ? field.high : engine::kAnyFinite, range.high) << range.name;
    EXPECT_EQ(field.low_open, range.low_open) << range.name;
  }
}

struct Anything {
  template <class T>
  operator T() const;
};
// How many members an aggregate has.
template <class T, class... Members>
constexpr int MembersOf() {
  if constexpr (requires { T{Members{}..., Anything{}}; }) {
    return MembersOf<T, Members..., Anything>();
  } else {
    return sizeof...(Members);
  }
}

TEST(SampleRow, EveryNumberOfARequestIsCopiedIntoIt) {
  constexpr int kNotNumbersOfARequest = 11;  // from prompt_tokens on: lists, and what the executor sets for each step
  engine::SamplingParams params;
  DecodeSamplingFields(EverySamplingField(), params);
  kernels::SampleRow row, neutral;
  std::memset(static_cast<void*>(&row), 0, offsetof(kernels::SampleRow, prompt_tokens));
  std::memset(static_cast<void*>(&neutral), 0, offsetof(kernels::SampleRow, prompt_tokens));
  kernels::CopyDrawNumbers(params, row);
  int copied = 0;
  for (size_t at = 0; at < offsetof(kernels::SampleRow, prompt_tokens); at += 4) {
    const auto* const bytes = reinterpret_cast<const std::byte*>(&row);
    copied += std::memcmp(bytes + at, reinterpret_cast<const std::byte*>(&neutral) + at, 4) != 0;
  }
  EXPECT_EQ(copied, MembersOf<kernels::SampleRow>() - kNotNumbersOfARequest)
      << "a number lacks a line in CopyDrawNumbers, or stands behind prompt_tokens";
}

}  // namespace
}  // namespace baton::worker
