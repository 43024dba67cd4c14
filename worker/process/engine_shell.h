// The engine and what this worker adds to its scheduler thread: the relay book and the event hub. Thread-safe methods
// post to that thread; nothing here blocks.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <shared_mutex>
#include <string>
#include <vector>

#include "engine/step/engine.h"
#include "worker/process/measured_rates.h"
#include "worker/process/role_service.h"
#include "worker/process/start_up.h"
#include "worker/relay/event_hub.h"
#include "worker/relay/relay_book.h"

namespace baton::worker {

/// What the flags say of steps, for a context of `max_model_len` tokens.
engine::SchedulerOptions SchedulerOptionsOf(const WorkerConfig& config, int32_t max_model_len);

class EngineShell {
 public:
  /// `role` may be null: `--role both`.
  EngineShell(const WorkerConfig& config, LoadedModel loaded, const HashKey& key, std::string incarnation,
              const Clock& clock, std::unique_ptr<Role> role);
  ~EngineShell();

  const LoadedModel& loaded() const { return loaded_; }
  /// Where KV is taken; empty: nowhere. Any thread.
  std::string LandingAddress() const;
  /// Any thread.
  v1::WorkerRole wire_role() const;
  /// Calls one of its legs, which do not block; any thread. False: there is no role (`both`), or it changes now.
  bool WithRole(const std::function<void(Role&)>& call) const;

  /// `done` runs on the scheduler thread after the message took effect.
  void OnRelay(std::shared_ptr<RelayWriter> sink, std::shared_ptr<const v1::RelayUp> message,
               std::function<void()> done);
  void OnRelayEnd(std::shared_ptr<RelayWriter> sink);
  /// It hears the load by `terms`.
  void AddWatcher(std::shared_ptr<WatchSink> sink, const LoadTerms& terms);
  void RemoveWatcher(std::shared_ptr<WatchSink> sink);
  /// Moves the role's time on; every 10 ms or so.
  void Tick();
  /// Sends a load report to every watcher for whom it is time, and ends what no router has renewed.
  void ReportLoad();
  /// How often ReportLoad is to be called. Any thread.
  Duration report_every() const { return report_every_; }
  /// Calls that were refused since the start, for the next report.
  void SetCallsRefused(int64_t calls) { calls_refused_ = calls; }

  /// Refuses new requests; `drained` runs once nothing lives: on the scheduler thread, or on that of Shutdown, or, when
  /// that has been, on the caller's.
  void Drain(std::function<void()> drained);
  /// Takes requests again.
  void Resume();
  /// Another role, of what `make` makes, as another incarnation; weights, KV and prefix cache stay. Only after
  /// `drained`; on a thread that may wait. Every watcher's stream ends. Not OK: as `make`, and there is no role until
  /// another call of this.
  absl::Status ChangeRole(const std::function<absl::StatusOr<std::unique_ptr<Role>>()>& make,
                          const std::string& incarnation);
  /// Ends everything and joins the engine's threads.
  void Shutdown();

 private:
  void OnOutputs(engine::EngineOutputs outputs, engine::Scheduler& scheduler);
  int64_t LeakedBlocks(engine::Scheduler& scheduler) const;
  absl::Status OnSchedulerThread(const std::function<void()>& work);
  void StartRole(Role& role);

  LoadedModel loaded_;
  PrefixHasher hasher_;
  mutable std::shared_mutex role_mutex_;  ///< guards role_
  std::unique_ptr<Role> role_;            ///< null: `--role both`, or it changes now
  std::atomic<bool> tick_posted_{false}, load_posted_{false};
  std::atomic<bool> down_{false};
  std::atomic<int64_t> calls_refused_{0};
  std::atomic<Duration> report_every_{kLoadInterval};
  bool channel_ended_ = false;  ///< Shutdown's
  // Scheduler thread only, from here …
  Role* acting_;  ///< role_, where it is there
  RelayBook book_;
  EventHub hub_;
  MeasuredRates rates_;
  std::vector<std::function<void()>> when_nothing_runs_;
  const std::unique_ptr<engine::GrammarPool> grammars_;  ///< null: grammars are refused
  const int32_t leak_blocks_;                            ///< for tests
  engine::SequenceKv leak_;
  // … to here.
  engine::Engine engine_;  // last: its threads use the above
};

}  // namespace baton::worker
