// A cluster in virtual time: real routers (requests, links, choice of workers, prefix index, retry budget, admission),
// desks, handoff cores, relay, schedulers, block pools, placing passes and codecs, over SimWire and SimTransport; a
// fake model whose tokens depend on every KV entry. Messages are harmed, processes stop, die and come back, clients
// leave. What one worker alone answers is what every client must get, in time; then nobody holds anything. Where one
// thing happens and a spare worker is there, no client sees it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kvtransfer/sim/sim_transport.h"
#include "sim/decode_node.h"
#include "sim/disturber.h"
#include "sim/prefill_node.h"
#include "sim/router_process.h"

namespace baton::sim {

class Cluster {
 public:
  explicit Cluster(const ClusterScenario& scenario);
  ~Cluster();
  /// Runs the scenario to its end; the broken promise, or nothing.
  std::string Run();

  const FaultCounters& faults() const { return faults_; }
  WireCounters wires() const;
  int deaths() const { return disturber_->deaths(); }
  int completed() const;
  const std::vector<std::shared_ptr<ClientView>>& clients() const { return clients_; }

 private:
  void AskAll();
  bool AllEnded() const;
  std::string CheckClients() const;
  std::string CheckOneFault() const;
  std::string CheckLinks() const;
  std::string CheckDelay() const;
  std::string Waiting() const;
  std::string Held() const;

  const ClusterScenario scenario_;
  Timeline time_;
  const TimePoint begin_;
  bool faults_on_ = true;
  std::string broken_;  ///< promise
  FaultCounters faults_;
  const std::shared_ptr<SimNetwork> network_;
  const Plant plant_;
  std::vector<std::unique_ptr<WorkerNode>> workers_;  ///< prefill workers first
  std::vector<std::unique_ptr<RouterProcess>> routers_;
  std::unique_ptr<Disturber> disturber_;
  std::vector<router::TokenizedRequest> asked_;
  std::vector<std::shared_ptr<ClientView>> clients_;  ///< [asked_]
};

}  // namespace baton::sim
