// What happens to the server on purpose while it is measured, and what it does to the tokens per second.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "load/outcome.h"

namespace baton::load {

/// An act at a time of the run. `act` runs on the thread of the run and must not wait.
struct Fault {
  Duration at{};
  std::string what;  ///< "kill decode"
  std::function<absl::Status()> act;
};

/// A fault as it happened.
struct FaultSeen {
  Duration at{};
  std::string what;
  std::string error;  ///< why it could not be done; empty: done
};

/// "decode@30s", "prefill-1@500ms" → worker and time. InvalidArgument names the text.
struct KillWish {
  std::string worker;
  Duration at{};
};
absl::StatusOr<KillWish> ParseKill(const std::string& text);

/// "30s=kubectl delete pod x" → time and command. InvalidArgument names the text.
struct CommandWish {
  Duration at{};
  std::string command;
};
absl::StatusOr<CommandWish> ParseCommand(const std::string& text);

constexpr Duration kWindow = std::chrono::milliseconds(250);

/// Tokens per second in each window of a run, of all answers, failed ones too; a chunk has its share of its answer's
/// tokens.
std::vector<double> TokenRates(const std::vector<Outcome>& outcomes, Duration duration);

/// How deep and how long the tokens per second dipped, and what became of the requests that were running.
struct Dip {
  FaultSeen fault;
  double before = 0;  ///< tokens/s, the mean of the (at most) 10 s before
  double least = 0;   ///< tokens/s of the worst window until it is over
  std::optional<double>
      over_after_s;             ///< first second of at least 95 % of `before`; nullopt: not before the load ended
  std::vector<size_t> running;  ///< indices of the requests that were running
  int64_t failed = 0;           ///< of these

  double depth() const { return before > 0 ? std::max(0.0, 1 - least / before) : 0; }
};

/// nullopt: nothing ran before the fault or the load ended with it, so that no dip can be seen.
std::optional<Dip> FindDip(const std::vector<Outcome>& outcomes, Duration duration, const FaultSeen& fault);

/// Of every fault that was done and can be seen.
std::vector<Dip> FindDips(const std::vector<Outcome>& outcomes, Duration duration,
                          const std::vector<FaultSeen>& faults);

}  // namespace baton::load
