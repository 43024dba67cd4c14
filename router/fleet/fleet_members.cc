// The fleet's workers: who joins, drains and leaves, as the roster decides it.
#include <algorithm>
#include <future>
#include <optional>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/log.h"
#include "common/status.h"
#include "common/str_cat.h"
#include "router/fleet/fleet.h"

namespace baton::router {
namespace {

bool IsKnownToDecode(const LinkView& view) { return view.facts != nullptr && view.facts->role != WorkerRole::kPrefill; }

}  // namespace

std::shared_ptr<const Fleet::Links> Fleet::links() const {
  std::lock_guard lock(links_mutex_);
  return links_;
}

std::shared_ptr<WorkerLink> Fleet::LinkOf(WorkerId id) const {
  const std::shared_ptr<const Links> all = links();
  return id.index >= 0 && static_cast<size_t>(id.index) < all->size() ? (*all)[static_cast<size_t>(id.index)] : nullptr;
}

void Fleet::SetLink(int32_t slot, std::shared_ptr<WorkerLink> link) {
  auto next = std::make_shared<Links>(*links());
  const auto at = static_cast<size_t>(slot);
  if (next->size() <= at) next->resize(at + 1);
  (*next)[at] = std::move(link);
  std::lock_guard lock(links_mutex_);
  links_ = std::move(next);
}

void Fleet::Start() {
  started_ = true;
  for (const auto& link : *links()) link->Start();
}

void Fleet::Stop() {
  if (stopped_.exchange(true)) return;
  std::promise<void> closed, quiet;
  loops_.home.Post([&] {
    closed_ = true;
    timer_.reset();
    canary_timer_.reset();
    flip_timer_.reset();
    closed.set_value();
  });
  closed.get_future().wait();
  index_.ClearAll();  // each link that stops would walk it for itself
  for (const auto& link : *links()) {
    if (link != nullptr) link->Stop();
  }
  loops_.waiting.Post([&] { quiet.set_value(); });  // behind those that left before
  quiet.get_future().wait();
}

void Fleet::SetEndpoints(std::vector<Endpoint> endpoints) {
  loops_.home.Post([this, endpoints = std::move(endpoints)] {
    if (closed_) return;
    roster_.Listed(endpoints, clock_.Now());
    Seat();
  });
}

void Fleet::Drain(DrainOrder order, std::function<void(absl::StatusOr<LinkView>)> done) {
  loops_.home.Post([this, order = std::move(order), done = std::move(done)] {
    done(closed_ ? absl::UnavailableError("the router is stopping") : DrainNow(order));
  });
}

/// By its name, or by its address, which nobody shares.
absl::StatusOr<LinkView> Fleet::Named(const std::string& worker) const {
  std::vector<std::string> names;
  std::vector<LinkView> found;
  const auto leaves = [this](const LinkView& view) { return roster_.state(view.id.index) == Roster::State::kGone; };
  for (LinkView& view : Views()) {
    if (view.address == worker) return std::move(view);
    names.push_back(view.name());
    if (view.name() == worker) found.push_back(std::move(view));
  }
  if (!std::ranges::all_of(found, leaves)) std::erase_if(found, leaves);
  if (found.size() > 1) {
    std::vector<std::string> addresses;
    for (const LinkView& view : found) addresses.push_back(view.address);
    return absl::InvalidArgumentError(StrCat(found.size(), " workers have the name ", worker, ": give an address, ",
                                             absl::StrJoin(addresses, " or ")));
  }
  if (!found.empty()) return std::move(found.front());
  return absl::NotFoundError(StrCat("no worker has the name or address \"", worker, "\"; there are ",
                                    names.empty() ? "none" : absl::StrJoin(names, ", ")));
}

WhoElseDecodes Fleet::OthersThatDecode(WorkerId id) const {
  WhoElseDecodes out;
  for (const LinkView& view : Views()) {
    if (view.id.index == id.index || !IsKnownToDecode(view)) continue;
    out.any = true;
    out.takes_requests |= view.takes_requests();
  }
  return out;
}

/// One that is lost or waits for its canary counts as the last, as it decodes again soon; as another it does not count.
absl::Status Fleet::CheckNotLast(const LinkView& view) const {
  if (!IsKnownToDecode(view) || !view.held.empty() || OthersThatDecode(view.id).takes_requests) return absl::OkStatus();
  return absl::FailedPreconditionError(
      StrCat("worker ", view.name(), " is the last that decodes: without it every request fails (--force)"));
}

/// A worker that changes its role may be drained, and then is when it has changed. Undone is whatever keeps requests
/// from it: a change that it was not told of yet, and a drain; one that it was told of goes on to its end.
absl::StatusOr<LinkView> Fleet::DrainNow(const DrainOrder& order) {
  BATON_ASSIGN_OR_RETURN(const LinkView view, Named(order.worker));
  const int32_t slot = view.id.index;
  if (order.undo) {
    const absl::Status undone = flips_.Undo(slot, clock_.Now());
    if (!undone.ok() && !roster_.drained(slot))
      return absl::Status(undone.code(), StrCat("worker ", view.name(), ": ", undone.message()));
    roster_.Resume(slot);
    CarryOutFlips();
  } else {
    if (!order.force) BATON_RETURN_IF_ERROR(CheckNotLast(view));
    roster_.Drain(slot);
  }
  Seat();
  return LinkOf(view.id)->View();
}

/// Carries out what the roster has decided.
void Fleet::Seat() {
  for (const RosterAction& action : roster_.TakeActions()) {
    std::visit([this](const auto& one) { Do(one); }, action);
  }
  ReleaseDoubles();
  NoteReady();
  if (!roster_.waits() && doubles_.empty()) return;
  if (timer_ == nullptr) timer_ = loops_.home.MakeTimer();
  timer_->ArmAt(clock_.Now() + Roster::kTick, [this] { Tick(); });
}

void Fleet::Tick() {
  const std::shared_ptr<const Links> all = links();
  roster_.Tick([&](int32_t slot) { return (*all)[static_cast<size_t>(slot)]->idle(); }, clock_.Now());
  Seat();
}

void Fleet::Do(const AddWorker& action) {
  const WorkerLink::Parts parts{config_, loops_.home, *this, index_, clock_};
  auto link = std::make_shared<WorkerLink>(action.slot, action.address, parts, wires_(action.address));
  SetLink(action.slot, link);
  if (!started_) return;
  LogInfo("worker {}: joins", action.address);
  link->Start();
}

void Fleet::Do(const HoldWorker& action) {
  const auto link = LinkOf({action.slot});
  link->Hold(action.why);
  LogInfo("worker {}: takes no new requests: {}", link->View().name(), action.why);
  if (roster_.state(action.slot) == Roster::State::kGone) DialDuplicates();
}

/// Those whose process was reached at another address first: it may serve there no more.
void Fleet::DialDuplicates() {
  for (const auto& link : *links()) {
    if (link != nullptr && link->View().duplicate) link->DialNow();
  }
}

void Fleet::Do(const TakeWorker& action) {
  const auto link = LinkOf({action.slot});
  if (const std::string address = ServesAlsoAt(action.slot); !address.empty()) {
    doubles_.insert(action.slot);
    link->Hold(StrCat("it serves at ", address));
    return LogInfo("worker {}: is listed at {} again, and serves at {}", link->View().name(), link->View().address,
                   address);
  }
  link->Hold("");
  LogInfo("worker {}: takes requests again", link->View().name());
  LookAtCanaries();
}

/// Another address at which the process behind a slot serves; empty: none.
std::string Fleet::ServesAlsoAt(int32_t slot) const {
  const std::shared_ptr<const WorkerFacts> facts = LinkOf({slot})->View().facts;
  std::string address;
  ForEachView([&](const LinkView& other) {
    const bool same = facts != nullptr && other.id.index != slot && other.state == LinkState::kReady &&
                      other.held.empty() && other.facts->worker_id == facts->worker_id &&
                      other.facts->incarnation == facts->incarnation;
    if (same) address = other.address;
  });
  return address;
}

/// Who is at no other address any more takes requests at his own.
void Fleet::ReleaseDoubles() {
  const size_t no_more = std::erase_if(doubles_, [this](int32_t slot) {
    if (roster_.state(slot) != Roster::State::kTaking || roster_.held(slot)) return true;  // held for that
    if (!ServesAlsoAt(slot).empty()) return false;
    LinkOf({slot})->Hold("");
    LogInfo("worker {}: takes requests again", LinkOf({slot})->View().name());
    return true;
  });
  if (no_more > 0) LookAtCanaries();
}

void Fleet::Do(const DropWorker& action) {
  const auto link = LinkOf({action.slot});
  LogInfo("worker {}: leaves, nothing runs there", link->View().name());
  link->Leave(absl::UnavailableError("the worker is listed no more"));
  SetLink(action.slot, nullptr);
  canaries_.Forget(action.slot);
  flips_.Forget(action.slot);
  loops_.waiting.Post([link] { link->Shutdown(); });
  DialDuplicates();
}

void Fleet::Do(const RefuseWorkers& action) {
  LogWarning("{} workers are too many, at most {} can be known; the first is {}", action.count, kMaxWorkers,
             action.first);
}

// One process under two addresses would count twice, unless it has moved: the address that is listed no more ends what
// runs there. Two processes under one name are told apart by their addresses alone.
absl::Status Fleet::CheckName(int32_t slot, const WorkerFacts& facts) const {
  absl::Status status;
  std::vector<std::string> others;
  ForEachView([&](const LinkView& other) {
    const bool there = other.state == LinkState::kReady || other.state == LinkState::kDraining;
    if (other.id.index == slot || !there || other.facts->worker_id != facts.worker_id || !status.ok()) return;
    const bool leaves = roster_.state(other.id.index) == Roster::State::kGone && !roster_.held(other.id.index);
    if (leaves) return;
    if (other.facts->incarnation == facts.incarnation) {
      status =
          absl::AlreadyExistsError(StrCat("worker_id: it is ", facts.worker_id, ", which serves at ", other.address));
      return;
    }
    others.push_back(other.address);
  });
  if (status.ok() && !others.empty())
    LogWarning("worker {}: {} workers have this name, others are at {} (--worker-id)", facts.worker_id,
               others.size() + 1, absl::StrJoin(others, ", "));
  return status;
}

}  // namespace baton::router
