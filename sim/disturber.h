// What happens to a simulated cluster: processes are stopped, die and come back, machines vanish, connections break and
// are parted. By chance ten times a second, or once.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sim/router_process.h"

namespace baton::sim {

class Disturber {
 public:
  /// The references must outlive it.
  Disturber(const Plant& plant, std::vector<RouterProcess*> routers, std::vector<WorkerNode*> workers)
      : plant_(plant), time_(plant.time), routers_(std::move(routers)), workers_(std::move(workers)) {}
  void Start();
  /// What is stopped or parted will go on by then at the latest.
  TimePoint over_at() const { return over_at_; }
  int deaths() const { return deaths_; }
  /// Of the one fault that befell a rank: RolePart::Moment of its worker. Null: none.
  const char* rank_moment() const { return rank_moment_; }
  /// Changes of roles that were ordered and have no end yet; that failed, and why.
  std::string OpenFlips() const;
  std::string FailedFlips() const;
  /// They have their end by then at the latest.
  TimePoint flips_over_by() const;
  int flips_done() const;
  /// Workers that a router shows otherwise than operators ordered it last; empty: none. Once nobody changes his role.
  std::string Disobeyed() const;
  int drains_held() const;
  /// Whoever is drained takes requests again.
  void ResumeDrained();
  /// Everything that is stopped goes on.
  void ResumeAll();

 private:
  /// A change of a role that a router has begun.
  struct OrderedFlip {
    const RouterProcess* router;
    uint64_t router_life;
    const WorkerNode* worker;
    TimePoint ordered;
    /// Null: its router is gone, or knows of a later one.
    std::shared_ptr<const router::FlipView> View() const;
  };
  void Tick();
  void DisturbWorker(WorkerNode& worker);
  void DisturbRouter(RouterProcess& router);
  void Once();
  /// Routers say keys of each other's legs, until faults end.
  void Meddle();
  Duration Pause();
  void Stop(Process& process, Duration how_long);
  /// False: it is the last that decodes, or another changes now.
  bool Flip(WorkerNode& worker);
  /// All that decode are to prefill, each as another operator says, who looks at one router alone.
  void FlipAllThatDecode();
  void AskToFlip(RouterProcess& router, const WorkerNode& worker, router::WorkerRole to);
  bool AnotherDecodes(const WorkerNode& worker) const;
  /// Drains it at a router, or takes back what was ordered there.
  void Order(WorkerNode& worker);
  bool IsDrained(const RouterProcess& router, const WorkerNode& worker) const;
  void Drain(RouterProcess& router, const WorkerNode& worker, Duration how_long);
  void Die(WorkerNode& worker, bool with_machine);
  void LoseRank(WorkerNode& worker);
  void HangRank(WorkerNode& worker);
  WorkerNode& OneWithRanks();
  static int AnyRankBut0(const WorkerNode& worker, Timeline& time);
  /// It comes back as the other release.
  void Upgrade(WorkerNode& worker);
  void ComeBack(Process& process, Duration after);
  WorkerNode& AnyWorker() { return *workers_[time_.Below(workers_.size())]; }
  RouterProcess& AnyRouter() { return *routers_[time_.Below(routers_.size())]; }
  void LastsFor(Duration how_long) { over_at_ = std::max(over_at_, time_.Now() + how_long); }

  const Plant& plant_;
  Timeline& time_;
  const std::vector<RouterProcess*> routers_;
  const std::vector<WorkerNode*> workers_;
  TimePoint over_at_{};
  int deaths_ = 0;
  const char* rank_moment_ = nullptr;
  std::vector<const WorkerNode*> flips_asked_;  ///< and not answered
  std::vector<OrderedFlip> flips_;
  /// Drains at each router's worker, as they were ordered last, with the router's life: another has forgotten them.
  std::map<std::pair<const RouterProcess*, const WorkerNode*>, uint64_t> drained_;
};

}  // namespace baton::sim
