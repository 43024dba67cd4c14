// VainTries: how often each address has tried in vain of late, and whether it may once more. What is in vain (a
// connection that comes to nothing, a call that is given up) costs the same whoever it comes from, and many connections
// of one address count as one. Tries are forgotten evenly. Not thread-safe.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <cstdint>
#include <map>

#include "common/clock.h"

namespace baton::net {

class VainTries {
 public:
  /// `most`: of one address at once, forgotten in 25 s; 0: no limit.
  VainTries(int32_t most, const Clock& clock) : most_(most), clock_(clock) {}

  /// Whether an address, as CountedAs gives it, has tries left.
  bool May(const boost::asio::ip::address& from) const;
  /// Counts a try, or a part of one. Of more than 65,536 addresses with tries new ones are not counted.
  void Count(const boost::asio::ip::address& from, double tries = 1);
  /// So many were not in vain after all.
  void TakeBack(const boost::asio::ip::address& from, double tries = 1);

 private:
  struct Tries {
    double made = 0;  ///< at `at`
    TimePoint at{};
  };
  double LeftAt(const Tries& tries, TimePoint now) const;
  void DropForgotten(TimePoint now);

  const int32_t most_;
  const Clock& clock_;
  TimePoint dropped_{};  ///< when those of which nothing is left were last looked for
  std::map<boost::asio::ip::address, Tries> by_address_;
};

}  // namespace baton::net
