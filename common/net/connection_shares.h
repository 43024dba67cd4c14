// ConnectionShares: how many connections a port has from whom, and whether it takes one more. Thread-safe.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <cstdint>
#include <map>
#include <mutex>

namespace baton::net {

struct ConnectionLimits {
  int32_t most = 20000;
  int32_t per_address = 0;     ///< an IPv6 /64 is one address; 0: no limit
  bool leaves_others = false;  ///< and of an address no more than are free: k addresses leave 1/2^k of all
  bool loopback_too = false;   ///< `per_address` holds for 127.0.0.1 and ::1, too, from which a proxy here dials
};

/// 127.0.0.1 or ::1: what dials on this machine, a proxy for one, unless it is told to bind another address.
bool IsThisMachine(const boost::asio::ip::address& from);

/// Whose connections count together: an IPv6 client has a /64 to itself.
boost::asio::ip::address CountedAs(const boost::asio::ip::address& from);

/// Addresses as CountedAs gives them.
class ConnectionShares {
 public:
  explicit ConnectionShares(const ConnectionLimits& limits) : limits_(limits) {}

  /// Null: there is a place for it, which is taken now. Else why there is none: "max-connections" or
  /// "max-connections-per-address".
  const char* Enter(const boost::asio::ip::address& from);
  void Leave(const boost::asio::ip::address& from);
  int32_t all() const;

 private:
  const ConnectionLimits limits_;
  mutable std::mutex mutex_;  // guards what follows
  int32_t all_ = 0;
  std::map<boost::asio::ip::address, int32_t> by_address_;
};

}  // namespace baton::net
