// The times that a planned worker cannot beat: every step reads its weights and KV and does its multiplications, and
// takes the longer of both. Sums over ranks, sampling and launches cost nothing here, so the truth is slower. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "plan/memory_plan.h"
#include "plan/step_times.h"

namespace baton::plan {

/// The requests that are planned for. Tokens of a prompt, of those in the prefix cache, of an answer; goals.
struct Load {
  int64_t isl = 0, prefix = 0, osl = 0;
  double ttft_ms = 0, tpot_ms = 0;
};

/// Why a decode step has no more sequences.
enum class BatchLimit : uint8_t { kKvSpace, kMaxNumSeqs, kTpot };
const char* BatchLimitName(BatchLimit limit);

struct Roofline {
  double prefill_ms = 0;  ///< of one prompt, alone: its TTFT without a queue
  double prefill_tokens_per_s = 0;
  Limit prefill_limit = Limit::kCompute;
  int64_t batch = 1;  ///< sequences in a decode step: the most that memory holds and the goal for TPOT allows
  BatchLimit batch_limit = BatchLimit::kKvSpace;
  double decode_ms = 0;  ///< of a step: TPOT
  double decode_tokens_per_s = 0;
  Limit decode_limit = Limit::kMemory;
  /// A worker that prefills and decodes: each of its steps bears its share of the prompts of the answers that it ends.
  int64_t both_batch = 1;
  double both_tpot_ms = 0;
  double both_requests_per_s = 0;
  /// Decode workers that keep up with one prefill worker.
  double decode_per_prefill = 0;
  int64_t transfer_bytes = 0;  ///< KV of one prompt; what is in the cache does not travel
  /// Only with a known link.
  std::optional<double> transfer_ms;
  /// Uncached tokens of a prompt from which a handoff takes less time than computing them where they decode; nothing:
  /// it never does. By the rule of --local-prefill-max-tokens (router/policy/route_options.h), but for its most.
  std::optional<double> break_even_tokens;
  bool meets_ttft = true, meets_tpot = true;
  double PrefillRequestsPerS() const { return 1e3 / prefill_ms; }
  double DecodeRequestsPerS(const Load& load) const { return decode_tokens_per_s / static_cast<double>(load.osl); }
};

/// FailedPrecondition: the prompt and its answer are longer than max_model_len, or all of the prompt is in the cache.
absl::StatusOr<Roofline> PlanRoofline(const worker::WorkerConfig& config, const MemoryPlan& plan,
                                      const Machine& machine, const Load& load);

/// At each corner of what the machine may be (Corners); the first is as planned. Fails as PlanRoofline.
absl::StatusOr<std::vector<Roofline>> PlanCorners(const worker::WorkerConfig& config, const MemoryPlan& plan,
                                                  const Machine& machine, const Load& load);

/// Of a number, over the corners.
template <class Of>
Range RangeOf(std::span<const Roofline> corners, Of of) {
  Range out;
  for (size_t i = 0; i < corners.size(); ++i) {
    const double value = std::invoke(of, corners[i]);
    out = i == 0 ? Range{value, value} : Range{std::min(out.low, value), std::max(out.high, value)};
  }
  return out;
}

/// One line of advice: "disaggregate: …" or "do not disaggregate: …"; empty without a link.
std::string Advice(const Roofline& roofline, const Machine& machine, const Load& load);

}  // namespace baton::plan
