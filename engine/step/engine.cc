#include "engine/step/engine.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "common/check.h"

namespace baton::engine {

class Engine::Threads {
 public:
  Threads(const EngineOptions& options, const EngineParts& parts, OutputCallback on_outputs)
      : clock_(parts.clock),
        plan_ahead_(options.plan_ahead),
        on_outputs_(std::move(on_outputs)),
        grammars_(parts.grammars),
        cache_(parts.memory.layout(), parts.memory.num_blocks(), parts.hasher, options.cache),
        scheduler_(options.scheduler, cache_, parts.policy != nullptr ? *parts.policy : default_policy_,
                   parts.grammars),
        executor_(parts.model, parts.memory, parts.ops, parts.observer, parts.channel) {
    // A sequence that sat out may be planned again.
    if (grammars_ != nullptr) grammars_->OnReady([this] { Post([](Scheduler&, TimePoint) {}); });
    executor_thread_ = std::thread([this] { RunExecutor(); });
    scheduler_thread_ = std::thread([this] { RunScheduler(); });
  }

  ~Threads() {
    Shutdown();
    if (grammars_ != nullptr) grammars_->OnReady(nullptr);
  }

  bool Post(Task task, bool behind = false) {
    {
      std::lock_guard lock(mutex_);
      if (down_) return false;
      (behind ? posted_behind_ : posted_).push_back(std::move(task));
    }
    wake_.notify_one();
    return true;
  }

  void WhenIdle(std::function<void()> idle) {
    if (!Post([this, idle](Scheduler&, TimePoint) { when_idle_.push_back(idle); })) idle();
  }

  /// The executor reads its observer in a step: it is given one behind this.
  void UseRole(RolePolicy* policy, LayerObserver* observer) {
    BATON_CHECK(scheduler_.Idle() && running_plans_.empty(), "the role changes while a request lives");
    scheduler_.UsePolicy(policy != nullptr ? *policy : default_policy_);
    executor_.UseObserver(observer);
  }

  void Shutdown() {
    BATON_CHECK(std::this_thread::get_id() != scheduler_thread_.get_id(), "Shutdown from a callback");
    Post([this](Scheduler&, TimePoint) { ending_ = true; });
    if (scheduler_thread_.joinable()) scheduler_thread_.join();
    if (executor_thread_.joinable()) executor_thread_.join();
  }

 private:
  using Plan = std::shared_ptr<const StepPlan>;

  // ---- scheduler thread
  void RunScheduler() {
    while (!(ending_ && scheduler_.Idle() && running_plans_.empty())) {
      AwaitTasks();
      RunTasks();
      if (ending_) scheduler_.CancelAll(clock_.Now());  // what a task of this turn added, too
      if (scheduler_.RunningPlanAbandoned()) executor_.Cancel();
      StartSteps();
      Publish();
      SayIdle();
    }
    TakeNoMore();
    RunTasks();
    scheduler_.CancelAll(clock_.Now());
    Publish();
    SayIdle();
    EndExecutor();
  }

  void AwaitTasks() {
    // Deadlines are looked at when a step is planned; while one runs its result wakes us.
    const TimePoint deadline = !running_plans_.empty() ? TimePoint::max() : scheduler_.NextDeadline();
    std::unique_lock lock(mutex_);
    const auto posted = [&] { return !posted_.empty() || !posted_behind_.empty(); };
    if (deadline == TimePoint::max()) {
      wake_.wait(lock, posted);
    } else {
      wake_.wait_for(lock, std::max(Duration(0), deadline - clock_.Now()), posted);
    }
  }

  /// Those behind run after all that has come until then, however long this thread stood still before them.
  void RunTasks() {
    std::vector<Task> behind;
    RunPosted(&behind);
    if (behind.empty()) return;
    RunPosted(nullptr);
    for (const Task& task : behind) task(scheduler_, clock_.Now());
  }

  void RunPosted(std::vector<Task>* behind) {
    {
      std::lock_guard lock(mutex_);
      batch_.swap(posted_);
      if (behind != nullptr) behind->swap(posted_behind_);
    }
    for (const Task& task : batch_) task(scheduler_, clock_.Now());
    batch_.clear();
  }

  void StartSteps() {
    if (running_plans_.empty()) GivePlan(scheduler_.PlanStep(clock_.Now()));
    if (!plan_ahead_) return;
    if (running_plans_.size() == 1) GivePlan(scheduler_.PlanAhead(clock_.Now()));
    SayAllGiven();
  }

  void Commit(const absl::StatusOr<StepResult>& result) {
    const TimePoint now = clock_.Now();
    const Plan given = std::move(running_plans_.front());
    const StepPlan& plan = *given;
    running_plans_.pop_front();
    std::vector<SequenceOutput> outputs =
        result.ok() ? scheduler_.Commit(plan, *result, now) : scheduler_.CommitFailure(plan, result.status(), now);
    for (SequenceOutput& o : outputs) outputs_.push_back(std::move(o));
    committed_ = plan.step;
    step_committed_ = true;
  }

