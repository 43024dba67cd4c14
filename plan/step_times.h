// The time that no step of a planned worker can beat: it reads its weights and the KV of its sequences, does its
// multiplications, and takes the longer of both. Sums over ranks, sampling and launches cost nothing here. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/certainty.h"
#include "plan/memory_plan.h"

namespace baton::plan {

/// What one rank computes on.
struct Machine {
  double bytes_per_s = 0;                        ///< of its memory
  double flops = 0;                              ///< a second
  double link_bytes_per_s = 0;                   ///< from a prefill worker to a decode worker; 0: not known
  double handoff_ms = 0;                         ///< of a handoff beside its bytes
  double prefill_factor = 1, decode_factor = 1;  ///< how many times the planned time real steps take
  Certainty certainty{};                         ///< of these times
};

enum class Limit : uint8_t { kMemory, kCompute };
/// "memory bandwidth" | "compute".
const char* LimitName(Limit limit);

/// Rows of a step: each of `sequences` has `fresh` tokens after `context` others.
struct StepRows {
  int64_t sequences = 1, fresh = 1, context = 0;
  bool logits = true;  ///< of the last row of each
};

struct StepTime {
  double bytes_s = 0, flops_s = 0, seconds = 0;
  Limit limit() const { return bytes_s >= flops_s ? Limit::kMemory : Limit::kCompute; }
  void Add(const StepTime& more) {
    bytes_s += more.bytes_s;
    flops_s += more.flops_s;
    seconds += more.seconds;
  }
};

class StepTimes {
 public:
  StepTimes(const MemoryPlan& plan, const Machine& machine);
  /// Of one step with all these rows: stages follow one another, the ranks of one work side by side.
  StepTime Of(std::span<const StepRows> rows) const;
  StepTime Of(const StepRows& rows) const { return Of(std::span(&rows, 1)); }

 private:
  /// KV of one kind of attention layer on a rank.
  struct Kind {
    int window = 0;
    double token_bytes = 0;  ///< of all its layers
    double pair_flops = 0;   ///< of a new token and one that it sees
  };
  struct Rank {
    int stage = 0;
    double weight_bytes = 0, row_flops = 0;  ///< but for the head
    double head_bytes = 0, head_flops = 0;   ///< of one row of logits
    std::vector<Kind> kinds;
  };
  StepTime OfRank(const Rank& rank, std::span<const StepRows> rows) const;

  const Machine machine_;
  std::vector<Rank> ranks_;  ///< by stage
};

}  // namespace baton::plan
