// TopFeed: where `baton top` has its events from: a router's admin port, read on a thread of its own, or a recording.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/cancellation.h"
#include "cli/http_client.h"
#include "common/clock.h"

namespace baton::cli {

/// The events of a router. Its methods belong to one thread.
class TopFeed {
 public:
  TopFeed(HttpUrl url, std::string api_key);
  ~TopFeed();
  TopFeed(const TopFeed&) = delete;
  TopFeed& operator=(const TopFeed&) = delete;

  /// What came since the last call; waits for something until `timeout`.
  std::vector<std::string> Take(Duration timeout);
  /// OK while the stream is open, or is being opened for the first time. Unavailable: not connected; it is tried again.
  /// Others, which do not go away by themselves: the key is wrong, or this is no admin port.
  absl::Status status();

 private:
  void Run();
  absl::Status Follow();

  const HttpUrl url_;
  const std::string api_key_;
  Cancellation stop_;
  std::atomic<bool> over_{false};
  std::mutex mutex_;  // guards what follows
  std::condition_variable came_;
  std::vector<std::string> events_;
  absl::Status status_;
  std::thread thread_;  // last: it uses the others
};

struct RecordedEvent {
  /// After those before it; at most `kLongestPauseMs`, whatever a clock was set to, or how long nothing was recorded.
  double pause_ms = 0;
  std::string line;
};
inline constexpr double kLongestPauseMs = 5000;
/// The lines of a recording in their order.
struct Recording {
  std::vector<RecordedEvent> events;
  size_t cut_line = 0;  ///< number of the last line, which ends in the middle and is left out; 0: it is whole
};
/// NotFound; InvalidArgument: FILE:LINE and what is wrong.
absl::StatusOr<Recording> ReadRecording(const std::string& path);

}  // namespace baton::cli
