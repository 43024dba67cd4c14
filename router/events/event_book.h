// EventBook: the latest events, numbered from 1, for readers who come at their own pace. Bounded in events and bytes:
// the oldest go first, and a reader who comes too late hears how many it has missed. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

namespace baton::router {

class EventBook {
 public:
  EventBook(size_t most_events, size_t most_bytes) : most_events_(most_events), most_bytes_(most_bytes) {}

  /// `event`: one line of JSON.
  void Append(std::string event);
  /// The number that the next event will have.
  uint64_t next() const { return first_ + events_.size(); }

  struct Batch {
    std::string text;   ///< server-sent events
    uint64_t next = 0;  ///< where to go on
    uint64_t lost = 0;  ///< events that were gone already
  };
  /// Everything from event `number` on.
  Batch From(uint64_t number) const;

  size_t bytes() const { return bytes_; }

 private:
  const size_t most_events_, most_bytes_;
  std::deque<std::string> events_;
  uint64_t first_ = 1;  // number of the oldest
  size_t bytes_ = 0;
};

/// "data: {…}", as an event stream has it.
std::string ServerSent(const std::string& event);

}  // namespace baton::router
