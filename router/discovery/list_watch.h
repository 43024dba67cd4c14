// ListWatch: when one who follows a Kubernetes collection lists it, when it watches, and how long it waits between two
// tries. Pure: it is told what became of each; it has no clock, no socket and no thread.
#pragma once

#include <chrono>

#include "absl/status/status.h"
#include "common/clock.h"

namespace baton::router {

class ListWatch {
 public:
  static constexpr Duration kFirstPause = std::chrono::milliseconds(200), kLongestPause = std::chrono::seconds(10);
  enum class Turn : uint8_t { kList, kWatch };
  struct Ended {
    Duration pause{};     ///< until the next turn begins
    bool failed = false;  ///< something is wrong, and people should hear of it
  };

  /// What to do now. `has_version`: a list has come whole before, from whose version on there is something to watch. A
  /// list comes first, after 410, after a line that is no event, and after a watch that did not open: a server that
  /// was away may be another, which does not know the version.
  Turn Begin(bool has_version);
  /// The server has taken the watch.
  void Opened() { list_again_ = false; }
  /// The turn has ended after `took`. OK: the list is whole, or the server ended the watch in time. OutOfRange: 410.
  /// InvalidArgument: what came cannot be read.
  Ended End(const absl::Status& status, Duration took);

 private:
  Turn turn_ = Turn::kList;
  bool list_again_ = false;
  Duration pause_ = kFirstPause;
};

}  // namespace baton::router
