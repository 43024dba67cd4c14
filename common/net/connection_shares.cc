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

bool IsThisMachine(const address& from) {
  return from == boost::asio::ip::address_v4::loopback() || from == boost::asio::ip::address_v6::loopback();
}

const char* ConnectionShares::Enter(const address& from) {
  std::lock_guard lock(mutex_);
  if (all_ >= limits_.most) return "max-connections";
  if (limits_.per_address > 0 && (limits_.loopback_too || !IsThisMachine(from))) {
    const auto at = by_address_.find(from);
    const int32_t most =
        limits_.leaves_others ? std::min(limits_.per_address, limits_.most - all_) : limits_.per_address;
    if (at != by_address_.end() && at->second >= most) return "max-connections-per-address";
  }
  ++by_address_[from];
  ++all_;
  return nullptr;
}

void ConnectionShares::Leave(const address& from) {
  std::lock_guard lock(mutex_);
  if (const auto at = by_address_.find(from); --at->second == 0) by_address_.erase(at);
  --all_;
}

int32_t ConnectionShares::all() const {
  std::lock_guard lock(mutex_);
  return all_;
}

}  // namespace baton::net
