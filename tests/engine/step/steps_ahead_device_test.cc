// Steps that GPUs are given before the tokens of the running one are read: the answers are those of one step at a time.
#include <gtest/gtest.h>

#include <map>

#include "kernels/runtime/emulated_device.h"
#include "tests/engine/model/random_steps.h"
#include "tests/engine/parallel/rank_threads.h"
#include "tests/engine/step/requests.h"

namespace baton::engine {
namespace {

/// Requests that come one after another, and some that are cancelled, on a GPU of their own.
class OnDevice {
 public:
  explicit OnDevice(bool ahead) {
    ModelSource source = SourceWithin("tests/engine/model/goldens/llama3", limits_);
    source.recorded_rows = {1, 2, 4, 5};
    absl::StatusOr<DeviceModel> loaded = LoadOnDevice(source, limits_, {});
    BATON_CHECK(loaded.ok(), loaded.status().ToString());
    device_ = *std::move(loaded);
    SteppedEngineOptions options;
    options.layout = device_.model->kv_layout();
    options.num_blocks.assign(options.layout.groups.size(), 60);
    options.scheduler.max_model_len = limits_.positions;
    options.scheduler.max_num_seqs = limits_.sequences;
    options.scheduler.max_num_batched_tokens = limits_.rows;
    options.ahead = ahead;
    engine_ = std::make_unique<SteppedEngine>(options, nullptr, *device_.model, *device_.ops);
  }

  void Run() {
    for (RequestKey key = 1; key <= kRequests; ++key) {
      Request r = MixedRequest(key, key * 31, 5 + static_cast<int32_t>(key * 13 % 40));
      r.sampling.prompt_logprobs = -1;
      if (key % 2 == 0) {
        r.sampling.repetition_penalty = 1.3f;
        r.sampling.frequency_penalty = 0.5f;
      }
      ASSERT_TRUE(engine_->Add(std::move(r)).ok());
      for (int step = 0; step < 8; ++step) engine_->Step();
      if (key % 4 == 0) Cancel(key);
    }
    engine_->RunAll();
  }
  const SteppedEngine& engine() const { return *engine_; }
  kernels::DeviceWork work() const { return device_.ops->device_work(); }

  static constexpr RequestKey kRequests = 9;

 private:
  /// While its step runs, if it lives.
  void Cancel(RequestKey key) {
    if (!engine_->Begin()) return;
    engine_->scheduler().Cancel(key, engine_->now);
    engine_->Finish();
  }

  const RandomLimits limits_;
  DeviceModel device_;
  std::unique_ptr<SteppedEngine> engine_;
};

/// But for requests that are cancelled, of which only the beginnings are.
void ExpectSameAnswers(const OnDevice& have, const OnDevice& wanted) {
  ASSERT_EQ(have.engine().answers.size(), wanted.engine().answers.size());
  int whole = 0;
  for (const auto& [key, want] : wanted.engine().answers) {
    const Answer& got = have.engine().answers.at(key);
    if (got.finish == FinishReason::kAbort || want.finish == FinishReason::kAbort) {
      const size_t both = std::min(got.tokens.size(), want.tokens.size());
      for (size_t t = 0; t < both; ++t) EXPECT_EQ(got.tokens[t].token, want.tokens[t].token) << "request " << key.first;
      continue;
    }
    ++whole;
    EXPECT_EQ(got.Text(), want.Text()) << "request " << key.first << " choice " << key.second;
  }
  EXPECT_GE(whole, 7);
}

TEST(StepsAheadOnADevice, AnswersAreThoseOfOneStepAtATime) {
  OnDevice between(false), ahead(true);
  between.Run();
  ahead.Run();
  EXPECT_GT(ahead.engine().steps_ahead, 10);
  EXPECT_GT(ahead.work().replays, ahead.engine().steps_ahead) << "and each is one replay";
  ExpectSameAnswers(ahead, between);
}

// Without StreamsDrift work runs as late as it can; on hardware it may be done when the call that gave it returns.
TEST(StepsAheadOnADevice, StreamsThatRunBeforeTheyAreWaitedForChangeNoAnswer) {
  OnDevice between(false);
  between.Run();
  const gpu::StreamsDrift drift(1);
  OnDevice ahead(true);
  ahead.Run();
  EXPECT_GT(ahead.engine().steps_ahead, 10);
  ExpectSameAnswers(ahead, between);
}

/// Ranks on GPUs of their own, which are given three answers of equal length.
class OnGpus {
 public:
  OnGpus(const RankThreads::Shape& shape, bool ahead) : ranks_(OptionsFor(shape)) {
    SteppedEngineOptions options;
    options.layout = ranks_.layout();
    options.num_blocks.assign(options.layout.groups.size(), kBlocks);
    options.scheduler.max_model_len = kPositions;
    options.scheduler.max_num_seqs = kSequences;
    options.scheduler.max_num_batched_tokens = 64;
    options.ahead = ahead;
    engine_ = std::make_unique<SteppedEngine>(options, nullptr, ranks_.model(), ranks_.ops(), ranks_.channel.get());
    for (RequestKey key = 1; key <= kSequences - 1; ++key) {
      Request r = MakeRequest(key, RandomTokens(key, 4 + static_cast<int32_t>(key) * 5, 500), 12);
      r.sampling.ignore_eos = true;
      r.sampling.temperature = key == 1 ? 0.0f : 1.0f;
      r.sampling.seed = key;
      r.sampling.logprobs = 2;
      r.sampling.frequency_penalty = key == 2 ? 1.5f : 0.0f;
      r.sampling.repetition_penalty = key == 3 ? 1.5f : 1.0f;
      BATON_CHECK(engine_->Add(std::move(r)).ok());
    }
  }

