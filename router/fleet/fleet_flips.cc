// Workers that change their role in place: what the book (flip_book.h) sees of them, and how its orders are carried
// out.
#include <utility>

#include "common/status.h"
#include "router/fleet/fleet.h"

namespace baton::router {
namespace {

FlipBook::Worker WorkerOf(const WorkerLink& link, bool drained, const WhoElseDecodes& others) {
  FlipBook::Worker out;
  const LinkView view = link.View();
  out.connected = view.state == LinkState::kReady || view.state == LinkState::kDraining;
  out.left_draining = view.left_draining;
  out.idle = link.idle();
  out.requests = view.outstanding->requests();
  out.takes = view.takes_requests();
  out.drained = drained;
  out.last = !others.takes_requests;
  out.none_decodes = !others.any;
  if (view.facts != nullptr) out.role = view.facts->role;
  if (view.facts != nullptr) out.incarnation = view.facts->incarnation;
  out.detail = view.shown_detail();
  return out;
}

}  // namespace

void Fleet::Flip(FlipOrder order, std::function<void(absl::StatusOr<LinkView>)> done) {
  loops_.home.Post([this, order = std::move(order), done = std::move(done)] {
    done(closed_ ? absl::UnavailableError("the router is stopping") : FlipNow(order));
  });
}

absl::StatusOr<LinkView> Fleet::FlipNow(const FlipOrder& order) {
  BATON_ASSIGN_OR_RETURN(const LinkView view, Named(order.worker));
  const int32_t slot = view.id.index;
  const auto link = LinkOf(view.id);
  if (order.to == WorkerRole::kPrefill && !order.force) BATON_RETURN_IF_ERROR(CheckNotLast(view));
  const absl::Status begun = flips_.Begin(slot, WorkerOf(*link, roster_.drained(slot), OthersThatDecode(view.id)),
                                          order.to, order.patience, clock_.Now(), order.force);
  if (!begun.ok()) return absl::Status(begun.code(), StrCat("worker ", view.name(), ": ", begun.message()));
  CarryOutFlips();
  return link->View();
}

void Fleet::LookAtFlips() {
  for (const int32_t slot : flips_.slots()) {
    const auto link = LinkOf({slot});
    if (link) flips_.Look(slot, WorkerOf(*link, roster_.drained(slot), OthersThatDecode({slot})), clock_.Now());
  }
  CarryOutFlips();
}

void Fleet::CarryOutFlips() {
  for (const FlipAction& action : flips_.TakeActions()) std::visit([this](const auto& one) { Do(one); }, action);
  if (flips_.slots().empty()) return;
  if (flip_timer_ == nullptr) flip_timer_ = loops_.home.MakeTimer();
  flip_timer_->ArmAt(clock_.Now() + FlipBook::kTick, [this] { LookAtFlips(); });
}

void Fleet::Do(const HoldFlipped& action) {
  roster_.Drain(action.slot, Roster::Hold::kChangesRole);
  Seat();
}

void Fleet::Do(const ReleaseFlipped& action) {
  roster_.Resume(action.slot, Roster::Hold::kChangesRole);
  Seat();
}

void Fleet::Do(const OrderFlip& action) {
  LinkOf({action.slot})->Flip(action.to, action.patience, [this, action](const FlipAnswer& answer) {
    if (closed_) return;
    flips_.Answered(action.slot, action.number, answer, clock_.Now());
    CarryOutFlips();
  });
}

void Fleet::Do(const ShowFlip& action) {
  if (const auto link = LinkOf({action.slot})) link->ShowFlip(action.view);
}

}  // namespace baton::router
