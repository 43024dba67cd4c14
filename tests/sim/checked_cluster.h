// A simulated cluster and its judge. What one worker alone answers is what every client must get, in time; then nobody
// holds anything. Where one thing happens and a spare worker is there, no client sees it. Where all that ends does so
// by an order, routers count no loss and warn of none.
#pragma once

#include <string>

#include "sim/cluster.h"

namespace baton::sim {

/// Nobody dies, stands still or is cut off from others, no change of a role fails, and no word comes late, so none is
/// heard behind the end that it announces: what ends does so by an order.
bool LosesNothing(const ClusterScenario& scenario);

class CheckedCluster {
 public:
  explicit CheckedCluster(const ClusterScenario& scenario) : scenario_(scenario), cluster_(scenario) {}
  /// Runs the scenario to its end; the broken promise, or nothing.
  std::string Run() { return LosesNothing(scenario_) ? RunAndLoseNothing() : RunAll(); }
  /// As Cluster's.
  void WriteTo(std::string& trace) { cluster_.WriteTo(trace); }
  const Cluster& cluster() const { return cluster_; }
  /// Drains that were in force when all else was over.
  int drains_held() const { return drains_held_; }

 private:
  std::string RunAll();
  std::string RunAndLoseNothing();
  std::string CheckNothingLost() const;
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
