// The watch side of a worker: KV events, load and state, numbered per watcher, a snapshot first. Sans-IO; scheduler
// thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "engine/cache/kv_event.h"
#include "engine/sampling/answer_grammar.h"
#include "engine/step/scheduler.h"
#include "worker/relay/load_reports.h"
#include "worker/relay/wire_stream.h"

namespace baton::worker {

class EventHub {
 public:
  explicit EventHub(std::string incarnation) : incarnation_(std::move(incarnation)) {}

  /// Adds a watcher that hears the load by `terms`: sends it the snapshot of the cache and the state.
  void Add(std::shared_ptr<WatchSink> sink, const LoadTerms& terms, engine::Scheduler& scheduler);
  void Remove(const WatchSink* sink);
  /// Sends the units that were stored and removed; after a gap, every watcher gets a new snapshot.
  void OnKvEvents(const engine::KvEvents& events, engine::Scheduler& scheduler);
  /// Sends it to the watchers to whom it is due. To be called every `ShortestInterval()` at least.
  void SendLoad(const v1::Load& load, TimePoint now);
  /// The least LoadTerms::every of a watcher, or `otherwise` if that is less.
  Duration ShortestInterval(Duration otherwise) const;
  void SendState(v1::WorkerState::State state, const std::string& detail);
  /// Ends every watcher's stream so; those that come from now on hear this incarnation.
  void BeginAnew(std::string incarnation, const absl::Status& why);
  size_t watchers() const { return watchers_.size(); }

 private:
  struct Watcher {
    std::shared_ptr<WatchSink> sink;
    LoadReports reports;
    uint64_t sequence_number = 0;
  };
  void Send(Watcher& watcher, v1::WorkerEvent event);
  void SendAll(const v1::WorkerEvent& event);
  void SendSnapshot(Watcher& watcher, engine::Scheduler& scheduler);

  std::string incarnation_;
  v1::WorkerState state_;
  std::vector<Watcher> watchers_;
  uint64_t digest_ = 0;  ///< wrapping sum of the low 64 bits of every stored hash
};

/// The load as the wire says it; the rates are filled in by the caller.
v1::Load EncodeLoad(const engine::SchedulerLoad& load);
/// What grammars have cost.
v1::GrammarLoad EncodeGrammars(const engine::GrammarPoolCounts& counts);

}  // namespace baton::worker
