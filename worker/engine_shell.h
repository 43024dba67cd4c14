// The engine and what this worker adds to its scheduler thread: the relay book and the event hub. Thread-safe methods
// post to that thread; nothing here blocks.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "engine/step/engine.h"
#include "worker/event_hub.h"
#include "worker/relay_book.h"
#include "worker/start_up.h"

namespace baton::worker {

class EngineShell {
 public:
  EngineShell(const WorkerConfig& config, LoadedModel loaded, const HashKey& key, std::string incarnation, const Clock& clock);
  ~EngineShell();

  const LoadedModel& loaded() const { return loaded_; }

  /// `done` runs on the scheduler thread after the message took effect.
  void OnRelay(std::shared_ptr<RelaySink> sink, std::shared_ptr<const v1::RelayUp> message, std::function<void()> done);
  void OnRelayEnd(std::shared_ptr<RelaySink> sink);
  void AddWatcher(std::shared_ptr<WatchSink> sink);
  void RemoveWatcher(std::shared_ptr<WatchSink> sink);
  /// Sends a load report to every watcher.
  void ReportLoad();

  /// Refuses new requests; `drained` runs on the scheduler thread once nothing lives.
  void Drain(std::function<void()> drained);
  /// Ends everything and joins the engine's threads.
  void Shutdown();

 private:
  void OnOutputs(engine::EngineOutputs outputs, engine::Scheduler& scheduler);
  void MeasureRates(const engine::SchedulerLoad& load, TimePoint now);

  const Clock& clock_;
  LoadedModel loaded_;
  PrefixHasher hasher_;
  // Scheduler thread only, from here …
  RelayBook book_;
  EventHub hub_;
  TimePoint rates_at_;
  int64_t rates_prompt_tokens_ = 0, rates_steps_ = 0;
  double prefill_tokens_per_s_ = 0, step_ms_ = 0;
  // … to here.
  engine::Engine engine_;  // last: its threads use the above
};

}  // namespace baton::worker
