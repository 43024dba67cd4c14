#include "sim/planned_kills.h"

namespace baton::sim {
namespace {

/// What a worker did is told by turns of its own, which may come long after: it is told before it dies.
constexpr Duration kLastWords = std::chrono::milliseconds(1);

}  // namespace

std::string_view RoleNameOf(v1::WorkerRole role) {
  return role == v1::WORKER_ROLE_PREFILL ? "prefill" : role == v1::WORKER_ROLE_DECODE ? "decode" : "both";
}

void PlannedKills::Plan(const Terms& terms, TimePoint start) {
  for (const load::KillWish& wish : terms.wishes) {
    const TimePoint at = start + wish.at;
    time_.At(at - std::min(wish.at, kLastWords), [this, wish] {
      if (WorkerNode* worker = Find(wish.worker)) worker->Post(Duration::zero(), [] {});
    });
    time_.At(at, [this, wish, after = terms.restart_after] { Kill(wish, after); });
  }
}

WorkerNode* PlannedKills::Find(const std::string& wish) const {
  for (const auto& worker : workers_) {
    if (worker->alive() && (worker->name() == wish || RoleNameOf(worker->role()) == wish)) return worker.get();
  }
  return nullptr;
}

void PlannedKills::Kill(const load::KillWish& wish, Duration restart_after) {
  load::FaultSeen& seen = seen_.emplace_back(load::FaultSeen{wish.at, StrCat("kill ", wish.worker), {}});
  WorkerNode* const worker = Find(wish.worker);
  if (worker == nullptr) {
    seen.error = "no such worker lives";
    return;
  }
  seen.what = StrCat("kill ", worker->name());
  lost_[worker].push_back(worker->LoadNow());
  router_.OnWorkerGone(*worker);
  worker->Kill();
  time_.After(restart_after, [worker] { worker->Start(); });
}

}  // namespace baton::sim
