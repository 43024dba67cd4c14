// The main thread of a server process: wait until ready, then for a signal, then drain; a second signal ends at once.
#pragma once

#include <unistd.h>

#include <chrono>
#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "cli/exit_code.h"
#include "cli/signals.h"
#include "common/clock.h"
#include "spdlog/spdlog.h"

namespace baton::cli {

/// Server: WaitReady(Duration) → bool, Drain(), WaitDrained(Duration) → bool, Stop(). Returns the exit code; a clean
/// stop after SIGINT or SIGTERM is 0.
template <class Server>
int ServeUntilSignal(const Clock& clock, Server& server, Duration grace,
                     const std::function<absl::Status()>& on_ready) {
  constexpr Duration kPoll = std::chrono::milliseconds(50);
  std::optional<int> signal;
  while (!signal && !server.WaitReady(kPoll)) signal = WaitForSignal(/*children=*/false, Duration::zero());
  if (!signal) {
    if (absl::Status status = on_ready(); !status.ok()) {
      server.Stop();
      return Fail(status);
    }
    while (!signal) signal = WaitForSignal(/*children=*/false, std::nullopt);
  }
  spdlog::info("draining (signal {}; once more to stop at once)", *signal);
  server.Drain();
  const TimePoint deadline = clock.Now() + grace;
  while (!server.WaitDrained(kPoll) && clock.Now() < deadline) {
    if (WaitForSignal(/*children=*/false, Duration::zero())) break;
  }
  server.Stop();
  return kExitOk;
}

}  // namespace baton::cli
