// How often a worker reports its load to this router: asked for in a Watch stream's request, and what silence is judged
// by.
#pragma once

#include "common/clock.h"
#include "router/router_config.h"

namespace baton::router {

struct ReportTerms {
  Duration every = std::chrono::milliseconds(100);
  Duration quiet{};  ///< while the load says nothing new; 0: as `every`
  /// Without a report for longer than this one is late.
  Duration Longest() const { return quiet > every ? quiet : every; }
};

/// A quiet worker is heard five times before its silence or a step without progress makes it lost, and each second:
/// what people watch is no older.
ReportTerms ReportTermsOf(const RouterConfig& config);

}  // namespace baton::router
