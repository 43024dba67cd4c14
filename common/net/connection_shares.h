// ConnectionShares: how many connections a port has from whom, and whether it takes one more. Thread-safe.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

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
/// The same of an address in text; nothing: it is none.
std::optional<boost::asio::ip::address> CountedAs(const std::string& from);

/// Why there is no place: of all, or of an address.
inline constexpr std::string_view kFull = "max-connections", kAddressFull = "max-connections-per-address";

/// Addresses as CountedAs gives them.
class ConnectionShares {
 public:
  explicit ConnectionShares(const ConnectionLimits& limits) : limits_(limits) {}

  /// Null: there is a place for it, which is taken now. Else why there is none: kFull or kAddressFull. `yielding`:
  /// places that are as good as free where it is asked what an address leaves to others.
  const char* Enter(const boost::asio::ip::address& from, int32_t yielding = 0);
  /// The same, and nothing is taken.
  const char* Full(const boost::asio::ip::address& from, int32_t yielding = 0) const;
  void Leave(const boost::asio::ip::address& from);
  /// `from` has the place that `left` had.
  void Replace(const boost::asio::ip::address& left, const boost::asio::ip::address& from);
  /// Whether `per_address` holds for it.
  bool Limited(const boost::asio::ip::address& from) const;
  int32_t all() const;

 private:
  // With mutex_ held:
  const char* WhyFull(const boost::asio::ip::address& from, int32_t yielding) const;
  void Forget(const boost::asio::ip::address& from);

  const ConnectionLimits limits_;
  mutable std::mutex mutex_;  // guards what follows
  int32_t all_ = 0;
  std::map<boost::asio::ip::address, int32_t> by_address_;
};

}  // namespace baton::net
