// Scorer: which worker gets a request. Pure: sees predictions, holds no request. Membership (ready, not excluded, not
// draining) is filtered before.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "router/generation.h"

namespace baton::router {

/// One worker as the rule sees it, for one prompt.
struct Candidate {
  WorkerId id;
  double queued_tokens = 0;  ///< uncached prompt tokens ahead of this request
  int32_t running = 0;       ///< sequences
  int32_t max_num_seqs = 1;
  double kv_used_fraction = 0;      ///< 0…1
  double prefill_tokens_per_s = 0;  ///< learnt; 0 = not known yet
  double decode_step_ms = 0;
  uint32_t cached_tokens = 0;  ///< of this prompt
};

/// What a choice would cost, in milliseconds; the terms of design "predicted time".
struct Cost {
  WorkerId id;
  double queue_ms = 0, prefill_ms = 0, decode_slowdown_ms = 0, pressure_ms = 0;
  double total_ms = 0;
};

/// Called by several threads at once.
class Scorer {
 public:
  virtual ~Scorer() = default;
  /// Index of the chosen candidate; `candidates` is not empty.
  virtual size_t Choose(absl::Span<const Candidate> candidates, uint32_t prompt_tokens) = 0;
  /// A Cost for each candidate, and whom Choose would choose now; takes no turn.
  virtual std::vector<Cost> Table(absl::Span<const Candidate> candidates, uint32_t prompt_tokens,
                                  size_t* chosen) const = 0;
};

/// argmin of queue + (1 + lambda) · prefill of what is not cached + decode slowdown + KV pressure. Ties go in turn.
std::unique_ptr<Scorer> MakePredictedTime(double lambda);
/// Each in turn.
std::unique_ptr<Scorer> MakeRoundRobin();
/// "predicted-time" or "round-robin"; InvalidArgument names what exists.
absl::StatusOr<std::unique_ptr<Scorer>> MakeScorer(const std::string& policy, double lambda);

}  // namespace baton::router
