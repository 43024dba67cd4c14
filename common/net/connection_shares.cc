#include "common/net/connection_shares.h"

#include <algorithm>

namespace baton::net {

using boost::asio::ip::address;

address CountedAs(const address& from) {
  if (from.is_v4()) return from;
  if (from.to_v6().is_v4_mapped()) return boost::asio::ip::make_address_v4(boost::asio::ip::v4_mapped, from.to_v6());
  if (from.is_loopback()) return from;
  boost::asio::ip::address_v6::bytes_type bytes = from.to_v6().to_bytes();
  std::fill(bytes.begin() + 8, bytes.end(), 0);
  return boost::asio::ip::address_v6(bytes);
}

std::optional<address> CountedAs(const std::string& from) {
  boost::system::error_code no;
  const address parsed = boost::asio::ip::make_address(from, no);
  if (no) return std::nullopt;
  return CountedAs(parsed);
}

bool IsThisMachine(const address& from) {
  return from == boost::asio::ip::address_v4::loopback() || from == boost::asio::ip::address_v6::loopback();
}

bool ConnectionShares::Limited(const address& from) const {
  return limits_.per_address > 0 && (limits_.loopback_too || !IsThisMachine(from));
}

const char* ConnectionShares::Enter(const address& from, int32_t yielding) {
  std::lock_guard lock(mutex_);
  if (const char* full = WhyFull(from, yielding)) return full;
  ++by_address_[from];
  ++all_;
  return nullptr;
}

const char* ConnectionShares::Full(const address& from, int32_t yielding) const {
  std::lock_guard lock(mutex_);
  return WhyFull(from, yielding);
}

const char* ConnectionShares::WhyFull(const address& from, int32_t yielding) const {
  if (Limited(from)) {
    const auto at = by_address_.find(from);
    const int32_t most =
        limits_.leaves_others ? std::min(limits_.per_address, limits_.most - all_ + yielding) : limits_.per_address;
    if (at != by_address_.end() && at->second >= most) return kAddressFull.data();
  }
  return all_ >= limits_.most ? kFull.data() : nullptr;
}

void ConnectionShares::Leave(const address& from) {
  std::lock_guard lock(mutex_);
  Forget(from);
  --all_;
}

void ConnectionShares::Replace(const address& left, const address& from) {
  std::lock_guard lock(mutex_);
  ++by_address_[from];
  Forget(left);
}

void ConnectionShares::Forget(const address& from) {
  if (const auto at = by_address_.find(from); --at->second == 0) by_address_.erase(at);
}

int32_t ConnectionShares::all() const {
  std::lock_guard lock(mutex_);
  return all_;
}

}  // namespace baton::net
