#include "router/sampling_options.h"

#include <gtest/gtest.h>

#include <cmath>

#include "router/request/model_text.h"
#include "router/request/sampling_limits.h"

namespace baton::router {
namespace {

TEST(SamplingLimits, AValueOutsideItsRangeIsNamedWithBoth) {
  const auto refused = [](auto member, auto value, const char* param, const char* message) {
    SamplingOptions sampling;
    sampling.*member = value;
    const auto error = CheckSamplingNumbers(sampling);
    ASSERT_TRUE(error) << message;
    EXPECT_EQ(error->http_status, 400);
    EXPECT_EQ(error->param, param);
    EXPECT_EQ(error->message, message);
  };
  using S = SamplingOptions;
  refused(&S::temperature, -1.0F, "temperature", "`temperature` must be in [0, infinity), got -1.");
  refused(&S::temperature, INFINITY, "temperature", "`temperature` must be in [0, infinity), got inf.");
  refused(&S::top_p, 0.0F, "top_p", "`top_p` must be in (0, 1], got 0.");
  refused(&S::top_p, NAN, "top_p", "`top_p` must be in (0, 1], got nan.");
  refused(&S::top_p, 1.0000001F, "top_p", "`top_p` must be in (0, 1], got 1.0000001.");
  refused(&S::presence_penalty, 2.1F, "presence_penalty", "`presence_penalty` must be in [-2, 2], got 2.1.");
  refused(&S::min_p, 1.5F, "min_p", "`min_p` must be in [0, 1], got 1.5.");
  refused(&S::presence_penalty, -2.5F, "presence_penalty", "`presence_penalty` must be in [-2, 2], got -2.5.");
  refused(&S::frequency_penalty, 3.0F, "frequency_penalty", "`frequency_penalty` must be in [-2, 2], got 3.");
  refused(&S::repetition_penalty, 0.0F, "repetition_penalty", "`repetition_penalty` must be in (0, infinity), got 0.");
  refused(&S::top_k, -2, "top_k", "`top_k` must be -1 or 0 (all), or at least 1, got -2.");
  refused(&S::min_tokens, -1, "min_tokens", "`min_tokens` must be at least 0, got -1.");
  const std::vector<std::pair<int32_t, float>> bias = {{3, 0.5F}, {7, -101.0F}};
  refused(&S::logit_bias, bias, "logit_bias", "`logit_bias` of token 7 must be in [-100, 100], got -101.");
}

TEST(SamplingLimits, TheEndsOfARangeAreInIt) {
  SamplingOptions s;
  s.temperature = 0.0F, s.top_p = 1.0F, s.min_p = 1.0F, s.top_k = -1, s.min_tokens = 0;
  s.presence_penalty = -2.0F, s.frequency_penalty = 2.0F;
  s.logit_bias = {{1, -100.0F}, {2, 100.0F}};
  EXPECT_FALSE(CheckSamplingNumbers(s));
  EXPECT_FALSE(CheckSamplingNumbers({}));
}

TEST(ResolveSampling, TheRequestGoesBeforeTheModelBeforeTheNeutralValue) {
  SamplingOptions request, model;
  request.temperature = 0.5F;
  request.top_k = -1;
  model.temperature = 0.7F, model.top_p = 0.9F, model.max_tokens = 50;
  const SamplingOptions s = ResolveSampling(request, model);
  EXPECT_EQ(s.temperature, 0.5F);
  EXPECT_EQ(s.top_p, 0.9F);
  EXPECT_EQ(s.top_k, 0) << "-1 is all, too";
  EXPECT_EQ(s.min_p, 0.0F);
  EXPECT_EQ(s.repetition_penalty, 1.0F);
  EXPECT_EQ(s.presence_penalty, 0.0F);
  EXPECT_EQ(s.frequency_penalty, 0.0F);
  EXPECT_EQ(s.min_tokens, 0);
  EXPECT_EQ(s.ignore_eos, false);
  EXPECT_FALSE(s.max_tokens) << "the context decides, too";
  EXPECT_FALSE(s.seed);
  EXPECT_FALSE(s.logprobs);
  EXPECT_FALSE(s.prompt_logprobs);
  EXPECT_EQ(ResolveSampling({}, {}).temperature, 1.0F);
}

}  // namespace
}  // namespace baton::router
