// OpenStreams: the streams that callers hold open at a worker's port, and what they leave unread there. gRPC bounds
// calls of those who have not greeted, and nothing of what is kept for one who opens a stream and never reads it.
// Thread-safe; time is OwnTime: a worker that stood still does not take its own sleep for its callers'.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "common/limited_lines.h"
#include "common/own_time.h"

namespace baton::worker {

/// The write side of one. Thread-safe.
class OpenStream {
 public:
  virtual ~OpenStream() = default;
  struct Unread {
    size_t bytes = 0;    ///< that wait to be taken
    uint64_t taken = 0;  ///< messages until now
  };
  virtual Unread unread() const = 0;
  /// What waits is dropped, and the stream ends, also where the caller takes nothing.
  virtual void CutOff(const absl::Status& why) = 0;
};

class OpenStreams {
 public:
  enum class Kind : uint8_t { kWatch, kRelay, kPrefill };
  struct Limits {
    /// Of Watch and of Relay, each: a router has one of either, or two while it begins anew. Then the oldest ends.
    size_t of_connection = 4;
    /// The same of all connections. Then one ends of the host that has the most.
    size_t of_all = 1024;
    /// Of all streams together. With more that one ends which has the most.
    size_t unread_bytes = 256 << 20;
    /// In which something is to be taken where something waits.
    Duration unread_time = std::chrono::seconds(30);
  };
  explicit OpenStreams(const Clock& clock) : OpenStreams(clock, Limits()) {}
  OpenStreams(const Clock& clock, Limits limits) : limits_(limits), clock_(clock), own_(clock.Now()), lines_(clock) {}

  /// `peer`: as gRPC names it. Another stream may be cut off. Returns its number.
  uint64_t Enter(Kind kind, std::string peer, std::shared_ptr<OpenStream> stream);
  void Leave(uint64_t number);
  /// Every 100 ms about: cuts off who takes nothing.
  void Look();
  int64_t cut_off() const { return cut_off_; }  ///< a counter

 private:
  struct One {
    Kind kind;
    std::string peer;
    std::shared_ptr<OpenStream> stream;
    uint64_t taken = 0;  ///< at the latest look
    TimePoint since;     ///< of own_: it takes nothing, or nothing waits
    std::string_view host() const;
  };
  struct Ended {
    One one;
    std::string why;
  };
  using All = std::map<uint64_t, One>;
  // With mutex_ held:
  All::iterator OneTooMany(Kind kind, const std::string& peer, std::string& why);
  All::iterator OneOf(Kind kind, std::string_view host);
  Ended Take(All::iterator at, std::string why);

  void End(std::vector<Ended> ended);

  const Limits limits_;
  const Clock& clock_;
  std::atomic<int64_t> cut_off_ = 0;
  std::mutex mutex_;  // guards what follows
  OwnTime own_;
  All all_;  ///< by number, in the order of coming
  uint64_t last_ = 0;
  LimitedLines lines_;
};

}  // namespace baton::worker
