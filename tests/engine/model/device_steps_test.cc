// Steps on a GPU: one upload of all inputs, decodes recorded once and replayed, with the bits of steps that are not.
#include <gtest/gtest.h>

#include "kernels/runtime/emulated_device.h"
#include "kernels/runtime/runtime.h"
#include "tests/engine/model/random_steps.h"

namespace baton::engine {
namespace {

class DeviceSteps : public testing::TestWithParam<const char*> {
 protected:
  absl::StatusOr<DeviceModel> Load(std::vector<int32_t> recorded_rows) {
    ModelSource source = SourceWithin(std::string("tests/engine/model/goldens/") + GetParam(), limits_);
    source.recorded_rows = std::move(recorded_rows);
    return LoadOnDevice(source, limits_, {});
  }
  /// Decodes of so many sequences, at the places that `random` draws.
  RandomStep Decodes(size_t sequences, std::mt19937& random) {
    for (;;) {
      RandomStep step = MakeStep(0, limits_, 300, random);
      if (step.context.size() == sequences && step.targets.empty()) return step;
    }
  }
  /// As a worker does at its start: token 0 of every sequence, in block 0.
  void Record(DeviceModel& on, const std::vector<int32_t>& sizes) {
    for (const int32_t rows : sizes) {
      RandomStep step;
      step.stride = 1;
      for (int32_t r = 0; r < rows; ++r) {
        step.row_start.push_back(r + 1);
        step.logit_rows.push_back(r);
      }
      step.tokens = step.context = step.tables = std::vector<int32_t>(static_cast<size_t>(rows), 0);
      ASSERT_TRUE(Forward(on, step).ok());
    }
  }
  const RandomLimits limits_;
};

TEST_P(DeviceSteps, RecordedStepsHaveTheBitsOfOthers) {
  auto plain = Load({}), recorded = Load({1, 2, 4, 5, 64});
  ASSERT_TRUE(plain.ok() && recorded.ok()) << plain.status() << recorded.status();
  for (DeviceModel* on : {&*plain, &*recorded}) Record(*on, {1, 2, 4, 5});
  std::mt19937 random(21);
  int sampled = 0;
  for (int i = 0; i < 100; ++i) {  // of each model: 200 in all
    const RandomStep step = MakeStep(i % 20 == 10 ? 1 : 0, limits_, 300, random);
    const auto want = RunStep(*plain, step), got = RunStep(*recorded, step);
    ASSERT_TRUE(want.ok() && got.ok()) << want.status() << got.status();
    ASSERT_EQ(got->logits, want->logits) << "step " << i << " of " << step.tokens.size() << " rows";
    for (size_t r = 0; r < want->rows.size(); ++r) ASSERT_EQ(got->rows[r].token, want->rows[r].token) << "step " << i;
    sampled += step.targets.empty();
  }
  EXPECT_EQ(plain->ops->device_work().replays, 0);
  EXPECT_GT(recorded->ops->device_work().replays, sampled / 2);
}

TEST_P(DeviceSteps, ADecodeStepIsOneCopyAndOneReplay) {
  auto on = Load({1, 2, 4});
  ASSERT_TRUE(on.ok()) << on.status();
  std::mt19937 random(22);
  for (size_t sequences : {4u, 3u, 1u, 3u, 4u, 2u}) {
    const RandomStep step = Decodes(sequences, random);
    ASSERT_TRUE(Forward(*on, step).ok());  // recorded
    const kernels::DeviceWork before = on->ops->device_work();
    const auto logits = Forward(*on, step);
    ASSERT_TRUE(logits.ok());
    const kernels::DeviceWork run = on->ops->device_work();
    EXPECT_EQ(run.replays - before.replays, 1);
    EXPECT_EQ(run.copies - before.copies, 1);
    EXPECT_EQ(run.launches - before.launches, 0);
    EXPECT_EQ(run.waits - before.waits, 0);
    std::vector<kernels::SampleRow> rows(sequences);
    on->ops->Sample(*logits, rows);
    const kernels::DeviceWork sampled = on->ops->device_work();
    EXPECT_EQ(sampled.launches - run.launches, 1);
    EXPECT_EQ(sampled.copies - run.copies, 2) << "what to draw, and what was drawn";
    EXPECT_EQ(sampled.waits - run.waits, 1);
  }
}

// The room that is left after KV holds two recorded steps: those of other sizes are launched kernel by kernel, or
// padded.
TEST_P(DeviceSteps, AStepWhoseRecordDoesNotFitHasTheBitsOfOthers) {
  auto plain = Load({}), recorded = Load({1, 2, 4, 5});
  ASSERT_TRUE(plain.ok() && recorded.ok()) << plain.status() << recorded.status();
  const gpu::DeviceInfo device = gpu::CurrentDevice();
  const size_t graph = device.free_bytes / 5 * 2;
  gpu::SetEmulatedGraphBytes(graph);
  Record(*plain, {1, 4, 2, 5});
  Record(*recorded, {1, 4, 2, 5});
  EXPECT_EQ(recorded->ops->device_work().replays, 2) << "of 1 and of 4 rows";
  EXPECT_EQ(gpu::CurrentDevice().free_bytes, device.free_bytes - 2 * graph);
  std::mt19937 random(24);
  for (size_t sequences : {1u, 2u, 3u, 4u, 5u, 2u, 5u}) {
    const RandomStep step = Decodes(sequences, random);
    const int64_t replays = recorded->ops->device_work().replays;
    const auto want = RunStep(*plain, step), got = RunStep(*recorded, step);
    ASSERT_TRUE(want.ok() && got.ok()) << want.status() << got.status();
    EXPECT_EQ(got->logits, want->logits) << sequences << " sequences";
    EXPECT_EQ(recorded->ops->device_work().replays - replays, sequences <= 4 ? 1 : 0) << sequences << " sequences";
  }
  gpu::SetEmulatedGraphBytes(0);
}

TEST_P(DeviceSteps, AStepWithAPromptIsOneCopyToo) {
  auto on = Load({1, 2, 4});
  ASSERT_TRUE(on.ok()) << on.status();
  std::mt19937 random(23);
  RandomStep step = MakeStep(3, limits_, 300, random);
  const kernels::DeviceWork before = on->ops->device_work();
  ASSERT_TRUE(Forward(*on, step).ok());
  const kernels::DeviceWork run = on->ops->device_work();
  EXPECT_EQ(run.replays, 0);
  EXPECT_EQ(run.copies - before.copies, 1);
  EXPECT_GT(run.launches, before.launches);
  EXPECT_EQ(run.waits - before.waits, 0);
}

INSTANTIATE_TEST_SUITE_P(Models, DeviceSteps, testing::Values("llama3", "gemma3"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace baton::engine
