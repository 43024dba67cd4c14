#include "router/discovery/list_watch.h"

#include <algorithm>
#include <utility>

namespace baton::router {

ListWatch::Turn ListWatch::Begin(bool has_version) {
  turn_ = has_version && !list_again_ ? Turn::kWatch : Turn::kList;
  list_again_ = true;  // unless it goes well
  return turn_;
}

ListWatch::Ended ListWatch::End(const absl::Status& status, Duration took) {
  if (status.ok() && turn_ == Turn::kList) list_again_ = false;
  if (absl::IsOutOfRange(status) || absl::IsInvalidArgument(status)) list_again_ = true;
  if (status.ok() && (turn_ == Turn::kList || took > kFirstPause)) {
    pause_ = kFirstPause;
    return {};
  }
  // 410: nothing is wrong, but a server that says it each time is not hurried.
  return {std::exchange(pause_, std::min(2 * pause_, kLongestPause)), !status.ok() && !absl::IsOutOfRange(status)};
}

}  // namespace baton::router
