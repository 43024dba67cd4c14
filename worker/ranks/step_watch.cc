#include "worker/ranks/step_watch.h"

#include <utility>

#include "common/rank_loss.h"
#include "common/status.h"

namespace baton::worker {

void StepWatch::Watch(std::shared_ptr<const std::atomic<uint64_t>> running, Duration patience) {
  std::lock_guard lock(mutex_);
  running_ = std::move(running);
  patience_ = patience;
  seen_ = 0;
}

absl::Status StepWatch::Health() {
  std::lock_guard lock(mutex_);
  own_.Tick(clock_.Now());
  const uint64_t running = running_ != nullptr ? running_->load() : 0;
  if (std::exchange(seen_, running) != running) since_ = own_.Now();
  if (running == 0 || own_.Now() - since_ <= patience_) return absl::OkStatus();
  return RankLoss(StrCat("a step has not ended for ", static_cast<int64_t>(Milliseconds(patience_)),
                         " ms: a rank does not answer within a collective"));
}

}  // namespace baton::worker
