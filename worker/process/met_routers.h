// MetRouters: which routers have greeted this worker, for the log. Thread-safe.
#pragma once

#include <deque>
#include <mutex>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/limited_lines.h"

namespace baton::worker {

class MetRouters {
 public:
  static constexpr size_t kMost = 64;  ///< that are remembered, the latest
  /// Of an id, in the line: who reads the log does not learn the whole, by which a router's legs are known.
  static constexpr size_t kShownBytes = 23;

  explicit MetRouters(const Clock& clock) : lines_(clock) {}
  /// A router of the machine `host` greets: the line that says so, of one that is not remembered; else empty, as where
  /// `host` has had a line in this second (LimitedLines). `id`, `version`: its own words.
  std::string LineOf(std::string_view id, std::string_view version, std::string_view host);

 private:
  std::mutex mutex_;  // guards what follows
  LimitedLines lines_;
  std::deque<std::string> met_;  ///< by id
};

}  // namespace baton::worker
