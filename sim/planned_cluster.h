// A cluster that has not been built, in virtual time: a real router, schedulers, block pools, desks and handoff, whose
// steps and links cost what they are said to cost, and to which a schedule of requests is offered. Nothing fails but
// what is killed on purpose.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "load/prompts.h"
#include "load/run.h"
#include "sim/link_network.h"
#include "sim/planned_engine.h"
#include "sim/planned_kills.h"
#include "sim/router_process.h"

namespace baton::sim {

struct PlannedLayout {
  int prefill = 0, decode = 0, both = 0;
  int workers() const { return prefill + decode + both; }
  /// "2P 6D", "8 both".
  std::string Name() const;
  /// InvalidArgument: no worker has this name or role.
  absl::Status CheckWorker(const std::string& name) const;
};

struct PlannedTerms {
  uint64_t seed = 0;
  PlannedLayout layout;
  PlannedWorker worker;
  double link_bytes_per_s = 0;
  Duration link_latency = std::chrono::microseconds(50);
  int64_t kv_bytes_per_token = 0;  ///< that travel in a handoff
  router::RouterConfig router;
  PlannedKills::Terms kills;
};

/// The requests that are offered, and when.
struct OfferedLoad {
  const std::vector<load::Prompt>& prompts;  ///< with pieces
  std::vector<Duration> due;                 ///< never falling
  int64_t most_at_a_time = 0;                ///< 0: no limit
  Duration timeout{};
};

/// What workers of one role did.
struct RoleUse {
  std::string role;
  int workers = 0;
  double busy = 0;                  ///< share of the time in which a step ran
  double kv_mean = 0, kv_most = 0;  ///< share of blocks in use, of all of them; and of the fullest worker
  int64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0, preemptions = 0, steps = 0;
};

struct ClusterUse {
  std::vector<RoleUse> roles;
  int64_t handoffs = 0;                                 ///< prompts computed by one worker for another
  double link_gigabytes = 0, link_gigabytes_per_s = 0;  ///< of all ports together, over the run
  double link_busy_most = 0;                            ///< share of the time, of the busiest port
};

class PlannedCluster {
 public:
  /// `cost` must outlive it.
  PlannedCluster(PlannedTerms terms, const StepCost& cost);
  ~PlannedCluster();
  /// Offers everything and waits for the last end.
  load::RunResult Run(const OfferedLoad& load);
  /// Of the run.
  const ClusterUse& use() const { return use_; }
  /// The first promise that a process saw broken: a fault of ours. Empty: none.
  const std::string& broken() const { return broken_; }

 private:
  class Client;  // one request
  void AwaitReady();
  void Offer(size_t index);
  void SendWaiting();
  void Ended();
  void Look();
  void Count();

  const PlannedTerms terms_;
  const ClusterScenario scenario_;
  Timeline time_;
  const bool faults_on_ = false;
  FaultCounters faults_;
  std::string broken_;
  LinkNetwork links_;
  TokenTimes token_times_;
  PlannedEngine engines_;
  const Plant plant_;
  std::vector<std::unique_ptr<WorkerNode>> workers_;
  std::unique_ptr<RouterProcess> router_;
  std::unique_ptr<PlannedKills> kills_;

  const OfferedLoad* load_ = nullptr;
  TimePoint start_{};
  load::RunResult result_;
  std::vector<size_t> waiting_;  ///< indices, from next_waiting_ on
  size_t next_waiting_ = 0, ended_ = 0;
  int running_ = 0;
  ClusterUse use_;
  int64_t looks_ = 0;
};

}  // namespace baton::sim
