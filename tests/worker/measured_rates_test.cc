#include "worker/process/measured_rates.h"

#include <gtest/gtest.h>

namespace baton::worker {
namespace {

using std::chrono::milliseconds;

engine::SchedulerLoad After(int64_t steps, int64_t tokens, int step_ms, int prefill_ms) {
  engine::SchedulerLoad load;
  load.steps_ended = steps;
  load.computed_tokens = tokens;
  load.step_time = milliseconds(step_ms);
  load.prefill_time = milliseconds(prefill_ms);
  return load;
}

TEST(MeasuredRates, TheFirstStepSaysTheWholeRate) {
  MeasuredRates rates;
  rates.Take(After(0, 0, 0, 0));
  EXPECT_EQ(rates.prefill_tokens_per_s(), 0);
  EXPECT_EQ(rates.step_ms(), 0);
  rates.Take(After(1, 100, 50, 50));
  EXPECT_DOUBLE_EQ(rates.prefill_tokens_per_s(), 2000);
  EXPECT_DOUBLE_EQ(rates.step_ms(), 50);
}

TEST(MeasuredRates, NewsWithoutAStepChangesNothing) {
  MeasuredRates rates;
  rates.Take(After(1, 100, 50, 50));
  for (int i = 0; i < 100; ++i) rates.Take(After(1, 100, 50, 50));
  EXPECT_DOUBLE_EQ(rates.prefill_tokens_per_s(), 2000) << "a worker with nothing to do is no slower";
  EXPECT_DOUBLE_EQ(rates.step_ms(), 50);
}

TEST(MeasuredRates, StepsThatOnlyDecodeSayNothingOfPrompts) {
  MeasuredRates rates;
  rates.Take(After(1, 100, 50, 50));
  rates.Take(After(11, 100, 150, 50));
  EXPECT_DOUBLE_EQ(rates.prefill_tokens_per_s(), 2000);
  EXPECT_LT(rates.step_ms(), 15);
}

TEST(MeasuredRates, AWorkerThatBecameSlowerIsSoonSeenToBe) {
  MeasuredRates rates;
  int tokens = 0, ms = 0;
  for (int i = 1; i <= 20; ++i) {
    tokens += 100;
    ms += i <= 10 ? 50 : 100;
    rates.Take(After(i, tokens, ms, ms));
  }
  EXPECT_NEAR(rates.prefill_tokens_per_s(), 1000, 100);
}

}  // namespace
}  // namespace baton::worker
