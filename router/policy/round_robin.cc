#include <algorithm>
#include <mutex>
#include <vector>

#include "router/policy/policies.h"

namespace baton::router {
namespace {

// The slot after `last` that somebody has, or the lowest: a worker that comes or goes does not shift the others' turns.
int32_t NextSlot(absl::Span<const int32_t> slots, int32_t last) {
  int32_t next = -1, lowest = slots[0];
  for (const int32_t slot : slots) {
    lowest = std::min(lowest, slot);
    if (slot > last && (next < 0 || slot < next)) next = slot;
  }
  return next >= 0 ? next : lowest;
}

class RoundRobin final : public Scorer {
 public:
  size_t Choose(const RouteQuestion& question, absl::Span<const RouteOption> options) override {
    const absl::Span<const Candidate> candidates = question.candidates;
    std::lock_guard lock(mutex_);
    const size_t next = Next(candidates, options);
    last_worker_ = candidates[options[next].worker].id.index;
    if (options[next].prefill) last_prefill_ = candidates[*options[next].prefill].id.index;
    return next;
  }
  std::vector<Cost> Table(const RouteQuestion& question, absl::Span<const RouteOption> options,
                          size_t* chosen) const override {
    std::lock_guard lock(mutex_);
    *chosen = Next(question.candidates, options);
    return std::vector<Cost>(options.size());
  }

 private:
  size_t Next(absl::Span<const Candidate> candidates, absl::Span<const RouteOption> options) const {
    std::vector<int32_t> workers, prefills;
    for (const RouteOption& o : options) workers.push_back(candidates[o.worker].id.index);
    const int32_t worker = NextSlot(workers, last_worker_);
    for (size_t i = 0; i < options.size(); ++i) {
      if (workers[i] != worker) continue;
      if (!options[i].prefill) return i;
      prefills.push_back(candidates[*options[i].prefill].id.index);
    }
    const int32_t prefill = NextSlot(prefills, last_prefill_);
    for (size_t i = 0; i < options.size(); ++i) {
      if (workers[i] == worker && candidates[*options[i].prefill].id.index == prefill) return i;
    }
    return 0;  // not reached: `prefill` is one of them
  }

  mutable std::mutex mutex_;
  int32_t last_worker_ = -1, last_prefill_ = -1;
};

}  // namespace

std::unique_ptr<Scorer> MakeRoundRobin(double) { return std::make_unique<RoundRobin>(); }

}  // namespace baton::router
