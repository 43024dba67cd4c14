// Signals as values: blocked in every thread, taken by the main thread when it asks.
#pragma once

#include <csignal>
#include <optional>

#include "common/clock.h"

namespace baton::cli {

/// Blocks SIGINT, SIGTERM, SIGCHLD (and ignores SIGPIPE and SIGXFSZ) for this thread and every thread
/// started after. Call first in main.
void BlockSignals();
/// SIGINT and SIGTERM end this process as they end others. Before threads are started.
void LetSignalsEnd();

/// Waits for one of SIGINT, SIGTERM or (when `children`) SIGCHLD; nullopt after `timeout`.
std::optional<int> WaitForSignal(bool children, std::optional<Duration> timeout);

/// While it lives, SIGINT and SIGTERM end the process at once with exit code 0: for a wait at the start, before there
/// is anything to put in order. The main thread's, before others exist.
class ExitOnSignal {
 public:
  ExitOnSignal();
  ~ExitOnSignal();
  ExitOnSignal(const ExitOnSignal&) = delete;
  ExitOnSignal& operator=(const ExitOnSignal&) = delete;
};

/// Asks the kernel for SIGTERM when the parent named in BATON_PARENT_PID dies; exits at once when it is dead already.
/// No-op without that variable.
void FollowParent();

}  // namespace baton::cli
