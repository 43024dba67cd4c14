#include "router/admission/key_shares.h"

#include <algorithm>

namespace baton::router {

bool KeyShares::FitsShare(KeyOwner owner, int64_t amount) const {
  if (!Fits(amount)) return false;
  const int64_t held = HeldBy(owner);
  return !several_ || held == 0 || held + amount <= kTimesFree * (most_ - used_ - amount);
}

void KeyShares::Take(KeyOwner owner, int64_t amount) {
  if (amount == 0) return;
  used_ += amount;
  held_[owner] += amount;
}

void KeyShares::Return(KeyOwner owner, int64_t amount) {
  used_ -= amount;
  const auto at = held_.find(owner);
  if (at != held_.end() && (at->second -= amount) == 0) held_.erase(at);
}

int64_t KeyShares::HeldBy(KeyOwner owner) const {
  const auto at = held_.find(owner);
  return at == held_.end() ? 0 : at->second;
}

int64_t KeyShares::ShareOf(KeyOwner owner) const {
  if (!several_) return most_;
  const auto keys = static_cast<int64_t>(held_.size()) + (held_.contains(owner) ? 0 : 1);
  return std::max<int64_t>(1, kTimesFree * most_ / (kTimesFree * keys + 1));
}

}  // namespace baton::router
