#include "router/fleet/roster.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace baton::router {
namespace {

constexpr const char* kDrained = "an operator drains it (baton drain)";
constexpr const char* kChangesRole = "it changes its role (baton flip)";

}  // namespace

const char* Roster::Place::held() const { return drained ? kDrained : changes_role ? kChangesRole : nullptr; }

void Roster::Listed(absl::Span<const Endpoint> endpoints, TimePoint now) {
  std::unordered_map<std::string, const Endpoint*> listed;
  for (const Endpoint& one : endpoints) listed.emplace(one.address, &one);
  for (size_t i = 0; i < places_.size(); ++i) {
    Place& place = places_[i];
    if (place.state == State::kFree) continue;
    const auto found = listed.find(place.address);
    if (found != listed.end()) {
      Show(static_cast<int32_t>(i), *found->second);
      listed.erase(found);
    } else if (place.state != State::kGone) {
      if (place.state == State::kTaking) actions_.emplace_back(HoldWorker{static_cast<int32_t>(i), "listed no more"});
      place.state = State::kGone;
      place.gone_at = now;
    }
  }
  waiting_.clear();
  for (const Endpoint& one : endpoints) {
    if (one.takes_requests() && listed.erase(one.address) > 0) waiting_.push_back(one.address);
  }
  Seat();
}

/// A worker that has a place is listed.
void Roster::Show(int32_t slot, const Endpoint& endpoint) {
  Place& place = places_[static_cast<size_t>(slot)];
  if (endpoint.takes_requests()) {
    const char* held = place.held();
    if (place.state != State::kTaking && held != nullptr) actions_.emplace_back(HoldWorker{slot, held});
    if (place.state != State::kTaking && held == nullptr) actions_.emplace_back(TakeWorker{slot});
    place.state = State::kTaking;
    return;
  }
  if (place.state == State::kTaking)
    actions_.emplace_back(HoldWorker{slot, endpoint.terminating ? "it terminates" : "it does not serve"});
  place.state = State::kDraining;
}

void Roster::Seat() {
  size_t seated = 0, next = 0;  // the next place
  for (; seated < waiting_.size(); ++seated) {
    while (next < places_.size() && places_[next].state != State::kFree) ++next;
    if (next == static_cast<size_t>(most_)) break;
    if (next == places_.size()) places_.emplace_back();
    places_[next] = {State::kTaking, waiting_[seated], {}};
    actions_.emplace_back(AddWorker{static_cast<int32_t>(next), waiting_[seated]});
  }
  waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<ptrdiff_t>(seated));
  if (!waiting_.empty() && waiting_.size() != refused_)
    actions_.emplace_back(RefuseWorkers{waiting_.size(), waiting_.front()});
  refused_ = waiting_.size();
}

void Roster::Tick(const std::function<bool(int32_t slot)>& idle, TimePoint now) {
  for (size_t i = 0; i < places_.size(); ++i) {
    Place& place = places_[i];
    if (place.state != State::kGone || now - place.gone_at < kLinger || !idle(static_cast<int32_t>(i))) continue;
    place = {};
    actions_.emplace_back(DropWorker{static_cast<int32_t>(i)});
  }
  if (!waiting_.empty()) Seat();
}

void Roster::Drain(int32_t slot, Hold why) {
  if (state(slot) == State::kFree) return;
  Place& place = places_[static_cast<size_t>(slot)];
  const char* before = place.held();
  place.flag(why) = true;
  if (place.state == State::kTaking && place.held() != before) actions_.emplace_back(HoldWorker{slot, place.held()});
}

void Roster::Resume(int32_t slot, Hold why) {
  if (state(slot) == State::kFree) return;
  Place& place = places_[static_cast<size_t>(slot)];
  const char* before = place.held();
  place.flag(why) = false;
  const char* now = place.held();
  if (place.state != State::kTaking || now == before) return;
  if (now == nullptr) {
    actions_.emplace_back(TakeWorker{slot});
  } else {
    actions_.emplace_back(HoldWorker{slot, now});
  }
}

bool Roster::waits() const {
  return std::ranges::any_of(places_, [](const Place& place) { return place.state == State::kGone; });
}

bool Roster::drained(int32_t slot) const {
  return state(slot) != State::kFree && places_[static_cast<size_t>(slot)].drained;
}

bool Roster::held(int32_t slot) const {
  return state(slot) != State::kFree && places_[static_cast<size_t>(slot)].held() != nullptr;
}

Roster::State Roster::state(int32_t slot) const {
  return static_cast<size_t>(slot) < places_.size() ? places_[static_cast<size_t>(slot)].state : State::kFree;
}

std::vector<RosterAction> Roster::TakeActions() { return std::exchange(actions_, {}); }

}  // namespace baton::router
