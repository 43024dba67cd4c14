// Workers of a planned cluster that are killed on purpose and come back.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "load/faults.h"
#include "sim/router_process.h"
#include "sim/worker_node.h"

namespace baton::sim {

/// "prefill", "decode", "both".
std::string_view RoleNameOf(v1::WorkerRole role);

class PlannedKills {
 public:
  /// `worker` of a wish: a name ("decode-0") or a role, of which the first that lives is taken.
  struct Terms {
    std::vector<load::KillWish> wishes;
    Duration restart_after = std::chrono::seconds(10);  ///< until a worker that was killed serves again
  };
  /// The references must outlive it and everything that `time` runs.
  PlannedKills(Timeline& time, RouterProcess& router, const std::vector<std::unique_ptr<WorkerNode>>& workers)
      : time_(time), router_(router), workers_(workers) {}
  /// They happen from now on, each at its time after `start`.
  void Plan(const Terms& terms, TimePoint start);
  /// What happened, in the order of time.
  const std::vector<load::FaultSeen>& seen() const { return seen_; }
  /// What a worker's lives that are over had counted.
  const std::vector<engine::SchedulerLoad>& LostCounts(const WorkerNode& worker) { return lost_[&worker]; }

 private:
  WorkerNode* Find(const std::string& wish) const;
  void Kill(const load::KillWish& wish, Duration restart_after);
  Timeline& time_;
  RouterProcess& router_;
  const std::vector<std::unique_ptr<WorkerNode>>& workers_;
  std::vector<load::FaultSeen> seen_;
  std::map<const WorkerNode*, std::vector<engine::SchedulerLoad>> lost_;
};

}  // namespace baton::sim
