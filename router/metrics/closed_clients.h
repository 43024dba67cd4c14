// ClosedClients: clients whose connections or calls we end, or refuse, for what they took: each is counted, and is a
// line in the log at most once a second for an address. Header-only. Thread-safe.
#pragma once

#include <mutex>
#include <string>

#include "common/clock.h"
#include "common/limited_lines.h"
#include "common/log.h"
#include "router/metrics/router_metrics.h"

namespace baton::router {

class ClosedClients {
 public:
  ClosedClients(RouterMetrics& metrics, const Clock& clock) : metrics_(metrics), lines_(clock) {}

  /// `port`: "http", "admin", "grpc"; `what`: "connection", "call"; `address`: without its port.
  void Note(const char* port, const char* what, const std::string& address, const char* why) {
    metrics_.ConnectionClosed(port, why);
    {
      std::lock_guard lock(mutex_);
      if (!lines_.May(address)) return;
    }
    LogWarning("{} port: a {} of {} is ended ({})", port, what, address, why);
  }

 private:
  RouterMetrics& metrics_;
  std::mutex mutex_;  // guards what follows
  LimitedLines lines_;
};

}  // namespace baton::router
