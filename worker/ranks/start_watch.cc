#include "worker/ranks/start_watch.h"

#include <utility>

#include "common/rank_loss.h"
#include "common/str_cat.h"

namespace baton::worker {

void StartWatch::Note(int rank, std::string_view phase, double fraction) {
  std::lock_guard lock(mutex_);
  ++noted_;
  places_[static_cast<size_t>(rank)] = StrCat(phase, " ", static_cast<int>(100 * fraction), " %");
}

void StartWatch::Over() {
  std::lock_guard lock(mutex_);
  over_ = true;
}

absl::Status StartWatch::Health(const Others& others) {
  std::lock_guard lock(mutex_);
  if (!lost_.ok()) return lost_;
  own_.Tick(clock_.Now());
  const uint64_t all = noted_ + others.moved;
  if (std::exchange(seen_, all) != all) since_ = own_.Now();
  if (over_ || own_.Now() - since_ <= patience_) return absl::OkStatus();
  std::string where;
  for (size_t rank = 0; rank < places_.size(); ++rank) {
    if (!places_[rank].empty()) where += StrCat(where.empty() ? "" : ", ", "rank ", rank, " at ", places_[rank]);
  }
  if (others.waits_for >= 0) where += StrCat(where.empty() ? "" : ", ", "rank ", others.waits_for, " does not answer");
  lost_ = RankLoss(StrCat("the start has stood still for ", static_cast<int64_t>(Milliseconds(patience_)),
                          " ms (--rank-start-timeout-ms): ", where.empty() ? "no rank was heard of" : where));
  return lost_;
}

}  // namespace baton::worker
