// When tokens were drawn. Steps that nothing disturbs are taken as one, and their tokens then travel together: a client
// is told here when each would have come.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/clock.h"

namespace baton::sim {

class TokenTimes {
 public:
  /// The token at `position` of that leg's sequence was drawn at `when`; in the order of positions. Drawn again,
  /// because its worker died before it had told: it and those behind it are as new.
  void Note(const std::string& leg_id, uint64_t position, TimePoint when) {
    std::deque<std::pair<uint64_t, TimePoint>>& tokens = drawn_[leg_id];
    while (!tokens.empty() && tokens.back().first >= position) tokens.pop_back();
    tokens.push_back({position, when});
  }
  /// Takes that out; `otherwise`: nobody noted it.
  TimePoint Take(const std::string& leg_id, uint64_t position, TimePoint otherwise) {
    const auto leg = drawn_.find(leg_id);
    if (leg == drawn_.end()) return otherwise;
    std::deque<std::pair<uint64_t, TimePoint>>& tokens = leg->second;
    while (!tokens.empty() && tokens.front().first < position) tokens.pop_front();
    if (tokens.empty() || tokens.front().first != position) return otherwise;
    const TimePoint when = tokens.front().second;
    tokens.pop_front();
    return when;
  }
  void Forget(const std::string& leg_id) { drawn_.erase(leg_id); }

 private:
  absl::flat_hash_map<std::string, std::deque<std::pair<uint64_t, TimePoint>>> drawn_;
};

}  // namespace baton::sim
