#include "common/net/connection_places.h"

#include <string_view>

namespace baton::net {

ConnectionPlaces::Entered ConnectionPlaces::Enter(Place& place) {
  std::lock_guard lock(mutex_);
  Entered entered;
  const char* full = shares_.Enter(place.from_, Yielding());
  if (full != nullptr) {
    const auto own = by_address_.find(place.from_);
    Group* const of = full == kFull ? &all_ : own != by_address_.end() ? &own->second : nullptr;
    Place* const oldest = of == nullptr ? nullptr : Oldest(*of);
    if (oldest == nullptr) return {full, nullptr};
    entered.gave_way = oldest->shared_from_this();
    Forget(*oldest);
    shares_.Replace(oldest->from_, place.from_);
  }
  place.state_ = State::kNew;
  place.of_address_ = &by_address_[place.from_];
  place.in_all_ = all_.of(State::kNew).insert(all_.of(State::kNew).end(), &place);
  auto& own = place.of_address_->of(State::kNew);
  place.in_address_ = own.insert(own.end(), &place);
  return entered;
}

/// Those of this machine that would give way, where it has no share that holds them.
int32_t ConnectionPlaces::Yielding() {
  size_t count = 0;
  for (const boost::asio::ip::address& here : {boost::asio::ip::address(boost::asio::ip::address_v4::loopback()),
                                               boost::asio::ip::address(boost::asio::ip::address_v6::loopback())}) {
    const auto own = by_address_.find(here);
    if (own != by_address_.end() && !shares_.Limited(here)) count += own->second.waiting();
  }
  return static_cast<int32_t>(count);
}

ConnectionPlaces::Place* ConnectionPlaces::Oldest(Group& of) {
  for (const State state : {State::kNew, State::kIdle}) {
    std::list<Place*>& waiting = of.of(state);
    for (size_t looks = waiting.size(); looks > 0; --looks) {
      if (!IsSending(*waiting.front())) break;
      Move(*waiting.front(), state);
    }
    if (!waiting.empty()) return waiting.front();
  }
  return nullptr;
}

/// Whether a later request has begun to come, or so much of one has come, since the latest look.
bool ConnectionPlaces::IsSending(Place& place) {
  const bool begins = place.begins_.exchange(false, std::memory_order_relaxed);
  if (place.state_ == State::kIdle && !begins && place.seen_ == 0 && !place.MayHaveBegun()) return false;
  const uint64_t before = std::exchange(place.seen_, place.Brought());
  return begins || place.seen_ >= before + kBytesOfAPlace;
}

std::vector<std::shared_ptr<ConnectionPlaces::Place>> ConnectionPlaces::GiveUpSome() {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Place>> out;
  while (out.size() < kGivenUpAtOnce) {
    Place* const oldest = Oldest(all_);
    if (oldest == nullptr) break;
    Forget(*oldest);
    shares_.Leave(oldest->from_);
    out.push_back(oldest->shared_from_this());
  }
  return out;
}

const char* ConnectionPlaces::Full(const boost::asio::ip::address& from) {
  std::lock_guard lock(mutex_);
  return shares_.Full(from, Yielding());
}

bool ConnectionPlaces::SetBusy(Place& place) {
  std::lock_guard lock(mutex_);
  if (place.state_ == State::kNone) return false;
  Move(place, State::kBusy);
  return true;
}

void ConnectionPlaces::SetIdle(Place& place) {
  std::lock_guard lock(mutex_);
  if (place.state_ == State::kNone) return;
  place.begins_.store(false, std::memory_order_relaxed);
  place.seen_ = 0;
  Move(place, State::kIdle);
}

void ConnectionPlaces::Leave(Place& place) {
  std::lock_guard lock(mutex_);
  if (place.state_ == State::kNone) return;
  Forget(place);
  shares_.Leave(place.from_);
}

void ConnectionPlaces::Move(Place& place, State to) {
  for (const auto& [group, at] : {std::pair(&all_, place.in_all_), std::pair(place.of_address_, place.in_address_)})
    group->of(to).splice(group->of(to).end(), group->of(place.state_), at);
  place.state_ = to;
}

void ConnectionPlaces::Forget(Place& place) {
  all_.of(place.state_).erase(place.in_all_);
  place.of_address_->of(place.state_).erase(place.in_address_);
  if (place.of_address_->waiting() + place.of_address_->of(State::kBusy).size() == 0) by_address_.erase(place.from_);
  place.state_ = State::kNone;
}

}  // namespace baton::net
