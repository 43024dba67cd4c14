// VainTries: how often each address has tried in vain of late, and whether it may once more. What is in vain (a
// connection that comes to nothing, a call that is given up) costs the same whoever it comes from, and many connections
// of one address count as one. Tries are forgotten evenly. Not thread-safe.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <cstdint>
#include <map>
#include <string>

#include "common/clock.h"

namespace baton::net {

template <class Who>
class TriesOf {
 public:
  /// `most`: of one at once, forgotten in 25 s; 0: no limit. `beyond`: so many more are counted of one who goes on, and
  /// he has none left before those are forgotten.
  TriesOf(int32_t most, const Clock& clock, int32_t beyond = 0) : most_(most), beyond_(beyond), clock_(clock) {}

  /// Whether one (an address: as CountedAs gives it) has tries left.
  bool May(const Who& from) const;
  /// Counts a try, or a part of one. Of more than 65,536 with tries new ones are not counted.
  void Count(const Who& from, double tries = 1);
  /// So many were not in vain after all.
  void TakeBack(const Who& from, double tries = 1);

 private:
  struct Tries {
    double made = 0;  ///< at `at`
    TimePoint at{};
  };
  double LeftAt(const Tries& tries, TimePoint now) const;
  void DropForgotten(TimePoint now);

  const int32_t most_, beyond_;
  const Clock& clock_;
  TimePoint dropped_{};  ///< when those of which nothing is left were last looked for
  std::map<Who, Tries> by_who_;
};

using VainTries = TriesOf<boost::asio::ip::address>;

}  // namespace baton::net
