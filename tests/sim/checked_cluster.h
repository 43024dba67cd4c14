// A simulated cluster and its judge. What one worker alone answers is what every client must get, in time; then nobody
// holds anything. Where one thing happens and a spare worker is there, no client sees it.
#pragma once

#include <string>

#include "sim/cluster.h"

namespace baton::sim {

class CheckedCluster {
 public:
  explicit CheckedCluster(const ClusterScenario& scenario) : scenario_(scenario), cluster_(scenario) {}
  /// Runs the scenario to its end; the broken promise, or nothing.
  std::string Run();
  /// As Cluster's.
  void WriteTo(std::string& trace) { cluster_.WriteTo(trace); }
  const Cluster& cluster() const { return cluster_; }
  /// Drains that were in force when all else was over.
  int drains_held() const { return drains_held_; }

 private:
  std::string CheckClients() const;
  std::string CheckOneFault() const;
  int Stalls() const;
  std::string CheckLinks() const;
  std::string CheckDelay() const;
  std::string CheckChanges();

  const ClusterScenario scenario_;
  Cluster cluster_;
  int drains_held_ = 0;
};

}  // namespace baton::sim
