#include "worker/process/engine_shell.h"

#include <algorithm>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

#include "common/status.h"
#include "kernels/logprob_limit.h"
#include "worker/process/nothing_runs.h"

namespace baton::worker {
namespace {

engine::EngineOptions Options(const WorkerConfig& config, const LoadedModel& loaded) {
  engine::EngineOptions out;
  out.scheduler = SchedulerOptionsOf(config, loaded.max_model_len);
  out.scheduler.vocab_size = loaded.model->config().vocab_size;
  out.plan_ahead = config.steps_ahead();
  out.cache.enable_prefix_caching = config.enable_prefix_caching;
  out.cache.model_digest = loaded.model->config().digest;
  return out;
}

// A mask takes some 50 µs of one thread; most of the machine is for the model.
int GrammarThreads() { return static_cast<int>(std::clamp(std::thread::hardware_concurrency() / 8, 2U, 4U)); }

}  // namespace

engine::SchedulerOptions SchedulerOptionsOf(const WorkerConfig& config, int32_t max_model_len) {
  engine::SchedulerOptions out;
  out.max_model_len = max_model_len;
  if (config.on_gpu()) out.max_logprobs = kernels::kMostCudaLogprobs;
  out.max_num_seqs = config.max_num_seqs;
  out.max_num_batched_tokens = config.max_num_batched_tokens;
  out.max_prefill_chunk = config.long_prefill_token_threshold;
  if (config.max_num_partial_prefills > 1 && config.long_prefill_token_threshold == 0)  // as vLLM: 4 %
    out.max_prefill_chunk = std::max(1, max_model_len / 25);
  out.max_partial_prefills = config.max_num_partial_prefills;
  out.max_long_partial_prefills = out.max_prefill_chunk > 0 ? config.max_long_partial_prefills : 0;
  out.max_step_ms = config.max_step_ms;
  out.max_stall_ms = config.max_stall_ms;
  out.max_waiting_requests = config.max_waiting_requests;
  out.max_waiting_tokens = config.max_waiting_tokens;
  return out;
}

EngineShell::EngineShell(const WorkerConfig& config, LoadedModel loaded, const HashKey& key, std::string incarnation,
                         const Clock& clock, std::unique_ptr<Role> role)
    : loaded_(std::move(loaded)),
      hasher_(key),
      role_(std::move(role)),
      acting_(role_.get()),
      book_({.vocab_size = loaded_.model->config().vocab_size}, role_ ? role_->tickets() : nullptr),
      hub_(std::move(incarnation)),
      grammars_(loaded_.grammars ? std::make_unique<engine::GrammarPool>(loaded_.grammars, GrammarThreads()) : nullptr),
      leak_blocks_(config.test_leaked_blocks),
      engine_(Options(config, loaded_),
              {.model = *loaded_.model,
               .memory = *loaded_.memory,
               .ops = *loaded_.ops,
               .hasher = hasher_,
               .clock = clock,
               .policy = role_ ? role_->policy() : nullptr,
               .observer = role_ ? role_->observer() : nullptr,
               .grammars = grammars_.get(),
               .channel = loaded_.channel.get()},
              [this](engine::EngineOutputs outputs, engine::Scheduler& scheduler) {
                OnOutputs(std::move(outputs), scheduler);
              }) {
  if (role_) StartRole(*role_);
  engine_.Post([this](engine::Scheduler&, TimePoint) { hub_.SendState(v1::WorkerState::STATE_READY, ""); });
}

EngineShell::~EngineShell() { Shutdown(); }

void EngineShell::OnOutputs(engine::EngineOutputs outputs, engine::Scheduler& scheduler) {
  if (acting_ != nullptr) acting_->OnOutputs(outputs.sequences, scheduler);
  book_.OnOutputs(std::move(outputs.sequences), outputs.step);
  if (outputs.kv.gap || !outputs.kv.events.empty()) hub_.OnKvEvents(outputs.kv, scheduler);
}

void EngineShell::OnRelay(std::shared_ptr<RelayWriter> sink, std::shared_ptr<const v1::RelayUp> message,
                          std::function<void()> done) {
  engine_.Post([this, sink = std::move(sink), message = std::move(message), done = std::move(done)](
                   engine::Scheduler& scheduler, TimePoint now) {
    book_.OnMessage(sink, *message, scheduler, now);
    for (const v1::Renewal& renewal : message->renewal()) {
      if (acting_ != nullptr) acting_->OnRenewal(renewal, sink->router());
    }
    for (const v1::Meet& meet : message->meet()) {
      if (acting_ != nullptr) acting_->OnMeet(meet);
    }
    done();
  });
}

void EngineShell::OnRelayEnd(std::shared_ptr<RelayWriter> sink) {
  engine_.Post([this, sink = std::move(sink)](engine::Scheduler& scheduler, TimePoint now) {
    book_.OnStreamEnd(sink.get(), scheduler, now);
  });
}

void EngineShell::AddWatcher(std::shared_ptr<WatchSink> sink, const LoadTerms& terms) {
  engine_.Post([this, sink = std::move(sink), terms](engine::Scheduler& scheduler, TimePoint) {
    hub_.Add(sink, terms, scheduler);
    report_every_ = hub_.ShortestInterval(kLoadInterval);
  });
}

void EngineShell::RemoveWatcher(std::shared_ptr<WatchSink> sink) {
  engine_.Post([this, sink = std::move(sink)](engine::Scheduler&, TimePoint) {
    hub_.Remove(sink.get());
    report_every_ = hub_.ShortestInterval(kLoadInterval);
  });
}

void EngineShell::Tick() {
  if (tick_posted_.exchange(true)) return;
  engine_.PostBehind([this](engine::Scheduler& scheduler, TimePoint) {
    tick_posted_ = false;
    if (acting_ == nullptr) return;
    acting_->OnTick(scheduler);
    if (when_nothing_runs_.empty() || !NothingRuns(scheduler.Idle(), book_, acting_)) return;
    for (auto& drained : std::exchange(when_nothing_runs_, {})) drained();
  });
}

/// Owners in the pools that neither the scheduler nor the role accounts for.
int64_t EngineShell::LeakedBlocks(engine::Scheduler& scheduler) const {
  int64_t leaked = 0;
  for (int32_t g = 0; g < scheduler.cache().num_groups(); ++g) {
    leaked += scheduler.cache().pool(g).total_owners() - scheduler.OwnedBlocks(g) -
              (acting_ != nullptr ? acting_->OwnedBlocks(g) : 0);
  }
  return leaked;
}

void EngineShell::ReportLoad() {
  if (load_posted_.exchange(true)) return;
  engine_.PostBehind([this](engine::Scheduler& scheduler, TimePoint now) {
    load_posted_ = false;
    book_.Tick(scheduler, now);
    if (leak_blocks_ > 0 && leak_.tables.empty()) {
      leak_ = scheduler.cache().Start("", "");
      scheduler.cache().Grow(leak_, leak_blocks_ * scheduler.cache().pool(0).tokens_per_block());
    }
    const engine::SchedulerLoad load = scheduler.Load();
    rates_.Take(load);
    v1::Load wire = EncodeLoad(load);
    wire.set_prefill_tokens_per_s(rates_.prefill_tokens_per_s());
    wire.set_decode_step_ms(rates_.step_ms());
    wire.set_last_step_ms(rates_.step_ms());
    wire.set_leaked_kv_blocks(LeakedBlocks(scheduler));
    wire.set_calls_refused(calls_refused_);
    if (grammars_) *wire.mutable_grammars() = EncodeGrammars(grammars_->counts());
    if (acting_ != nullptr) acting_->FillLoad(*wire.mutable_handoff());
    hub_.SendLoad(wire, now);
  });
}

void EngineShell::Drain(std::function<void()> drained) {
  engine_.Post([this](engine::Scheduler&, TimePoint) {
    book_.Drain();
    if (acting_ != nullptr) acting_->Drain();
    hub_.SendState(v1::WorkerState::STATE_DRAINING, "draining");
  });
  engine_.WhenIdle([this, drained = std::move(drained)] {  // on the scheduler thread
    if (acting_ == nullptr || down_ || NothingRuns(/*engine_idle=*/true, book_, acting_)) return drained();
    when_nothing_runs_.push_back(drained);
  });
}

void EngineShell::Resume() {
  engine_.Post([this](engine::Scheduler&, TimePoint) {
    book_.Resume();
    if (acting_ != nullptr) acting_->Resume();
    hub_.SendState(v1::WorkerState::STATE_READY, "");
  });
}

void EngineShell::StartRole(Role& role) {
  role.Start([this](engine::Engine::Task task) { engine_.Post(std::move(task)); }, &book_);
}

std::string EngineShell::LandingAddress() const {
  std::shared_lock lock(role_mutex_);
  return role_ ? role_->LandingAddress() : std::string();
}

v1::WorkerRole EngineShell::wire_role() const {
  std::shared_lock lock(role_mutex_);
  return role_ ? role_->wire_role() : v1::WORKER_ROLE_BOTH;
}

bool EngineShell::WithRole(const std::function<void(Role&)>& call) const {
  std::shared_lock lock(role_mutex_);
  if (role_) call(*role_);
  return role_ != nullptr;
}

absl::Status EngineShell::OnSchedulerThread(const std::function<void()>& work) {
  std::promise<void> done;
  const bool posted = engine_.Post([&](engine::Scheduler&, TimePoint) {
    work();
    done.set_value();
  });
  if (!posted) return absl::UnavailableError("the engine has ended");
  done.get_future().wait();
  return absl::OkStatus();
}

// What legs have posted by now is posted under the lock that takes the role away, and runs before it ends.
absl::Status EngineShell::ChangeRole(const std::function<absl::StatusOr<std::unique_ptr<Role>>()>& make,
                                     const std::string& incarnation) {
  std::unique_ptr<Role> old;
  {
    std::lock_guard lock(role_mutex_);
    old = std::move(role_);
  }
  if (old) old->StopThreads();
  BATON_RETURN_IF_ERROR(OnSchedulerThread([&] {
    acting_ = nullptr;
    book_.UseTickets(nullptr);
    engine_.UseRole(nullptr, nullptr);
    if (old) old->LetGo();
    hub_.BeginAnew(incarnation, absl::UnavailableError("the worker changes its role"));
  }));
  old = nullptr;  // its memory and ports are the next one's
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Role> next, make());
  StartRole(*next);
  BATON_RETURN_IF_ERROR(OnSchedulerThread([&] {
    acting_ = next.get();
    book_.UseTickets(next->tickets());
    engine_.UseRole(next->policy(), next->observer());
    book_.Resume();
    hub_.SendState(v1::WorkerState::STATE_READY, "");
  }));
  std::lock_guard lock(role_mutex_);
  role_ = std::move(next);
  return absl::OkStatus();
}

void EngineShell::Shutdown() {
  down_ = true;
  if (role_) role_->StopThreads();
  engine_.Shutdown();
  leak_.Clear();
  if (loaded_.channel && !std::exchange(channel_ended_, true))
    loaded_.channel->End().IgnoreError();  // or they are gone
  if (role_) role_->LetGo();
  for (auto& drained : std::exchange(when_nothing_runs_, {})) drained();  // nothing lives any more
}

}  // namespace baton::worker