  void Publish() {
    EngineOutputs out;
    for (SequenceOutput& o : scheduler_.TakeOutputs()) outputs_.push_back(std::move(o));
    out.sequences = std::exchange(outputs_, {});
    out.kv = cache_.TakeEvents();
    out.step = committed_;
    if (!out.sequences.empty() || !out.kv.events.empty() || out.kv.gap || std::exchange(step_committed_, false)) {
      on_outputs_(std::move(out), scheduler_);
    }
  }

  void SayIdle() {
    if (when_idle_.empty() || !scheduler_.Idle()) return;
    for (const auto& idle : std::exchange(when_idle_, {})) idle();
  }

  void TakeNoMore() {
    std::lock_guard lock(mutex_);
    down_ = true;
  }

  // A cancel that it takes back was of steps whose sequences have all ended.
  void GivePlan(StepPlan plan) {
    if (plan.empty()) return;
    given_ = plan.step;
    running_plans_.push_back(std::make_shared<const StepPlan>(std::move(plan)));
    executor_.ClearCancel();
    {
      std::lock_guard lock(plan_mutex_);
      next_plans_.push_back(running_plans_.back());
    }
    plan_ready_.notify_one();
  }

  /// To the executor, which else waits for a step behind the one that the device computes.
  void SayAllGiven() {
    {
      std::lock_guard lock(plan_mutex_);
      all_given_ = {given_, committed_};
    }
    plan_ready_.notify_one();
  }

  void EndExecutor() {
    {
      std::lock_guard lock(plan_mutex_);
      executor_ends_ = true;
    }
    plan_ready_.notify_one();
  }

  // ---- executor thread
  /// A step that the device computes has its result awaited when another is enqueued behind it, or when the scheduler
  /// has none: it has then looked at what was told before. So the device has work while tokens are read and sent.
  void RunExecutor() {
    for (;;) {
      const Plan plan = executor_.Ready() || executor_.under_way() == 2 ? nullptr : TakePlan();
      if (plan != nullptr) {
        executor_.Enqueue(*plan);
        taken_ = plan->step;
      } else if (executor_.under_way() == 0) {
        return;
      }
      if (plan != nullptr && !executor_.Ready() && executor_.under_way() == 1) continue;
      absl::StatusOr<StepResult> result = executor_.Await();
      ++told_;
      BATON_CHECK(Post([this, result = std::move(result)](Scheduler&, TimePoint) { Commit(result); }));
    }
  }

  /// Null: none comes before the step that is under way has its result; and none at all when none is.
  Plan TakePlan() {
    std::unique_lock lock(plan_mutex_);
    plan_ready_.wait(lock, [&] {
      if (!next_plans_.empty() || executor_ends_) return true;
      return executor_.under_way() > 0 &&
             (!plan_ahead_ || (all_given_.step >= taken_ && all_given_.committed >= told_));
    });
    if (next_plans_.empty()) return nullptr;
    const Plan plan = std::move(next_plans_.front());
    next_plans_.pop_front();
    return plan;
  }

  const Clock& clock_;
  const bool plan_ahead_;
  const OutputCallback on_outputs_;
  GrammarPool* const grammars_;
  RolePolicy default_policy_;

  // Scheduler thread's.
  KvCache cache_;
  Scheduler scheduler_;
  std::deque<Plan> running_plans_;  ///< given and not committed; two at most
  std::vector<Task> batch_;
  std::vector<SequenceOutput> outputs_;  ///< to be published
  std::vector<std::function<void()>> when_idle_;
  uint64_t given_ = 0, committed_ = 0;  ///< steps
  bool step_committed_ = false;
  bool ending_ = false;

  // Executor thread's (but Cancel).
  Executor executor_;
  uint64_t taken_ = 0, told_ = 0;  ///< the last step that was enqueued, and the last whose result was posted

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Task> posted_, posted_behind_;
  bool down_ = false;

  std::mutex plan_mutex_;
  std::condition_variable plan_ready_;
  std::deque<Plan> next_plans_;
  struct {
    uint64_t step = 0, committed = 0;
  } all_given_;  ///< the scheduler has given all it has after this step, and after it has committed that one
  bool executor_ends_ = false;

  std::thread executor_thread_;
  std::thread scheduler_thread_;
};

Engine::Engine(const EngineOptions& options, const EngineParts& parts, OutputCallback on_outputs)
    : threads_(std::make_unique<Threads>(options, parts, std::move(on_outputs))) {}

Engine::~Engine() = default;

bool Engine::Post(Task task) { return threads_->Post(std::move(task)); }

bool Engine::PostBehind(Task task) { return threads_->Post(std::move(task), /*behind=*/true); }

void Engine::WhenIdle(std::function<void()> idle) { threads_->WhenIdle(std::move(idle)); }

void Engine::UseRole(RolePolicy* policy, LayerObserver* observer) { threads_->UseRole(policy, observer); }
void Engine::Shutdown() { threads_->Shutdown(); }

}  // namespace baton::engine
