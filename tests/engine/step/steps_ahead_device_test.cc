// Steps that a GPU is given before the tokens of the running one are read: the answers are those of one step at a time.
#include <gtest/gtest.h>

#include "tests/engine/model/random_steps.h"
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

TEST(StepsAheadOnADevice, AnswersAreThoseOfOneStepAtATime) {
  OnDevice between(false), ahead(true);
  between.Run();
  ahead.Run();
  EXPECT_GT(ahead.engine().steps_ahead, 10);
  EXPECT_GT(ahead.work().replays, ahead.engine().steps_ahead) << "and each is one replay";
  ASSERT_EQ(ahead.engine().answers.size(), between.engine().answers.size());
  int whole = 0;
  for (const auto& [key, want] : between.engine().answers) {
    const Answer& got = ahead.engine().answers.at(key);
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

}  // namespace
}  // namespace baton::engine
