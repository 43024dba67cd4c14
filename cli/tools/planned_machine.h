// The flags of plans that say what computes: `baton plan` and `baton sim` have them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/config_fields.h"
#include "plan/step_times.h"
#include "worker/worker_config.h"

namespace baton::cli {

struct PlannedMachine {
  std::string model_shape;
  int64_t memory = 0;
  double memory_bandwidth = 0, compute = 0, link = 0, handoff_ms = 1;

  plan::Machine Terms() const { return {memory_bandwidth * 1e9, compute * 1e12, link * 1e9, handoff_ms}; }
  /// What the ranks of a worker have together: one machine, or a GPU each. nullopt: what is free here.
  std::optional<int64_t> MemoryOf(const worker::WorkerConfig& config) const {
    return memory > 0 ? std::optional(memory * (config.on_gpu() ? config.ranks() : 1)) : std::nullopt;
  }
};

template <class Visitor>
void VisitFields(PlannedMachine& c, Visitor&& field) {
  field("model-shape", c.model_shape, "",
        "in place of a model: a name of --kv-table, or layers=32,hidden=4096,heads=32,kv-heads=8,inner=14336,"
        "vocab=128256");
  field("memory", c.memory, "bytes", "memory of the machine, or of each rank's GPU; 0 = what is free here (CPU only)",
        AtLeast(0));
  field("memory-bandwidth", c.memory_bandwidth, "GB/s", "of one rank; with --compute: times are planned, too",
        Range(0, 1e6));
  field("compute", c.compute, "TFLOP/s", "of one rank, in --dtype", Range(0, 1e6));
  field("link", c.link, "GB/s", "from prefill to decode workers", Range(0, 1e6));
}

/// Of a worker's flags, those that change neither what it takes nor how long.
std::vector<std::string> FlagsThatDoNotSize(worker::WorkerConfig& config, const std::vector<std::string_view>& more);
/// InvalidArgument: one of --memory-bandwidth and --compute is missing, or a rate is next to none.
absl::Status CheckMachine(const PlannedMachine& machine);

}  // namespace baton::cli
