// SpanBatch: which spans wait for the collector, which are under way, and when to try again. Pure and not thread-safe:
// SpanExporter is its shell.
#pragma once

#include <cstdint>
#include <vector>

#include "common/clock.h"
#include "router/telemetry/request_trace.h"

namespace baton::router {

/// Spans since the start, by what became of them.
struct SpanCounts {
  int64_t sent = 0;     ///< taken by the collector
  int64_t dropped = 0;  ///< there was no room: too many waited
  int64_t failed = 0;   ///< the collector did not take them, however often they were sent
};

class SpanBatch {
 public:
  static constexpr size_t kMostWaiting = 8192, kMostAtOnce = 512;
  static constexpr int kMostTries = 6;
  static constexpr Duration kEvery = std::chrono::seconds(1), kLongestPause = std::chrono::seconds(30);

  /// All spans of a request or none of them.
  void Add(std::vector<Span> spans);
  /// When something is to be sent: at once where a batch is full, else kEvery after the last time.
  TimePoint DueAt() const { return waiting_.size() >= kMostAtOnce && tries_ == 0 ? TimePoint{} : not_before_; }
  bool empty() const { return waiting_.empty(); }
  /// What to send now: the oldest, at most kMostAtOnce. They are the same until Sent or Failed.
  std::vector<Span> Next();
  /// `rejected`: of them, by the collector that took the others.
  void Sent(TimePoint now, int64_t rejected = 0);
  /// To be sent again. Returns whether this was the first failure in a row.
  bool Failed(TimePoint now);
  /// The collector takes them never: they make way for the next ones. Returns as Failed.
  bool Refused(TimePoint now);
  const SpanCounts& counts() const { return counts_; }

 private:
  void Forget(int64_t& count);

  std::vector<Span> waiting_;
  size_t under_way_ = 0;  ///< the first of waiting_
  int tries_ = 0;         ///< of them, in vain
  TimePoint not_before_{};
  SpanCounts counts_;
  bool failing_ = false;
};

}  // namespace baton::router
