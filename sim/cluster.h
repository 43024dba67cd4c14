// A cluster in virtual time: real RequestFlow, desks, handoff cores, relay, schedulers, block pools, placing passes and
// codecs, over SimTransport; a fake model whose tokens depend on every KV entry. Messages are harmed, workers die and
// stop, clients leave. What one worker alone answers is what every client must get, in time; then nobody holds
// anything.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kvtransfer/sim/sim_transport.h"
#include "sim/router_node.h"

namespace baton::sim {

class Cluster {
 public:
  explicit Cluster(const ClusterScenario& scenario);
  ~Cluster();
  /// Runs the scenario to its end; the broken promise, or nothing.
  std::string Run();

  const FaultCounters& faults() const { return faults_; }
  const RouterNode& router() const { return *router_; }
  int deaths() const { return deaths_; }
  int completed() const;

 private:
  void Disturb();
  std::vector<WorkerNode*> Workers() const;
  std::map<uint32_t, std::string> Alone(const router::Generation& generation) const;
  std::string CheckClients();
  std::string Held() const;

  const ClusterScenario scenario_;
  Timeline time_;
  bool faults_on_ = true;
  std::string broken_;  ///< promise
  FaultCounters faults_;
  const std::shared_ptr<SimNetwork> network_;
  std::unique_ptr<RouterNode> router_;  ///< the workers speak to it
  std::vector<std::unique_ptr<PrefillNode>> prefills_;
  std::vector<std::unique_ptr<DecodeNode>> decodes_;
  std::vector<router::Generation> asked_;
  int deaths_ = 0;
};

}  // namespace baton::sim
