// Drives scheduler and executor by hand, step by step, and checks invariants after each. One thread, a fake clock.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/step/executor.h"
#include "engine/step/scheduler.h"
#include "sim/fake_model.h"

namespace baton::engine {

/// Everything one choice answered.
struct Answer {
  std::vector<kernels::SampleResult> tokens;
  std::vector<kernels::SampleResult> prompt_logprobs;
  FinishReason finish = FinishReason::kNone;
  std::optional<int32_t> stop_token;
  bool nothing_allowed = false;
  absl::Status error;
  int32_t cached_tokens = 0;
  int32_t first_position = -1;  ///< of tokens[0]
  int32_t first_score = -1;     ///< of prompt_logprobs[0]
  Timings timings;
  /// What Promise A compares: token ids, logprob bits, ranks, finish.
  std::string Text() const;
};
using AnswerKey = std::pair<RequestKey, uint32_t>;

struct SteppedEngineOptions {
  SchedulerOptions scheduler;
  KvLayout layout = FakeLayout();
  std::vector<int32_t> num_blocks = {256};
  bool prefix_caching = true;
  bool ahead = false;                     ///< a step is planned while the one before it runs, where that can be
  bool later = false;                     ///< the fake model's tokens are drawn by a device (MakeFakeOps)
  uint64_t numerics = 0;                  ///< of the fake model
  int heads = 1;                          ///< of the fake model: so many of the layout's layers are one of its layers
  std::shared_ptr<GrammarPool> grammars;  ///< whoever drives it has its work done (Turn)
};

class SteppedEngine {
 public:
  /// With the fake model and ops; `channel` as below.
  explicit SteppedEngine(SteppedEngineOptions options, RolePolicy* policy = nullptr, StepChannel* channel = nullptr);
  /// With a real model; `options.layout` is the model's.
  /// `channel`: to the other ranks, where `options.layout` is that of rank 0.
  SteppedEngine(SteppedEngineOptions options, RolePolicy* policy, Model& model, kernels::Ops& ops,
                StepChannel* channel = nullptr);

  absl::Status Add(Request request) { return scheduler().AddRequest(std::move(request), now); }
  /// One step: plan, execute, commit, check. False when the plan was empty.
  bool Step();
  /// Plans and gives to the executor, and commits in Finish(): for what comes between. A step that is planned ahead is
  /// given in this call or in the next one, in turns.
  bool Begin();
  void Finish();
  /// Steps until nothing lives; dies after `max_steps`.
  void RunAll(int max_steps = 20000);
  /// Takes outputs into `answers`, checking their order.
  void Collect(std::vector<SequenceOutput> outputs);

  Scheduler& scheduler() { return *scheduler_; }
  KvCache& cache() { return *cache_; }
  FakeModel& fake() { return *fake_; }
  Executor& executor() { return *executor_; }
  KvMemory& memory() { return *memory_; }
  const KvLayout& layout() const { return memory_->layout(); }
  /// The plan that Finish will commit, or has committed.
  const StepPlan& plan() const { return plan_; }
  /// The next step that is given while another is under way is cancelled at once.
  bool cancel_behind = false;
  /// Steps that were planned ahead.
  int64_t steps_ahead = 0;
  const std::shared_ptr<GrammarPool>& grammars() const { return grammars_; }

  TimePoint now = FakeClock().Now();
  /// What a step takes on the fake clock.
  double ms_per_row = 0.1;
  /// Block owners held outside of the scheduler (pins), per group 0.
  int64_t pinned = 0;
  std::map<AnswerKey, Answer> answers;

 private:
  void Build(SteppedEngineOptions options, RolePolicy* policy, Model& model, kernels::Ops& ops, StepChannel* channel);
  std::shared_ptr<GrammarPool> grammars_;  ///< first: sequences end before it
  std::unique_ptr<FakeModel> fake_;
  std::unique_ptr<kernels::Ops> fake_ops_;
  RolePolicy default_policy_;
  PrefixHasher hasher_{HashKey{}};
  std::unique_ptr<KvMemory> memory_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<Executor> executor_;
  struct Given {
    StepPlan plan;
    bool enqueued = false;
    std::optional<absl::StatusOr<StepResult>> result{};  ///< once it is awaited
  };
  void Give(StepPlan plan);
  void Enqueue(Given& given);
  StepPlan plan_;
  bool ahead_ = false;
  std::deque<Given> given_;  ///< and not committed; two at most
};

/// `length` token ids from `seed`, below `vocab`.
std::vector<int32_t> RandomTokens(uint64_t seed, int32_t length, int32_t vocab = kFakeVocab);
/// A greedy request of `prompt` for `max_tokens` tokens.
Request MakeRequest(RequestKey key, std::vector<int32_t> prompt, int32_t max_tokens);

}  // namespace baton::engine
