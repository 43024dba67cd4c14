#include "router/http/arriving_bodies.h"

#include <algorithm>
#include <utility>

namespace baton::router {

ArrivingBodies::Body::Body(ArrivingBodies& all, std::string from, std::function<void()> give_up)
    : all_(all), number_([&] {
        std::lock_guard lock(all.mutex_);
        all.bodies_.emplace(all.next_, Arriving{std::move(from), std::move(give_up)});
        return all.next_++;
      }()) {}

ArrivingBodies::Body::~Body() {
  std::lock_guard lock(all_.mutex_);
  const auto body = all_.bodies_.find(number_);
  all_.Count(body->second, 0);
  all_.bodies_.erase(body);
}

void ArrivingBodies::Body::Has(size_t bytes) {
  std::lock_guard lock(all_.mutex_);
  Arriving& body = all_.bodies_.at(number_);
  if (!body.give_up) return;
  all_.Count(body, bytes);
  all_.GiveUpSome();
}

void ArrivingBodies::Count(Arriving& body, size_t bytes) {
  bytes_ += bytes - body.bytes;
  const auto whose = of_whom_.try_emplace(body.from).first;
  whose->second += bytes - body.bytes;
  if (whose->second == 0) of_whom_.erase(whose);
  body.bytes = bytes;
}

void ArrivingBodies::GiveUpSome() {
  while (bytes_ > most_bytes_) {
    const std::string& whose =
        std::ranges::max_element(of_whom_, {}, [](const auto& one) { return one.second; })->first;
    const auto oldest = std::ranges::find_if(
        bodies_, [&](const auto& one) { return one.second.bytes > 0 && one.second.from == whose; });
    std::exchange(oldest->second.give_up, nullptr)();
    Count(oldest->second, 0);
  }
}

}  // namespace baton::router
