#include "engine/step/engine.h"

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace baton::engine {
namespace {

struct SubmitMessage {
  Request request;
  Engine::Answer answer;
};
struct AttachMessage {
  AttachedRequest attached;
  Engine::Answer answer;
};
struct CancelMessage {
  RequestKey key;
  std::optional<uint32_t> sequence_index;
  Engine::Answer answer;
};
struct CreditMessage {
  RequestKey key;
  uint32_t sequence_index;
  int32_t position;
};
struct StatsMessage {
  std::function<void(const SchedulerLoad&)> answer;
};
struct TaskMessage {
  Engine::Task task;
  bool behind = false;
};
struct DrainMessage {
  std::function<void()> drained;
};
struct ShutdownMessage {};
struct StepDone {
  absl::StatusOr<StepResult> result;
};

using Message = std::variant<SubmitMessage, AttachMessage, CancelMessage, CreditMessage, StatsMessage, TaskMessage,
                             DrainMessage, ShutdownMessage, StepDone>;

}  // namespace

class Engine::Threads {
 public:
  Threads(const EngineOptions& options, Model& model, KvMemory& memory, kernels::Ops& ops, const PrefixHasher& hasher,
          const Clock& clock, RolePolicy* policy, OutputCallback on_outputs, LayerObserver* observer,
          StepChannel* channel)
      : max_messages_(static_cast<size_t>(options.max_messages)),
        clock_(clock),
        on_outputs_(std::move(on_outputs)),
        cache_(memory.layout(), memory.num_blocks(), hasher, options.cache),
        scheduler_(options.scheduler, cache_, policy != nullptr ? *policy : default_policy_),
        executor_(model, memory, ops, observer, channel),
        executor_thread_([this] { RunExecutor(); }),
        scheduler_thread_([this] { RunScheduler(); }) {}

  ~Threads() { Shutdown(); }

  /// Takes the message, or refuses with a reason and leaves it alone. Requests are bounded, the rest is not: cancels,
  /// credits and results are bounded by the requests that live, and refusing them would leak.
  absl::Status Push(Message&& message, bool is_request) {
    std::unique_lock lock(mutex_);
    if (is_request && closed_) return absl::UnavailableError("the engine is draining or down");
    if (is_request && inbox_.size() >= max_messages_) {
      return absl::ResourceExhaustedError(absl::StrCat("the engine's inbox is full: ", inbox_.size(), " messages"));
    }
    if (stopped_) return absl::UnavailableError("the engine is down");
    inbox_.push_back(std::move(message));
    lock.unlock();
    wake_.notify_one();
    return absl::OkStatus();
  }

  void CloseRequests() {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }

  void Shutdown() {
    BATON_CHECK(std::this_thread::get_id() != scheduler_thread_.get_id(), "Shutdown from a callback");
    CloseRequests();
    Push(ShutdownMessage{}, false).IgnoreError();
    if (scheduler_thread_.joinable()) scheduler_thread_.join();
    if (executor_thread_.joinable()) executor_thread_.join();
  }

 private:
  // ---- executor thread
  void RunExecutor() {
    for (;;) {
      std::optional<StepPlan> plan;
      {
        std::unique_lock lock(plan_mutex_);
        plan_ready_.wait(lock, [&] { return next_plan_.has_value() || executor_ends_; });
        if (!next_plan_.has_value()) return;
        plan = std::exchange(next_plan_, std::nullopt);
      }
      absl::StatusOr<StepResult> result = executor_.Execute(*plan);
      BATON_CHECK(Push(StepDone{std::move(result)}, false).ok());
    }
  }

  void GivePlan(const StepPlan& plan) {
    executor_.ClearCancel();
    {
      std::lock_guard lock(plan_mutex_);
      next_plan_ = plan;
    }
    plan_ready_.notify_one();
  }

  // ---- scheduler thread
  void RunScheduler() {
    while (!(ending_ && scheduler_.Idle() && !running_plan_.has_value())) {
      WaitForMessages();
      HandleBatch();
      RunBehind();
      if (ending_) scheduler_.CancelAll(clock_.Now());  // what a task of this turn added, too
      if (scheduler_.RunningPlanAbandoned()) executor_.Cancel();
      StartStep();
      Publish();
      if (!drained_.empty() && scheduler_.Idle()) {
        for (auto& drained : std::exchange(drained_, {})) drained();
      }
    }
    {
      std::lock_guard lock(mutex_);
      stopped_ = true;
      batch_.swap(inbox_);
    }
    for (Message& m : batch_) Refuse(m);
    batch_.clear();
    {
      std::lock_guard lock(plan_mutex_);
      executor_ends_ = true;
    }
    plan_ready_.notify_one();
  }

  void WaitForMessages() {
    // Deadlines are looked at when a step is planned; while one runs its result wakes us.
    const TimePoint deadline = running_plan_.has_value() ? TimePoint::max() : scheduler_.NextDeadline();
    std::unique_lock lock(mutex_);
    const auto has_message = [&] { return !inbox_.empty(); };
    if (deadline == TimePoint::max()) {
      wake_.wait(lock, has_message);
    } else {
      wake_.wait_for(lock, std::max(Duration(0), deadline - clock_.Now()), has_message);
    }
    batch_.swap(inbox_);
  }

  void HandleBatch() {
    for (Message& m : batch_) {
      auto* task = std::get_if<TaskMessage>(&m);
      if (task != nullptr && task->behind) {
        behind_.push_back(std::move(task->task));
      } else {
        std::visit([this](auto& message) { Handle(message); }, m);
      }
    }
    batch_.clear();
  }

  /// However long this thread stood still before them: what has come since is taken first.
  void RunBehind() {
    if (behind_.empty()) return;
    {
      std::lock_guard lock(mutex_);
      batch_.swap(inbox_);
    }
    HandleBatch();
    for (const Engine::Task& task : std::exchange(behind_, {})) task(scheduler_, clock_.Now());
  }

  void StartStep() {
    if (running_plan_.has_value()) return;
    StepPlan plan = scheduler_.PlanStep(clock_.Now());
    if (plan.empty()) return;
    running_plan_ = std::move(plan);
    GivePlan(*running_plan_);
  }

  void Publish() {
    EngineOutputs out;
    for (SequenceOutput& o : scheduler_.TakeOutputs()) pending_.push_back(std::move(o));
    out.sequences = std::exchange(pending_, {});
    out.kv = cache_.TakeEvents();
    out.step = committed_;
    if (!out.sequences.empty() || !out.kv.events.empty() || out.kv.gap || std::exchange(step_committed_, false)) {
      on_outputs_(std::move(out), scheduler_);
    }
  }

  void Handle(SubmitMessage& m) { m.answer(scheduler_.AddRequest(std::move(m.request), clock_.Now())); }
  void Handle(AttachMessage& m) { m.answer(scheduler_.AttachRequest(std::move(m.attached), clock_.Now())); }
  void Handle(CancelMessage& m) {
    const bool found = m.sequence_index.has_value() ? scheduler_.CancelSequence(m.key, *m.sequence_index, clock_.Now())
                                                    : scheduler_.Cancel(m.key, clock_.Now());
    if (m.answer)
      m.answer(found ? absl::OkStatus() : absl::NotFoundError(absl::StrCat("request ", m.key, " has ended")));
  }
  void Handle(CreditMessage& m) { scheduler_.SetCredit(m.key, m.sequence_index, m.position, clock_.Now()); }
  void Handle(StatsMessage& m) { m.answer(scheduler_.Load()); }
  void Handle(TaskMessage& m) { m.task(scheduler_, clock_.Now()); }
  void Handle(DrainMessage& m) {
    if (m.drained) drained_.push_back(std::move(m.drained));
  }
  void Handle(ShutdownMessage&) { ending_ = true; }
  void Handle(StepDone& m) {
    const TimePoint now = clock_.Now();
    const StepPlan plan = std::move(*std::exchange(running_plan_, std::nullopt));
    std::vector<SequenceOutput> outputs = m.result.ok() ? scheduler_.Commit(plan, *m.result, now)
                                                        : scheduler_.CommitFailure(plan, m.result.status(), now);
    for (SequenceOutput& o : outputs) pending_.push_back(std::move(o));
    committed_ = plan.step;
    step_committed_ = true;
  }

  /// Answers what came after the end.
  void Refuse(Message& m) {
    const absl::Status down = absl::UnavailableError("the engine is down");
    if (auto* submit = std::get_if<SubmitMessage>(&m)) submit->answer(down);
    if (auto* attach = std::get_if<AttachMessage>(&m)) attach->answer(down);
    if (auto* cancel = std::get_if<CancelMessage>(&m); cancel != nullptr && cancel->answer) cancel->answer(down);
    if (auto* stats = std::get_if<StatsMessage>(&m)) stats->answer(scheduler_.Load());
    if (auto* drain = std::get_if<DrainMessage>(&m); drain != nullptr && drain->drained) drain->drained();
  }

  const size_t max_messages_;
  const Clock& clock_;
  const OutputCallback on_outputs_;
  RolePolicy default_policy_;

  // Scheduler thread's.
  KvCache cache_;
  Scheduler scheduler_;
  std::optional<StepPlan> running_plan_;
  std::vector<Message> batch_;
  std::vector<Engine::Task> behind_;
  std::vector<SequenceOutput> pending_;
  std::vector<std::function<void()>> drained_;  ///< everybody who asked
  uint64_t committed_ = 0;
  bool step_committed_ = false;
  bool ending_ = false;

  // Executor thread's (but Cancel).
  Executor executor_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Message> inbox_;
  bool closed_ = false;
  bool stopped_ = false;

  std::mutex plan_mutex_;
  std::condition_variable plan_ready_;
  std::optional<StepPlan> next_plan_;
  bool executor_ends_ = false;

  std::thread executor_thread_;
  std::thread scheduler_thread_;
};

Engine::Engine(const EngineOptions& options, Model& model, KvMemory& memory, kernels::Ops& ops,
               const PrefixHasher& hasher, const Clock& clock, RolePolicy* policy, OutputCallback on_outputs,
               LayerObserver* observer, StepChannel* channel)
    : threads_(std::make_unique<Threads>(options, model, memory, ops, hasher, clock, policy, std::move(on_outputs),
                                         observer, channel)) {}

Engine::~Engine() = default;

void Engine::Submit(Request request, Answer answer) {
  SubmitMessage message{std::move(request), answer};
  if (absl::Status s = threads_->Push(std::move(message), true); !s.ok()) answer(s);
}

void Engine::Attach(AttachedRequest attached, Answer answer) {
  AttachMessage message{std::move(attached), answer};
  if (absl::Status s = threads_->Push(std::move(message), true); !s.ok()) answer(s);
}

void Engine::Cancel(RequestKey key, Answer answer) {
  if (absl::Status s = threads_->Push(CancelMessage{key, std::nullopt, answer}, false); !s.ok() && answer) answer(s);
}

void Engine::CancelSequence(RequestKey key, uint32_t sequence_index, Answer answer) {
  if (absl::Status s = threads_->Push(CancelMessage{key, sequence_index, answer}, false); !s.ok() && answer) answer(s);
}

void Engine::Credit(RequestKey key, uint32_t sequence_index, int32_t position) {
  threads_->Push(CreditMessage{key, sequence_index, position}, false).IgnoreError();
}

void Engine::Stats(std::function<void(const SchedulerLoad&)> answer) {
  if (!threads_->Push(StatsMessage{answer}, false).ok()) answer(SchedulerLoad());
}

void Engine::Post(Task task) { threads_->Push(TaskMessage{std::move(task)}, false).IgnoreError(); }

void Engine::PostBehind(Task task) { threads_->Push(TaskMessage{std::move(task), true}, false).IgnoreError(); }

void Engine::Drain(std::function<void()> drained) {
  threads_->CloseRequests();
  if (!threads_->Push(DrainMessage{drained}, false).ok() && drained) drained();
}

void Engine::Shutdown() { threads_->Shutdown(); }

}  // namespace baton::engine
