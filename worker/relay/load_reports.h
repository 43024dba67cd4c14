// LoadReports: when one watcher of a worker hears its load. What is news goes out at the watcher's interval; a report
// that says nothing new costs router and worker a message each, and waits. Sans-IO; one thread, the scheduler's.
#pragma once

#include "common/clock.h"
#include "worker/relay/wire_stream.h"

namespace baton::worker {

/// How often a watcher that names no interval hears the load, and the shortest interval that is granted.
constexpr Duration kLoadInterval = std::chrono::milliseconds(100), kLeastLoadInterval = std::chrono::milliseconds(10);

/// What a watcher asks for.
struct LoadTerms {
  Duration every{};  ///< between two reports
  Duration quiet{};  ///< the same while there is no news; less than `every`: as `every`
};
LoadTerms LoadTermsOf(const v1::WatchRequest& request);

/// Whether a router that was told `told` needs `now` soon: its choice among workers depends on what differs, or what
/// differs stays until somebody acts on it. Sequences and tokens that wait count exactly; KV blocks by a 64th of all;
/// measured rates by a sixteenth. Counters are no news while something runs: what they add up to is told later as well.
bool IsNews(const v1::Load& told, const v1::Load& now);

class LoadReports {
 public:
  explicit LoadReports(const LoadTerms& terms) : terms_(terms) {}

  /// True: send `load` now; it is taken to be sent. To be asked every `every()` at least.
  bool Due(const v1::Load& load, TimePoint now);
  Duration every() const { return terms_.every; }

 private:
  LoadTerms terms_;
  TimePoint next_{};        ///< for news
  TimePoint next_quiet_{};  ///< for whatever there is
  v1::Load told_;
};

}  // namespace baton::worker
