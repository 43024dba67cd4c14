#include <mutex>

#include "common/str_cat.h"
#include "router/policy/scorer.h"

namespace baton::router {
namespace {

// Goes by slot, so that a worker that comes or goes does not shift the others' turns.
class RoundRobin final : public Scorer {
 public:
  size_t Choose(absl::Span<const Candidate> candidates, uint32_t) override {
    std::lock_guard lock(mutex_);
    const size_t next = Next(candidates);
    last_slot_ = candidates[next].id.slot;
    return next;
  }
  std::vector<Cost> Table(absl::Span<const Candidate> candidates, uint32_t, size_t* chosen) const override {
    std::vector<Cost> table;
    for (const Candidate& c : candidates) table.push_back(Cost{c.id});
    std::lock_guard lock(mutex_);
    *chosen = Next(candidates);
    return table;
  }

 private:
  size_t Next(absl::Span<const Candidate> candidates) const {
    size_t next = 0, lowest = 0;
    bool found = false;
    for (size_t i = 0; i < candidates.size(); ++i) {
      const int32_t slot = candidates[i].id.slot;
      if (slot < candidates[lowest].id.slot) lowest = i;
      if (slot > last_slot_ && (!found || slot < candidates[next].id.slot)) {
        next = i;
        found = true;
      }
    }
    return found ? next : lowest;
  }

  mutable std::mutex mutex_;
  int32_t last_slot_ = -1;
};

}  // namespace

std::unique_ptr<Scorer> MakeRoundRobin() { return std::make_unique<RoundRobin>(); }

absl::StatusOr<std::unique_ptr<Scorer>> MakeScorer(const std::string& policy, double lambda) {
  if (policy == "predicted-time") return MakePredictedTime(lambda);
  if (policy == "round-robin") return MakeRoundRobin();
  return absl::InvalidArgumentError(
      StrCat("--route-policy: \"", policy, "\" is unknown; there are predicted-time and round-robin"));
}

}  // namespace baton::router
