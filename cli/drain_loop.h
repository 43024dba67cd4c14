// The main thread of a server process: wait until ready, then for a signal, then drain; a second signal ends at once.
#pragma once

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "cli/exit_code.h"
#include "cli/signals.h"
#include "common/clock.h"
#include "common/log.h"

namespace baton::cli {

/// Server: WaitReady(Duration) → bool, Drain(), WaitDrained(Duration) → bool, Stop(), Health() → Status where it can
/// lose what it lives from, which is asked when a child ends, and now and then, and Busy() → bool, whether a request
/// runs, where it waits for more than those. Returns the exit code; a clean stop after SIGINT or SIGTERM is 0, one that
/// cuts off requests because their drain took longer than `grace` is kExitCutOff.
template <class Server>
int ServeUntilSignal(const Clock& clock, Server& server, Duration grace,
                     const std::function<absl::Status()>& on_ready) {
  constexpr Duration kPoll = std::chrono::milliseconds(50);
  int signal = 0;  // none
  constexpr Duration kHealthPoll = std::chrono::milliseconds(500), kLossPatience = std::chrono::seconds(10);
  const auto health = [&]() -> absl::Status {
    if constexpr (requires { server.Health(); }) return server.Health();
    return absl::OkStatus();
  };
  constexpr bool kHasHealth = requires { server.Health(); };
  absl::Status status;
  while (signal == 0 && !server.WaitReady(kPoll)) {
    signal = WaitForSignal(/*children=*/false, Duration::zero()).value_or(0);
    const absl::Status loss = health();
    if (loss.ok()) continue;
    if (server.WaitReady(kLossPatience)) break;  // the start ends too, and may know the reason
    const int code = Fail(loss);
    std::fflush(nullptr);
    std::_Exit(code);  // it stands still where nobody can end it
  }
  if (signal == 0) {
    status = on_ready();
    const absl::Status loss = health();
    if (!loss.ok() && (status.ok() || absl::IsUnavailable(status))) status = loss;  // the cause, not what it led to
    while (signal == 0 && status.ok()) {
      signal =
          WaitForSignal(/*children=*/kHasHealth, kHasHealth ? std::optional(kHealthPoll) : std::nullopt).value_or(0);
      if (signal == SIGCHLD) signal = 0;
      status = health();
    }
  }
  if (signal == 0) {  // then status says why
    server.Stop();
    return Fail(status);
  }
  LogInfo("draining (signal {}; once more to stop at once)", signal);
  server.Drain();
  const TimePoint deadline = clock.Now() + grace;
  const auto busy = [&] {
    if constexpr (requires { server.Busy(); }) return server.Busy();
    return true;
  };
  bool over = false, again = false;
  while (!again && !over && !server.WaitDrained(kPoll)) {
    again = WaitForSignal(/*children=*/false, Duration::zero()).has_value();
    over = !again && clock.Now() >= deadline;
  }
  const bool cut_off = over && busy();
  if (cut_off) {
    LogWarning("the drain ran out of time after {:.1f} s (--shutdown-timeout-ms): what still runs is cut off",
               Seconds(grace));
  }
  server.Stop();
  return cut_off ? kExitCutOff : kExitOk;
}

}  // namespace baton::cli
