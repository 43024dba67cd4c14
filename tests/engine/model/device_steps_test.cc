// Steps on a GPU: one upload of all inputs, decodes recorded once and replayed, with the bits of steps that are not.
#include <gtest/gtest.h>

#include <array>

#include "kernels/runtime/emulated_device.h"
#include "kernels/runtime/runtime.h"
#include "tests/engine/model/random_steps.h"

namespace baton::engine {
namespace {

constexpr int kRecordedSteps = 100;  ///< of each of two models, against the same that are not recorded
constexpr int kRandomSteps = 30;     ///< of each model: every number of sequences, sampled and scored, several times

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
  /// Decodes of so many sequences, which may go on for some steps: places that are drawn, room for all positions.
  RandomStep Continuing(int32_t sequences, std::mt19937& random) const {
    RandomStep step;
    step.stride = limits_.positions / kUnitTokens + 1;
    for (int32_t s = 0; s < sequences; ++s) {
      step.row_start.push_back(s + 1);
      step.context.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(limits_.positions - 20)));
      step.logit_rows.push_back(s);
      step.tokens.push_back(static_cast<int32_t>(random() % 300));
      for (int32_t b = 0; b < step.stride; ++b) step.tables.push_back(s * step.stride + b);
    }
    return step;
  }
  /// `output`: what each row's sequence has drawn, as far as the host knows. Half of the rows have penalties; by its
  /// own the first draws its second token again, and another where that is forgotten.
  static std::vector<kernels::SampleRow> DrawsOf(const RandomStep& step,
                                                 const std::vector<std::vector<int32_t>>& output) {
    static const std::vector<int32_t> prompt{1, 2, 3, 3, 40};
    std::vector<kernels::SampleRow> rows(step.tokens.size());
    for (size_t r = 0; r < rows.size(); ++r) {
      rows[r].temperature = r % 2 == 0 ? 0.0f : 1.0f;
      rows[r].position = static_cast<uint64_t>(step.context[r]) + 1;
      rows[r].num_logprobs = r % 3 == 0 ? 3 : -1;
      if (r % 4 >= 2) continue;
      rows[r].repetition_penalty = 1.5f;
      rows[r].presence_penalty = 1.0f;
      rows[r].frequency_penalty = r == 0 ? -50.0f : 0.5f;
      rows[r].prompt_tokens = prompt;
      rows[r].output_tokens = output[r];
      if (step.tokens[r] < 0) rows[r].unread_row = static_cast<int32_t>(r);
    }
    return rows;
  }
  static void Append(const std::vector<kernels::SampleResult>& drawn, std::vector<std::vector<int32_t>>& output) {
    for (size_t r = 0; r < drawn.size(); ++r) output[r].push_back(drawn[r].token);
  }
  static void GoOn(RandomStep& step) {
    for (int32_t& context : step.context) ++context;
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
  for (int i = 0; i < kRecordedSteps; ++i) {
    const RandomStep step = MakeStep(i % 10 == 5 ? 1 : 0, limits_, 300, random);
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

// Launched one by one: the digests of new blocks begin in the kernel that writes KV, so no layer has a launch for them.
TEST_P(DeviceSteps, ALayerOfDecodesIsTheLaunchesThatComputeIt) {
  auto on = Load({});
  ASSERT_TRUE(on.ok()) << on.status();
  std::mt19937 random(28);
  const RandomStep step = Decodes(3, random);
  const int64_t before = on->ops->device_work().launches;
  ASSERT_TRUE(Forward(*on, step).ok());
  constexpr int64_t kOutside = 5;  // embedding, the first norm, two of rows, head
  // Of llama3's three: q k v, rope and KV, attention and its combination, output, norm, gate and up, down, norm. Of
  // gemma3's four, whose norms more keep it from being fused: four more, and no combination in a short window.
  const int64_t of_layers = GetParam() == std::string("llama3") ? 3 * 9 : 3 * 12 + 13;
  EXPECT_EQ(on->ops->device_work().launches - before, kOutside + of_layers);
}

/// Greedy and drawn rows with every filter, log-probabilities of some; no lists of tokens.
std::vector<kernels::SampleRow> PlainDraws(const RandomStep& step, std::mt19937& random) {
  const auto one_of = [&](std::initializer_list<float> values) { return values.begin()[random() % values.size()]; };
  std::vector<kernels::SampleRow> rows(step.tokens.size());
  for (size_t r = 0; r < rows.size(); ++r) {
    rows[r].temperature = one_of({0.0f, 0.7f, 1.0f, 2.5f});
    rows[r].top_k = static_cast<int32_t>(one_of({0, 1, 5, 40}));
    rows[r].top_p = one_of({1.0f, 0.9f, 0.3f});
    rows[r].min_p = one_of({0.0f, 0.0f, 0.05f});
    rows[r].seed = random();
    rows[r].position = static_cast<uint64_t>(step.context[r]) + 1;
    rows[r].num_logprobs = static_cast<int32_t>(one_of({-1, 0, 3}));
  }
  return rows;
}

void ExpectEqual(const std::vector<kernels::SampleResult>& got, const std::vector<kernels::SampleResult>& want) {
  const auto same = [](const kernels::TokenLogprob& a, const kernels::TokenLogprob& b) {
    return a.token == b.token && a.logprob == b.logprob && a.rank == b.rank;
  };
  ASSERT_EQ(got.size(), want.size());
  for (size_t r = 0; r < want.size(); ++r) {
    EXPECT_EQ(got[r].token, want[r].token) << "row " << r;
    EXPECT_TRUE(same(got[r].chosen, want[r].chosen)) << "row " << r;
    EXPECT_TRUE(std::ranges::equal(got[r].top, want[r].top, same)) << "row " << r;
  }
}

// A decode is one copy in, one replay and one copy of what was drawn, with lists of tokens too (biases, penalties,
// masks of what is allowed). Steps are padded, and those that are not drawn from lie between.
TEST_P(DeviceSteps, ARecordedStepDrawsWhatOthersDraw) {
  auto plain = Load({}), recorded = Load({1, 2, 4, 5});
  ASSERT_TRUE(plain.ok() && recorded.ok()) << plain.status() << recorded.status();
  for (DeviceModel* on : {&*plain, &*recorded}) Record(*on, {1, 2, 4, 5});
  static const std::vector<std::pair<int32_t, float>> bias{{5, 2.0f}, {9, -1.0f}};
  static const std::vector<int32_t> tokens{5, 7, 7, 11, 200};
  std::mt19937 random(27);
  for (int i = 0; i < kRandomSteps; ++i) {
    const RandomStep step = Continuing(1 + static_cast<int32_t>(random() % 5), random);
    std::vector<kernels::SampleRow> draws = PlainDraws(step, random);
    if (i % 4 == 3) draws.back().logit_bias = bias;
    if (i % 4 == 2) draws.front().allowed_tokens = tokens;
    if (i % 3 == 0) {
      draws.back().repetition_penalty = 1.4f;
      draws.back().presence_penalty = 0.6f;
      draws.back().prompt_tokens = draws.back().output_tokens = tokens;
    }
    const auto want_logits = Forward(*plain, step);
    const kernels::DeviceWork before = recorded->ops->device_work();
    const auto got_logits = Forward(*recorded, step, draws);
    ASSERT_TRUE(want_logits.ok() && got_logits.ok()) << want_logits.status() << got_logits.status();
    const auto got = recorded->ops->BeginSample(*got_logits, draws)->Take();
    const kernels::DeviceWork after = recorded->ops->device_work();
    EXPECT_EQ(after.replays - before.replays, 1);
    EXPECT_EQ(after.launches - before.launches, 0);
    EXPECT_EQ(after.copies - before.copies, 2);
    EXPECT_EQ(after.waits - before.waits, 1);
    ExpectEqual(got, plain->ops->Sample(*want_logits, draws));
    if (HasFailure()) FAIL() << "step " << i << " of " << step.tokens.size() << " rows";
  }
}

// Where the results of all rows have no room at once, the sampler follows the replay.
TEST_P(DeviceSteps, DrawsThatHaveNoRoomInARecordFollowIt) {
  ModelSource source = SourceWithin(std::string("tests/engine/model/goldens/") + GetParam(), limits_);
  source.recorded_rows = {4};
  auto plain = Load({}), narrow = LoadOnDevice(source, limits_, {.work_bytes = 100});
  ASSERT_TRUE(plain.ok() && narrow.ok()) << plain.status() << narrow.status();
  std::mt19937 random(28);
  const RandomStep step = Continuing(4, random);
  const std::vector<kernels::SampleRow> draws = PlainDraws(step, random);
  const auto want = Forward(*plain, step), got = Forward(*narrow, step, draws);
  ASSERT_TRUE(want.ok() && got.ok()) << want.status() << got.status();
  ExpectEqual(narrow->ops->BeginSample(*got, draws)->Take(), plain->ops->Sample(*want, draws));
}

// What does not go with the inputs follows the replay, with a copy of its own.
TEST_P(DeviceSteps, ListsThatAreTooLongFollowTheReplay) {
  const RandomLimits limits{.positions = 24};
  ModelSource source = SourceWithin(std::string("tests/engine/model/goldens/") + GetParam(), limits);
  auto plain = LoadOnDevice(source, limits, {});
  source.recorded_rows = {5};
  auto recorded = LoadOnDevice(source, limits, {});
  ASSERT_TRUE(plain.ok() && recorded.ok()) << plain.status() << recorded.status();
  Record(*recorded, {5});
  std::mt19937 random(29);
  RandomStep step;
  step.stride = 1;
  for (int32_t s = 0; s < 5; ++s) {
    step.row_start.push_back(s + 1);
    step.context.push_back(0);
    step.logit_rows.push_back(s);
    step.tokens.push_back(s * 7);
    step.tables.push_back(s);
  }
  std::vector<kernels::SampleRow> draws = PlainDraws(step, random);
  std::vector<int32_t> tokens;
  std::vector<std::pair<int32_t, float>> bias;
  for (int32_t t = 0; t < 300; ++t) {
    tokens.push_back(t);
    bias.emplace_back(t, 0.01f * static_cast<float>(t % 7));
  }
  for (kernels::SampleRow& row : draws) {
    row.logit_bias = bias;
    row.repetition_penalty = 1.3f;
    row.frequency_penalty = 0.2f;
    row.prompt_tokens = row.output_tokens = tokens;
  }
  const auto want = Forward(*plain, step);
  const kernels::DeviceWork before = recorded->ops->device_work();
  const auto got = Forward(*recorded, step, draws);
  ASSERT_TRUE(want.ok() && got.ok()) << want.status() << got.status();
  const auto draw = recorded->ops->BeginSample(*got, draws);
  const kernels::DeviceWork after = recorded->ops->device_work();
  EXPECT_EQ(after.replays - before.replays, 1);
  EXPECT_EQ(after.launches - before.launches, 1);
  EXPECT_EQ(after.copies - before.copies, 3);
  ExpectEqual(draw->Take(), plain->ops->Sample(*want, draws));
}

// Counted, and nothing of a step has run when the step behind it is given: the emulated stream runs what somebody waits
// for.
TEST_P(DeviceSteps, AStepIsGivenBeforeTheTokensOfTheOneBeforeItAreRead) {
  constexpr size_t kSteps = 6;
  auto read = Load({}), ahead = Load({1, 2, 4});
  ASSERT_TRUE(read.ok() && ahead.ok()) << read.status() << ahead.status();
  for (DeviceModel* on : {&*read, &*ahead}) Record(*on, {1, 2, 4});
  std::mt19937 random(25);
  for (const int32_t sequences : {4, 3, 1}) {
    const RandomStep start = Continuing(sequences, random);
    std::vector<std::vector<kernels::SampleResult>> want, got;
    std::vector<std::vector<int32_t>> output(start.tokens.size());
    RandomStep step = start;
    for (size_t i = 0; i < kSteps; ++i) {
      const auto logits = Forward(*read, step);
      ASSERT_TRUE(logits.ok()) << logits.status();
      want.push_back(read->ops->Sample(*logits, DrawsOf(step, output)));
      Append(want.back(), output);
      for (size_t r = 0; r < step.tokens.size(); ++r) step.tokens[r] = want.back()[r].token;
      GoOn(step);
    }
    output.assign(start.tokens.size(), {});
    step = start;
    std::array<bool, kSteps> ran{};
    std::unique_ptr<kernels::Draw> before;
    for (size_t i = 0; i < kSteps; ++i) {
      const std::vector<kernels::SampleRow> draws = DrawsOf(step, output);
      const kernels::DeviceWork at_first = ahead->ops->device_work();
      const auto logits = Forward(*ahead, step, draws, i == 0 ? 0 : sequences);
      ASSERT_TRUE(logits.ok()) << logits.status();
      ahead->ops->WhenDone([&ran, i] { ran[i] = true; });
      std::unique_ptr<kernels::Draw> draw = ahead->ops->BeginSample(*logits, draws);
      const kernels::DeviceWork given = ahead->ops->device_work();
      EXPECT_EQ(given.replays - at_first.replays, 1);
      EXPECT_EQ(given.launches - at_first.launches, 0) << "the sampler is in the record";
      EXPECT_EQ(given.copies - at_first.copies, 2) << "all that the step takes, and what was drawn";
      EXPECT_EQ(given.waits - at_first.waits, 0);
      if (before != nullptr) {
        EXPECT_FALSE(ran[i - 1]) << "step " << i << " is given while the one before it is under way";
        got.push_back(before->Take());
        Append(got.back(), output);
        EXPECT_TRUE(ran[i - 1]);
        EXPECT_FALSE(ran[i]) << "reading tokens waits for their own step";
        EXPECT_EQ(ahead->ops->device_work().waits - given.waits, 1);
      }
      before = std::move(draw);
      for (size_t r = 0; r < step.tokens.size(); ++r) step.tokens[r] = kernels::DrawnToken(static_cast<int32_t>(r));
      GoOn(step);
    }
    got.push_back(before->Take());
    for (size_t i = 0; i < kSteps; ++i) {
      for (size_t r = 0; r < want[i].size(); ++r) {
        EXPECT_EQ(got[i][r].token, want[i][r].token) << "step " << i << " row " << r;
        EXPECT_EQ(got[i][r].chosen.logprob, want[i][r].chosen.logprob) << "step " << i << " row " << r;
      }
    }
  }
}

TEST_P(DeviceSteps, ATokenThatNobodyDrewIsRefused) {
  auto on = Load({1, 2});
  ASSERT_TRUE(on.ok()) << on.status();
  std::mt19937 random(26);
  RandomStep step = Continuing(2, random);
  step.tokens[1] = kernels::DrawnToken(0);
  EXPECT_TRUE(absl::IsInvalidArgument(Forward(*on, step).status()));
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
