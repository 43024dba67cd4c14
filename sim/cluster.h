// A cluster in virtual time: real routers (requests, links, choice of workers, prefix index, retry budget, admission),
// desks, handoff cores, relay, schedulers, block pools, placing passes and codecs, over SimWire and SimTransport; a
// fake model whose tokens depend on every KV entry. Messages are harmed, processes stop, die and come back, clients
// leave. It happens here; whether it was right is judged by who drives it (tests/sim/checked_cluster.h). One thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kvtransfer/sim/sim_transport.h"
#include "sim/disturber.h"
#include "sim/handoff_node.h"
#include "sim/proof_engine.h"
#include "sim/router_process.h"

namespace baton::sim {

class Cluster {
 public:
  explicit Cluster(const ClusterScenario& scenario);
  ~Cluster();
  /// All that happens from now on, as bytes (Timeline). `trace` must outlive this.
  void WriteTo(std::string& trace) { time_.WriteTo(trace); }
  /// Faults begin, and clients ask in the first ClusterScenario::arrive_ms.
  void Start();
  /// The next thing happens. False: nothing ever will.
  bool Step() { return time_.RunNext(); }
  /// No fault begins any more. What stands still stays so.
  void EndFaults() { faults_on_ = false; }
  /// What stands still goes on.
  void ResumeAll() { disturber_->ResumeAll(); }

  TimePoint now() const { return time_.Now(); }
  TimePoint begin() const { return begin_; }
  /// When the last fault that has begun is over.
  TimePoint faults_over_at() const { return disturber_->over_at(); }
  bool AllEnded() const;
  /// Requests that have no end yet; what processes hold. Empty: none, nothing.
  std::string Waiting() const;
  std::string Held() const;
  /// The first promise that a process saw broken, or nothing.
  const std::string& broken() const { return broken_; }
  const std::vector<router::TokenizedRequest>& asked() const { return asked_; }
  const std::vector<std::shared_ptr<ClientView>>& clients() const { return clients_; }
  const std::vector<std::unique_ptr<RouterProcess>>& routers() const { return routers_; }
  const std::vector<std::unique_ptr<WorkerNode>>& workers() const { return workers_; }

  const FaultCounters& faults() const { return faults_; }
  WireCounters wires() const;
  /// Changes of roles that have no end yet.
  std::string OpenFlips() const { return disturber_->OpenFlips(); }
  std::string FailedFlips() const { return disturber_->FailedFlips(); }
  TimePoint flips_over_by() const { return disturber_->flips_over_by(); }
  int flips_done() const { return disturber_->flips_done(); }
  std::string Disobeyed() const { return disturber_->Disobeyed(); }
  int drains_held() const { return disturber_->drains_held(); }
  void ResumeDrained() { disturber_->ResumeDrained(); }
  /// Workers that a router gives no requests though it could, and why; empty: none.
  std::string Shunned() const;
  /// Some worker that is there decodes.
  bool SomeDecode() const;
  int deaths() const { return disturber_->deaths(); }
  const char* rank_moment() const { return disturber_->rank_moment(); }
  int completed() const;
  /// Sequences without credit at one worker, at most.
  int32_t most_unread() const { return most_unread_; }

 private:
  void StopReading(RouterProcess& router, const std::shared_ptr<ClientView>& view);
  bool MayTake(const RouterProcess& router, const WorkerNode& worker) const;

  const ClusterScenario scenario_;
  Timeline time_;
  const TimePoint begin_;
  bool faults_on_ = true;
  std::string broken_;  ///< promise
  int32_t most_unread_ = 0;
  FaultCounters faults_;
  const std::shared_ptr<SimNetwork> network_;
  ProofEngine engines_{scenario_};
  const Plant plant_;
  std::vector<std::unique_ptr<WorkerNode>> workers_;  ///< prefill workers first
  std::vector<std::unique_ptr<RouterProcess>> routers_;
  std::unique_ptr<Disturber> disturber_;
  std::vector<router::TokenizedRequest> asked_;
  std::vector<std::shared_ptr<ClientView>> clients_;  ///< [asked_]
};

}  // namespace baton::sim
