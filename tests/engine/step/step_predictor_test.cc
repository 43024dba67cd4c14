#include "engine/step/step_predictor.h"

#include <gtest/gtest.h>

#include <random>

namespace baton::engine {
namespace {

struct Machine {
  double per_step, per_row, per_thousand_attended;
  double Ms(const StepWork& w) const { return per_step + per_row * w.rows + per_thousand_attended * w.attended / 1000; }
};

StepWork Random(std::mt19937_64& rng) {
  StepWork w;
  const int sequences = static_cast<int>(rng() % 20);
  for (int i = 0; i < sequences; ++i) w.Add(1, static_cast<int32_t>(rng() % 2000));
  w.Add(1 + static_cast<int32_t>(rng() % 256), static_cast<int32_t>(rng() % 2000));
  return w;
}

// Lets it see `steps` random steps of the machine.
void Teach(StepPredictor& p, const Machine& machine, int steps, std::mt19937_64& rng) {
  for (int i = 0; i < steps; ++i) {
    const StepWork w = Random(rng);
    p.Observe(w, machine.Ms(w));
  }
}

// Within this share of what the machine takes, over 50 random steps.
void ExpectKnows(const StepPredictor& p, const Machine& machine, double share, std::mt19937_64& rng) {
  for (int i = 0; i < 50; ++i) {
    const StepWork w = Random(rng);
    EXPECT_NEAR(p.Predict(w), machine.Ms(w), share * machine.Ms(w));
  }
}

TEST(StepPredictor, BelievesThePriorUntilStepsWereSeen) {
  const StepPredictor p(0.5);
  StepWork w;
  w.Add(100, 1000);
  EXPECT_DOUBLE_EQ(p.Predict(w), 50);
  EXPECT_EQ(p.TokensWithin(StepWork(), 0, 50, 2048), 100);
}

TEST(StepPredictor, LearnsAMachineFromMixedSteps) {
  for (const Machine machine : {Machine{5, 0.4, 0.02}, Machine{1, 0.05, 0.001}, Machine{0.2, 2, 0.3}}) {
    StepPredictor p(1.0);
    std::mt19937_64 rng(1);
    Teach(p, machine, 60, rng);
    ExpectKnows(p, machine, 0.01, rng);
  }
}

TEST(StepPredictor, NoisyStepsMoveItLittle) {
  const Machine machine{5, 0.4, 0.02};
  StepPredictor p(1.0);
  std::mt19937_64 rng(2);
  for (int i = 0; i < 400; ++i) {
    const StepWork w = Random(rng);
    p.Observe(w, machine.Ms(w) * (0.9 + 0.2 * static_cast<double>(rng() % 1000) / 1000));
  }
  ExpectKnows(p, machine, 0.15, rng);
}

TEST(StepPredictor, FollowsAMachineThatBecameSlower) {
  Machine machine{5, 0.4, 0.02};
  StepPredictor p(1.0);
  std::mt19937_64 rng(3);
  for (int phase = 0; phase < 2; ++phase) {
    Teach(p, machine, 200, rng);
    if (phase == 0) machine = {15, 1.2, 0.06};
  }
  const StepWork w = Random(rng);
  EXPECT_NEAR(p.Predict(w), machine.Ms(w), 0.1 * machine.Ms(w));
}

// Hours of equal decode steps teach one direction only; the first prefill after them must not be predicted wildly.
TEST(StepPredictor, ThousandsOfEqualStepsDoNotMakeItJumpy) {
  const Machine machine{5, 0.4, 0.02};
  StepPredictor p(1.0);
  std::mt19937_64 rng(4);
  Teach(p, machine, 50, rng);
  StepWork decode;
  for (int i = 0; i < 8; ++i) decode.Add(1, 500);
  for (int i = 0; i < 20000; ++i)
    p.Observe(decode, machine.Ms(decode) * (0.98 + 0.04 * static_cast<double>(rng() % 100) / 100));
  EXPECT_NEAR(p.Predict(decode), machine.Ms(decode), 0.05 * machine.Ms(decode));
  StepWork prefill;
  prefill.Add(256, 0);
  EXPECT_NEAR(p.Predict(prefill), machine.Ms(prefill), 0.1 * machine.Ms(prefill));
}

// As a clock gives it that stood still: beside it every other step looks endless, and teaches next to nothing.
TEST(StepPredictor, AStepThatSeemedToTakeNoTimeIsForgotten) {
  const Machine machine{500, 40, 2};
  StepPredictor p(1.0);
  std::mt19937_64 rng(7);
  p.Observe(Random(rng), 0);
  Teach(p, machine, 20000, rng);
  ExpectKnows(p, machine, 0.01, rng);
}

// Noise alone would now and then be explained best by work that takes time away.
TEST(StepPredictor, MoreWorkIsNeverPredictedToTakeLessTime) {
  StepPredictor p(1.0);
  std::mt19937_64 rng(6);
  StepWork none, some, much;
  some.Add(64, 0);
  much.Add(64, 0);
  much.Add(2048, 1000);
  for (int i = 0; i < 300; ++i) {
    p.Observe(Random(rng), 10 + static_cast<double>(rng() % 2000) / 100);
    ASSERT_GE(p.Predict(none), 0);
    ASSERT_LE(p.Predict(none), p.Predict(some));
    ASSERT_LE(p.Predict(some), p.Predict(much));
  }
  EXPECT_LT(p.Predict(much), 60) << "all steps took 20 ms, more or less";
}

TEST(StepPredictor, TokensWithinIsTheMostThatFit) {
  StepPredictor p(1.0);
  const Machine machine{5, 0.4, 0.02};
  std::mt19937_64 rng(5);
  Teach(p, machine, 100, rng);
  for (const int32_t context : {0, 500, 1800}) {
    StepWork base;
    for (int i = 0; i < 4; ++i) base.Add(1, 300);
    const int32_t n = p.TokensWithin(base, context, 60, 2048);
    ASSERT_GT(n, 0);
    ASSERT_LT(n, 2048);
    StepWork fits = base, too_much = base;
    fits.Add(n, context);
    too_much.Add(n + 1, context);
    EXPECT_LE(p.Predict(fits), 60);
    EXPECT_GT(p.Predict(too_much), 60);
    EXPECT_EQ(p.TokensWithin(base, context, 60, 10), 10) << "no more than there are";
    EXPECT_EQ(p.TokensWithin(base, context, 1, 2048), 0) << "the decodes alone take longer";
  }
}

}  // namespace
}  // namespace baton::engine
