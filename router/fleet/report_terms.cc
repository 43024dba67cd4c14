#include "router/fleet/report_terms.h"

#include <algorithm>

namespace baton::router {

ReportTerms ReportTermsOf(const RouterConfig& config) {
  constexpr int kReportsUntilLost = 5, kMostQuietMs = 1000;
  const int lost_ms = std::min(config.heartbeat_timeout_ms, config.step_stall_ms);
  const int quiet_ms = std::min(lost_ms / kReportsUntilLost, kMostQuietMs);
  return {.every = std::chrono::milliseconds(config.load_interval_ms),
          .quiet = std::chrono::milliseconds(quiet_ms > config.load_interval_ms ? quiet_ms : 0)};
}

}  // namespace baton::router
