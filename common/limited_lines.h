// How many lines strangers may cause in the log: one a second for an address, sixteen in all. Not thread-safe.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "common/clock.h"

namespace baton {

class LimitedLines {
 public:
  explicit LimitedLines(const Clock& clock) : clock_(clock) {}
  /// Whether a line about `address` may be written now; then it counts.
  bool May(std::string_view address);

 private:
  const Clock& clock_;
  std::map<std::string, TimePoint, std::less<>> lines_;  ///< by address
  TimePoint second_{};                                   ///< since when `in_second_` are counted
  int in_second_ = 0;
};

}  // namespace baton
