#include <algorithm>
#include <mutex>

#include "common/str_cat.h"
#include "router/policy/scorer.h"

namespace baton::router {
namespace {

// Goes by slot, so that a worker that comes or goes does not shift the others' turns.
class RoundRobin final : public Scorer {
 public:
  size_t Choose(absl::Span<const Candidate> candidates, uint32_t, std::vector<Cost>* table) override {
    if (table) {
      table->clear();
      for (const Candidate& c : candidates) table->push_back(Cost{c.id});
    }
    std::lock_guard lock(mutex_);
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
    if (!found) next = lowest;
    last_slot_ = candidates[next].id.slot;
    return next;
  }

 private:
  std::mutex mutex_;
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
