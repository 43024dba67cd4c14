// GivenUpCalls: who gives up more calls of a port than he may. Header-only. Not thread-safe.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/net/vain_tries.h"

namespace baton::net {

/// Of calls that are given up one has as many as may run on a connection, 1,024 at least, and 1 / 25 of them come back
/// each second, over all connections. Who has waited for his answer (kWaited) may give it up: it held a place until
/// then. Not so what is under way on a connection beyond what may run there: where thousands are given up at once their
/// ends are heard of late, so they are counted before, and how long they seem to have waited says nothing.
class GivenUpCalls {
 public:
  static constexpr int32_t kFew = 1024;
  static constexpr Duration kWaited = std::chrono::milliseconds(100);

  /// `most_on_one`: calls that may run on one connection.
  GivenUpCalls(int32_t most_on_one, const Clock& clock)
      : most_on_one_(most_on_one), tries_(std::max(kFew, most_on_one), clock) {}

  /// A call of `who` begins on the connection of `peer`. False: he may give up no more.
  bool Begin(const std::string& who, std::string_view peer) {
    if (++under_way_[std::string(peer)] > most_on_one_) tries_.Count(who);
    return tries_.May(who);
  }

  /// One that began is over, that long afterwards. False: it was given up, and he may give up no more.
  bool End(const std::string& who, std::string_view peer, bool given_up, Duration lasted) {
    const auto here = under_way_.find(peer);
    if (here == under_way_.end()) return true;
    const bool counted = here->second > most_on_one_;  // as many end so as were counted when they began
    const bool in_vain = given_up && (lasted < kWaited || counted);
    if (--here->second == 0) under_way_.erase(here);
    if (in_vain && !counted) tries_.Count(who);
    if (!in_vain && counted) tries_.TakeBack(who);
    return !in_vain || tries_.May(who);
  }

 private:
  const int32_t most_on_one_;
  TriesOf<std::string> tries_;
  std::map<std::string, int32_t, std::less<>> under_way_;  ///< by the connection's peer
};

}  // namespace baton::net
