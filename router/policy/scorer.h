// Scorer: which of the ways to serve a prompt is taken. Pure: sees predictions, holds no request. Membership (ready,
// not excluded, not draining) is filtered before.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "router/policy/route_options.h"

namespace baton::router {

/// The cost of an option, in milliseconds; the terms of design "predicted time".
struct Cost {
  double queue_ms = 0, prefill_ms = 0;     ///< of the worker that prefills
  double transfer_ms = 0, handoff_ms = 0;  ///< of a pair
  double decode_slowdown_ms = 0;           ///< of the worker that decodes
  double stall_ms = 0;                     ///< of the answers that run where the prompt is computed
  double pressure_ms = 0;                  ///< of all who take part
  double total_ms = 0;
};

/// Called by several threads at once.
class Scorer {
 public:
  virtual ~Scorer() = default;
  /// The chosen option of OptionsOf(question), which need not be written out for that; nothing: there is none.
  virtual std::optional<RouteOption> Answer(const RouteQuestion& question) {
    const std::vector<RouteOption> options = OptionsOf(question);
    if (options.empty()) return std::nullopt;
    return options[Choose(question, options)];
  }
  /// Index of the chosen one of `options`, which are some of the question's, at least one.
  virtual size_t Choose(const RouteQuestion& question, absl::Span<const RouteOption> options) = 0;
  /// A Cost for each option, and what Choose would choose now; takes no turn.
  virtual std::vector<Cost> Table(const RouteQuestion& question, absl::Span<const RouteOption> options,
                                  size_t* chosen) const = 0;
};

}  // namespace baton::router