  /// Steps so often; how many were given while another was under way.
  int Run(int steps) {
    int behind = 0;
    for (int i = 0; i < steps && engine_->Begin(); ++i) {
      behind += engine_->executor().under_way() == 2;
      engine_->Finish();
    }
    return behind;
  }
  std::map<AnswerKey, std::string> Answers() {
    std::map<AnswerKey, std::string> out;
    for (const auto& [key, answer] : engine_->answers) out[key] = answer.Text();
    return out;
  }
  SteppedEngine& engine() { return *engine_; }
  RankThreads& ranks() { return ranks_; }

  static constexpr int kWhole = 30;  ///< steps, and more, of all answers

 private:
  static constexpr int kSequences = 4, kPositions = 64, kBlocks = 24;
  static RankThreads::Options OptionsFor(const RankThreads::Shape& shape) {
    ModelSource source{.path = "tests/data/tiny-llama", .dummy_weights = true, .dummy_seed = 7};
    source.context_tokens = kPositions;
    source.max_sequences = kSequences;
    source.max_logit_rows = kSequences;
    source.recorded_rows = {4};
    const auto gpu = [](int number) { return kernels::MakeCudaOps({.device = number}).value(); };
    return {.source = source, .device = gpu, .shape = shape, .max_tokens = 64, .blocks = kBlocks};
  }

  RankThreads ranks_;
  std::unique_ptr<SteppedEngine> engine_;
};

const std::map<AnswerKey, std::string>& AnswersOfOneGpuStepByStep() {
  static const std::map<AnswerKey, std::string> answers = [] {
    OnGpus alone({.width = 2}, /*ahead=*/false);
    alone.Run(OnGpus::kWhole);
    return alone.Answers();
  }();
  return answers;
}

class OverGpus : public testing::TestWithParam<RankThreads::Shape> {};

TEST_P(OverGpus, AnswersAreThoseOfOneGpuOneStepAtATime) {
  OnGpus ahead(GetParam(), /*ahead=*/true);
  EXPECT_GE(ahead.Run(OnGpus::kWhole), 4) << "given while another step was under way";
  EXPECT_GE(ahead.engine().steps_ahead, 9);
  EXPECT_EQ(ahead.Answers(), AnswersOfOneGpuStepByStep());
}

// Of rank 0, in the middle of answers: two steps, of which one is given while the other is under way, in turns.
TEST_P(OverGpus, ADecodeStepIsOneCopyOneReplayAndOneCopyBack) {
  OnGpus ahead(GetParam(), /*ahead=*/true);
  ahead.Run(6);  // prompts, and a step that connects the ranks before it is recorded
  const kernels::DeviceWork before = ahead.ranks().ops().device_work();
  EXPECT_EQ(ahead.Run(4), 2);
  const kernels::DeviceWork after = ahead.ranks().ops().device_work();
  EXPECT_EQ(after.replays - before.replays, 4);
  EXPECT_EQ(after.launches - before.launches, 0);
  EXPECT_EQ(after.copies - before.copies, 8);
  EXPECT_EQ(after.waits - before.waits, 4) << "for the tokens";
}

// A worker that has become one that prefills: rank 0 follows its layers, which the others do not know of.
TEST_P(OverGpus, AStepWhoseLayersRankZeroFollowsIsRecordedByNoRank) {
  struct Follower final : LayerObserver {
    void OnLayerKv(const StepPlan&, int) override { ++layers; }
    int layers = 0;
  } follower;
  OnGpus followed(GetParam(), /*ahead=*/false);
  followed.engine().executor().UseObserver(&follower);
  followed.Run(OnGpus::kWhole);
  EXPECT_EQ(followed.Answers(), AnswersOfOneGpuStepByStep());
  EXPECT_EQ(followed.ranks().ops().device_work().replays, 0);
  EXPECT_GT(follower.layers, OnGpus::kWhole / 2);
}

INSTANTIATE_TEST_SUITE_P(Shapes, OverGpus,
                         testing::Values(RankThreads::Shape{.tensor = 2, .width = 2},
                                         RankThreads::Shape{.stages = 2, .width = 2}),
                         [](const auto& info) { return info.param.tensor > 1 ? "Tensor" : "Stages"; });

TEST(StepsAheadOverGpus, ARankThatIsLostEndsBothSteps) {
  OnGpus ahead({.tensor = 2, .width = 2}, /*ahead=*/true);
  bool both = false;
  while (!both) {
    ASSERT_TRUE(ahead.engine().Begin());
    both = ahead.engine().executor().under_way() == 2;
    if (both) ahead.ranks().Abort(absl::UnavailableError("rank 1 does not answer"));
    ahead.engine().Finish();
  }
  ahead.engine().RunAll();
  for (const auto& [key, answer] : ahead.engine().answers)
    EXPECT_TRUE(absl::IsUnavailable(answer.error)) << key.first << ": " << answer.error;
}

}  // namespace
}  // namespace baton::engine
