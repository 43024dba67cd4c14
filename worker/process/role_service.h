// The additions of a role (prefill, decode) to a worker: the legs of the handoff, and its part of the scheduler
// thread's turn. Role `both` adds nothing.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/trust/peer_trust.h"
#include "engine/step/engine.h"
#include "proto/worker.pb.h"
#include "worker/process/start_up.h"
#include "worker/relay/prefill_stream.h"
#include "worker/relay/relay_book.h"
#include "worker/relay/ticket_host.h"
#include "worker/worker_config.h"

namespace baton::worker {

/// Runs a task on the scheduler thread, with the scheduler to itself. Any thread; never refused.
using PostTask = std::function<void(engine::Engine::Task)>;

/// All of it outlives the role, but for `loaded`: the parts it points to do.
struct RoleContext {
  const WorkerConfig& config;
  const LoadedModel& loaded;
  std::string incarnation;
  const Clock& clock;
  trust::PeerTrust kv_trust{};                        ///< of the cluster
  v1::WorkerRole role = v1::WORKER_ROLE_UNSPECIFIED;  ///< that is asked for
};

class Role {
 public:
  virtual ~Role() = default;
  virtual v1::WorkerRole wire_role() const = 0;
  /// Where KV is taken; empty: nowhere. Any thread.
  virtual std::string LandingAddress() const { return {}; }

  // ---- the parts that the engine is built with
  virtual engine::RolePolicy* policy() { return nullptr; }
  virtual engine::LayerObserver* observer() { return nullptr; }
  virtual TicketHost* tickets() { return nullptr; }

  // ---- life
  /// The engine stands: its own threads start.
  virtual void Start(PostTask post, RelayBook* relay) = 0;
  /// No new tickets or jobs from now on. Scheduler thread.
  virtual void Drain() = 0;
  /// They are taken again. Scheduler thread.
  virtual void Resume() = 0;
  /// Nothing is under way. Scheduler thread.
  virtual bool Idle() const = 0;
  /// Joins its threads; the engine's still run.
  virtual void StopThreads() = 0;
  /// Its own threads have ended, and the engine's have, or this is the scheduler thread and no request lives: gives
  /// every block back.
  virtual void LetGo() = 0;

  // ---- scheduler thread
  virtual void OnOutputs(const std::vector<engine::SequenceOutput>& outputs, engine::Scheduler& scheduler) {
    (void)outputs;
    (void)scheduler;
  }
  virtual void OnTick(engine::Scheduler& scheduler) = 0;
  /// A router still waits for this ticket or leg.
  virtual void OnRenewal(const v1::Renewal& renewal, const std::string& router) { (void)renewal, (void)router; }
  /// A decode worker that KV may be sent to.
  virtual void OnMeet(const v1::Meet& meet) { (void)meet; }
  /// Blocks of `group` that tickets or jobs own.
  virtual int64_t OwnedBlocks(int32_t group) const = 0;
  virtual void FillLoad(v1::HandoffLoad& load) const = 0;

  // ---- legs; any thread, answered from any. Who asks for another role's may not know yet that this worker has changed
  // its own: it is refused as Unavailable, and tries elsewhere. `router`: who calls (RouterSessions::Check). A key
  // names a leg of that router only.
  virtual void Reserve(const v1::ReserveRequest& request, const std::string& router,
                       std::function<void(v1::ReserveReply)> answer);
  virtual void Prefill(const v1::PrefillRequest& request, const std::string& router, std::shared_ptr<PrefillSink> sink);
  /// The relay stream of a router's session has ended.
  virtual void RouterLeft(const std::string& session, const std::string& router) { (void)session, (void)router; }
  /// The stream of a Prefill has ended; the router may be gone.
  virtual void PrefillStreamEnded(const v1::RequestKey& key, const std::string& router) { (void)key, (void)router; }
  virtual void Cancel(const v1::CancelRequest& request, const std::string& router,
                      std::function<void(v1::CancelReply)> answer) = 0;
};

using RoleFactory = std::function<absl::StatusOr<std::unique_ptr<Role>>(const RoleContext&)>;

}  // namespace baton::worker
