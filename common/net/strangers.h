// Strangers: how many new connections each address has made in this second, and whether it may make one more. Keeps the
// addresses of one second, which are no more than the connections that were accepted in it. Not thread-safe.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <cstdint>
#include <map>

#include "common/clock.h"

namespace baton::net {

class Strangers {
 public:
  /// `per_second`: of one address; 0: no limit.
  Strangers(int32_t per_second, const Clock& clock) : per_second_(per_second), clock_(clock) {}

  /// Counts a connection of `from`, as CountedAs gives it. False: it is one too many.
  bool May(const boost::asio::ip::address& from);

 private:
  const int32_t per_second_;
  const Clock& clock_;
  TimePoint second_{};  ///< since when `made_` are counted
  std::map<boost::asio::ip::address, int32_t> made_;
};

}  // namespace baton::net
