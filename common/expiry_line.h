// Keys in the order in which they are to be forgotten: looking for what is due costs what is due, however much waits.
// The times must not go back. Not thread-safe.
#pragma once

#include <deque>
#include <utility>

#include "common/check.h"
#include "common/clock.h"

namespace baton {

template <class Key>
class ExpiryLine {
 public:
  void Add(Key key, TimePoint at) {
    BATON_CHECK(line_.empty() || line_.back().first <= at);
    line_.emplace_back(at, std::move(key));
  }
  /// Calls `forget(key)` for what is due; it may have been added again since.
  template <class Forget>
  void PopDue(TimePoint now, Forget&& forget) {
    for (; !line_.empty() && line_.front().first <= now; line_.pop_front()) forget(line_.front().second);
  }

 private:
  std::deque<std::pair<TimePoint, Key>> line_;
};

}  // namespace baton
