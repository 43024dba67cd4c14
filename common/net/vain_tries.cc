#include "common/net/vain_tries.h"

#include <algorithm>

namespace baton::net {
namespace {

using boost::asio::ip::address;

constexpr double kForgottenIn = 25;  // seconds
constexpr size_t kMostAddressesKept = 65536;
constexpr Duration kDropPause = std::chrono::seconds(1);

}  // namespace

double VainTries::LeftAt(const Tries& tries, TimePoint now) const {
  const double seconds = std::chrono::duration<double>(now - tries.at).count();
  return std::max(0.0, tries.made - seconds * most_ / kForgottenIn);
}

bool VainTries::May(const address& from) const {
  const auto one = by_address_.find(from);
  return most_ <= 0 || one == by_address_.end() || LeftAt(one->second, clock_.Now()) + 1 <= most_;
}

void VainTries::Count(const address& from, double tries) {
  if (most_ <= 0) return;
  const TimePoint now = clock_.Now();
  DropForgotten(now);
  if (by_address_.size() >= kMostAddressesKept && !by_address_.contains(from)) return;
  Tries& of = by_address_[from];
  of = {std::min<double>(LeftAt(of, now) + tries, most_), now};
}

void VainTries::TakeBack(const address& from, double tries) {
  const auto one = by_address_.find(from);
  if (one == by_address_.end()) return;
  const TimePoint now = clock_.Now();
  one->second = {std::max(0.0, LeftAt(one->second, now) - tries), now};
}

void VainTries::DropForgotten(TimePoint now) {
  if (now - dropped_ < kDropPause) return;
  dropped_ = now;
  std::erase_if(by_address_, [&](const auto& one) { return LeftAt(one.second, now) == 0; });
}

}  // namespace baton::net
