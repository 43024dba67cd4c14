#include "router/fleet/flip_book.h"

#include <utility>

#include "common/planted_bug.h"
#include "common/str_cat.h"

namespace baton::router {

const char* FlipStageName(FlipStage stage) {
  switch (stage) {
    case FlipStage::kDrains: return "drains";
    case FlipStage::kChanges: return "changes";
    case FlipStage::kReturns: return "returns";
    case FlipStage::kDone: return "done";
    case FlipStage::kFailed: return "failed";
  }
  return "unknown";
}

bool FlipBook::changes(int32_t slot) const {
  const auto found = flips_.find(slot);
  return found != flips_.end() && !found->second.view.over();
}

std::vector<int32_t> FlipBook::slots() const {
  std::vector<int32_t> out;
  for (const auto& [slot, flip] : flips_) {
    if (!flip.view.over() || flip.watched) out.push_back(slot);
  }
  return out;
}

absl::Status FlipBook::Begin(int32_t slot, const Worker& worker, WorkerRole to, Duration patience, TimePoint now,
                             bool force) {
  if (changes(slot) && flips_[slot].view.to == to) return absl::OkStatus();
  if (changes(slot)) {
    return absl::FailedPreconditionError(StrCat("it changes its role already, to ",
                                                WorkerRoleName(flips_[slot].view.to),
                                                " (baton drain --undo gives that up while it drains)"));
  }
  if (!worker.connected && !worker.left_draining)
    return absl::FailedPreconditionError(
        StrCat("it is not connected", worker.detail.empty() ? "" : ": ", worker.detail));
  if (worker.role == WorkerRole::kBoth)
    return absl::FailedPreconditionError("its role is both: it was started without a part in handoffs");
  Flip flip{.view = {.to = to}, .force = force, .incarnation = worker.incarnation, .began = now};
  if (patience > Duration::zero()) flip.until = now + patience;
  Flip& kept = flips_[slot] = std::move(flip);
  if (worker.connected && worker.role == to) {  // nothing to do
    kept.released = true;
    End(slot, kept, FlipStage::kDone, "", now);
    return absl::OkStatus();
  }
  actions_.emplace_back(HoldFlipped{slot});
  actions_.emplace_back(ShowFlip{slot, kept.view});
  return absl::OkStatus();
}

void FlipBook::Look(int32_t slot, const Worker& worker, TimePoint now) {
  const auto found = flips_.find(slot);
  if (found == flips_.end()) return;
  Flip& flip = found->second;
  if (flip.view.stage == FlipStage::kDrains) Drained(slot, flip, worker, now);
  if (flip.view.stage == FlipStage::kReturns) Returned(slot, flip, worker, now);
  if (flip.watched) Watch(slot, flip, worker, now);
}

/// Whoever is lost is not waited for: what ran there has gone elsewhere, and another process may come in its place.
void FlipBook::Drained(int32_t slot, Flip& flip, const Worker& worker, TimePoint now) {
  if (!worker.connected) return Away(slot, flip, worker, now);
  flip.away.reset();
  if (worker.incarnation != flip.incarnation) {
    if (worker.role != flip.view.to) return End(slot, flip, FlipStage::kFailed, "another process is there now", now);
    flip.view.stage = FlipStage::kReturns;
    flip.next = worker.incarnation;
    flip.answered = now;
    actions_.emplace_back(ShowFlip{slot, flip.view});
    return;
  }
  if (worker.idle && flip.view.to == WorkerRole::kPrefill && worker.last && !flip.force) {
    return End(slot, flip, FlipStage::kFailed,
               "it is the last that decodes by now: without it every request fails (--force)", now);
  }
  if (worker.idle) {
    const Duration left = flip.until == TimePoint::max() ? Duration::zero() : flip.until - now;
    return Order(slot, flip, flip.view.to, left, now);
  }
  if (now < flip.until) return;
  End(slot, flip, FlipStage::kFailed,
      StrCat("after ", static_cast<int64_t>(Milliseconds(now - flip.began)), " ms ", worker.requests,
             " requests still run there"),
      now);
}

/// Another router may have told it: it comes again, with one role or the other. That it drains may not have been heard.
void FlipBook::Away(int32_t slot, Flip& flip, const Worker& worker, TimePoint now) {
  if (!flip.away) flip.away = now;
  const Duration within = worker.left_draining ? kReturnWithin : kBackWithin;
  if (now - *flip.away < within && now < flip.until) return;
  End(slot, flip, FlipStage::kFailed, StrCat("its connection is lost: ", worker.detail), now);
}

void FlipBook::Answered(int32_t slot, uint64_t number, const FlipAnswer& answer, TimePoint now) {
  const auto found = flips_.find(slot);
  if (found == flips_.end()) return;
  Flip& flip = found->second;
  if (flip.view.stage != FlipStage::kChanges || flip.number != number) return;
  if (!answer.status.ok()) {
    return End(slot, flip, FlipStage::kFailed,
               StrCat(absl::StatusCodeToString(answer.status.code()), ": ", answer.status.message()), now);
  }
  flip.view.stage = FlipStage::kReturns;
  flip.view.drain_ms = Milliseconds(flip.told - flip.began) + answer.drain_ms;
  flip.view.change_ms = answer.change_ms;
  flip.next = answer.incarnation;
  flip.answered = now;
  if (PlantedBug("a changed worker is released before it is seen")) Release(slot, flip);
  actions_.emplace_back(ShowFlip{slot, flip.view});
}

void FlipBook::Release(int32_t slot, Flip& flip) {
  if (!std::exchange(flip.released, true)) actions_.emplace_back(ReleaseFlipped{slot});
}

/// The connection of before may be seen for a moment yet, with the role of before: no request goes there.
void FlipBook::Returned(int32_t slot, Flip& flip, const Worker& worker, TimePoint now) {
  const bool there = worker.connected && worker.incarnation == flip.next;
  if (there && flip.view.to == WorkerRole::kPrefill && worker.none_decodes && !flip.force && !flip.back &&
      !PlantedBug("no change is taken back"))
    return TurnBack(slot, flip, now);
  if (there) Release(slot, flip);
  if (there && flip.back && (worker.takes || worker.drained)) {
    return End(slot, flip, FlipStage::kFailed,
               "the others that decoded changed their role at the same time, or are gone: it decodes again", now);
  }
  if (there && (worker.takes || worker.drained)) return End(slot, flip, FlipStage::kDone, "", now);
  if (worker.connected && worker.incarnation != flip.next && worker.incarnation != flip.incarnation) {
    return End(slot, flip, FlipStage::kFailed,
               StrCat("another process is there now, of role ", WorkerRoleName(worker.role)), now);
  }
  if (now - flip.answered < kReturnWithin) return;
  End(slot, flip, FlipStage::kFailed,
      StrCat("it has its new role and takes no requests after ", static_cast<int64_t>(Seconds(kReturnWithin)),
             " s: ", worker.detail),
      now);
}

void FlipBook::Watch(int32_t slot, Flip& flip, const Worker& worker, TimePoint now) {
  const bool another = worker.connected && worker.incarnation != flip.next;
  if (another || now - flip.done >= watched_) {
    flip.watched = false;
    return;
  }
  if (!worker.connected || !worker.none_decodes) return flip.alone.reset();
  if (!flip.alone) flip.alone = now;
  if (now - *flip.alone < kBackWithin || PlantedBug("no change is taken back")) return;
  flip.released = false;
  actions_.emplace_back(HoldFlipped{slot});
  TurnBack(slot, flip, now);
}

void FlipBook::TurnBack(int32_t slot, Flip& flip, TimePoint now) {
  flip.back = true;
  flip.watched = false;
  flip.incarnation = flip.next;
  Order(slot, flip, WorkerRole::kDecode, Duration::zero(), now);
}

/// Shown first: whoever hears of the change by the worker finds it here.
void FlipBook::Order(int32_t slot, Flip& flip, WorkerRole to, Duration patience, TimePoint now) {
  flip.view.stage = FlipStage::kChanges;
  flip.number = ++last_;
  flip.told = now;
  actions_.emplace_back(ShowFlip{slot, flip.view});
  actions_.emplace_back(OrderFlip{slot, flip.number, to, patience});
}

absl::Status FlipBook::Undo(int32_t slot, TimePoint now) {
  const auto found = flips_.find(slot);
  if (found == flips_.end() || found->second.view.over()) return absl::OkStatus();
  if (found->second.view.stage != FlipStage::kDrains)
    return absl::FailedPreconditionError("it changes its role now, and takes requests then");
  End(slot, found->second, FlipStage::kFailed, "undone", now);
  return absl::OkStatus();
}

void FlipBook::End(int32_t slot, Flip& flip, FlipStage stage, std::string why, TimePoint now) {
  flip.view.stage = stage;
  flip.view.why = std::move(why);
  flip.view.took_ms = Milliseconds(now - flip.began);
  flip.done = now;
  flip.watched = stage == FlipStage::kDone && flip.view.to == WorkerRole::kPrefill && !flip.force && !flip.next.empty();
  Release(slot, flip);
  actions_.emplace_back(ShowFlip{slot, flip.view});
}

std::vector<FlipAction> FlipBook::TakeActions() { return std::exchange(actions_, {}); }

}  // namespace baton::router
