// WorkerLink: the life of the connection to one worker of the static list.
//
//   dial ──Handshake──► loading (asked again) │ mismatch (asked again, slowly) │ ready: Watch + Relay run
//     ▲                                                                             │ a stream ends, or heartbeats
//     stop, └──────────── backoff ◄── lost: every request on it is told ◄─────────────────┘ or steps stop while work is
//     there
//
// Each handshake that succeeds starts a new session; a restarted worker (new incarnation) is simply a new session.
// The state machine runs on one executor (`home`); View, Attach, Cancel, Credit may be called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "router/executor.h"
#include "router/fleet/live_legs.h"
#include "router/fleet/worker_rpc.h"
#include "router/index/prefix_index.h"
#include "router/policy/load_ticket.h"
#include "router/router_config.h"

namespace baton::router {

/// Who gets the news of a leg. Called on `executor()`'s thread.
class RelaySink {
 public:
  virtual ~RelaySink() = default;
  virtual Executor& executor() = 0;
  virtual void OnNews(RelayNews&& news) = 0;
  virtual void OnWorkerLost(WorkerId worker, const absl::Status& why) = 0;
  // Answers to the legs of a handoff; `key` is the leg's.
  virtual void OnReserved(const LegKey& key, ReserveResult result) { (void)key, (void)result; }
  virtual void OnPrefillPiece(const LegKey& key, std::string prompt_logprobs) { (void)key, (void)prompt_logprobs; }
  virtual void OnPrefillEnd(const LegKey& key, PrefillResult result) { (void)key, (void)result; }
};

/// What the fleet tells links, and links ask the fleet. Called on the home executor.
class LinkHost {
 public:
  virtual ~LinkHost() = default;
  /// The key to greet a worker with; empty: adopt the worker's.
  virtual std::string GreetingKey(bool refused_before) = 0;
  /// OK: the worker may serve. FailedPrecondition: what differs, with both values.
  virtual absl::Status Admit(int32_t slot, const WorkerFacts& facts) = 0;
  /// It serves from now on.
  virtual void OnReady(int32_t slot) = 0;
};

/// A link at one moment.
struct LinkView {
  WorkerId id;
  LinkState state = LinkState::kConnecting;
  std::string address, detail, phase;
  double progress = 0;
  std::shared_ptr<const WorkerFacts> facts;  ///< null before the first handshake
  WorkerLoad load;
  bool has_load = false;
  int64_t others_queued_tokens = 0;  ///< of `load`, what this router did not send
  std::shared_ptr<OutstandingLoad> outstanding;
};

class WorkerLink : public std::enable_shared_from_this<WorkerLink> {
 public:
  WorkerLink(int32_t slot, const std::string& address, const RouterConfig& config, const std::string& router_id,
             const std::string& version, Executor& home, LinkHost& host, PrefixIndex& index, const Clock& clock);

  void Start();
  /// Tells every sink that the worker is lost and waits for the streams to end. Not on the home executor.
  void Stop();

  LinkView View() const;
  absl::Status Attach(WorkerId id, const Generation& generation, const AttachOrder& order,
                      std::shared_ptr<RelaySink> sink);
  /// A prefill worker connects to a decode worker. Home executor.
  void Meet(const std::string& landing_address);
  /// The sink hears of the worker's loss from now on.
  void Reserve(WorkerId id, const Generation& generation, const LegKey& key, uint32_t expiry_ms,
               std::shared_ptr<RelaySink> sink);
  void Prefill(WorkerId id, const Generation& generation, const LegKey& key, const TicketGrant& grant,
               uint32_t deadline_ms, std::shared_ptr<RelaySink> sink);
  void CancelLeg(WorkerId id, const LegKey& key, bool asks_again);
  /// Stops listening for this leg, and tells the worker if `tell`.
  void Cancel(WorkerId id, const std::string& leg_id, uint64_t attach_gen, std::optional<uint32_t> index);
  void Credit(WorkerId id, const std::string& leg_id, uint64_t attach_gen, uint32_t index, uint32_t tokens);
  void Forget(WorkerId id, const std::string& leg_id);

 private:
  void Dial();
  void OnHandshake(HandshakeAnswer answer);
  void OpenSession(WorkerFacts facts);
  void Watch();
  void OnWatch(uint64_t round, WatchEvent event);
  void WatchAgain(const std::string& why);
  void OnKvEvent(const WatchEvent& event);
  void OnRelay(std::vector<LegNews>& news);
  void Lost(uint64_t session, const absl::Status& why);
  void CheckLiveness();
  void RenewLegs(TimePoint now);
  void PrefillOver(WorkerId id, const LegKey& key);
  void DialAfter(Duration pause);
  void SetState(LinkState state, std::string detail, std::string phase = "", double progress = 0);
  Duration NextBackoff();

  const int32_t slot_;
  const RouterConfig& config_;
  Executor& home_;
  LinkHost& host_;
  PrefixIndex& index_;
  const Clock& clock_;
  WorkerRpc rpc_;
  std::unique_ptr<ExecutorTimer> dial_timer_, liveness_timer_;

  // ---- home executor only
  uint64_t session_ = 0;
  uint64_t watch_round_ = 0;  // of the Watch stream that counts
  uint64_t next_sequence_ = 1;
  uint64_t digest_ = 0;
  bool snapshot_open_ = true;
  bool key_refused_ = false;
  int32_t failures_ = 0;
  uint64_t steps_ = 0;
  TimePoint steps_changed_, heard_, renewed_;
  bool stopped_ = false;

  mutable std::mutex mutex_;  // guards what follows
  LinkView view_;
  absl::flat_hash_map<std::string, std::shared_ptr<RelaySink>> sinks_;  // by leg id
  LiveLegs live_;                                                       // of view_.id
};

}  // namespace baton::router
