// What `baton plan` is told beside a worker's sizes and the machine.
#pragma once

#include <string>

#include "cli/tools/model_shape.h"
#include "cli/tools/planned_machine.h"
#include "common/config_fields.h"
#include "load/bench_options.h"
#include "plan/roofline.h"

namespace baton::cli {

struct PlanOptions {
  std::string format = "text", emit = "plan";
  int64_t isl = 4000, osl = 1000, prefix = 0;
  double ttft = 2000, tpot = 30;
  int32_t total_gpus = 0;
  double target_request_rate = 0, handoff_ms = 1;
  std::string trace, calibrate, from_metrics;
  int64_t num_prompts = 1000;
  double trace_speed = 1;
  uint64_t seed = 0;
  int32_t simulated_layouts = 3, calibrated_workers = 1;
  bool kv_table = false;

  plan::Load Load() const { return {isl, prefix, osl, ttft, tpot}; }
};

template <class Visitor>
void VisitFields(PlanOptions& c, Visitor&& field) {
  field("isl", c.isl, "tokens", "of a prompt", Range(1, 16 << 20));
  field("osl", c.osl, "tokens", "of an answer", Range(1, 16 << 20));
  field("prefix", c.prefix, "tokens",
        "of a prompt that the prefix cache has, where it is computed and where it decodes", Range(0, 16 << 20));
  field("ttft", c.ttft, "ms", "the goal until the first token", Range(0, 1e9));
  field("tpot", c.tpot, "ms", "the goal for each token after it", Range(0, 1e9));
  field("from-metrics", c.from_metrics, "url",
        "lengths and hit rate that are not given are those that this server has seen: a Baton router's or vLLM's "
        "/metrics");
  field("total-gpus", c.total_gpus, "devices",
        "of --memory, --memory-bandwidth and --compute each, a rank on each: layouts of them are ranked instead",
        Range(0, 4096));
  field("target-request-rate", c.target_request_rate, "1/s", "that is wanted: how much of it is served", Range(0, 1e9));
  field("handoff-ms", c.handoff_ms, "ms", "of a handoff beside its bytes", Range(0, 1e9));
  field("trace", c.trace, "file", "with --total-gpus: the first layouts are simulated under this trace (docs/sim.md)");
  field("simulated-layouts", c.simulated_layouts, "", "so many of them", Range(1, 100));
  field("num-prompts", c.num_prompts, "requests", "of the trace, at most", Range(1, 10'000'000));
  field("trace-speed", c.trace_speed, "", "2: twice as fast as it was recorded", AtLeast(1e-6));
  field("seed", c.seed, "", "of the simulation");
  field("calibrate", c.calibrate, "file", "what `baton bench --save-detailed` measured: times follow it");
  field("calibrated-workers", c.calibrated_workers, "", "that were measured", Range(1, 4096));
  field("kv-table", c.kv_table, "", "plan nothing: print the KV of well-known models, in --kv-cache-dtype");
  field("format", c.format, "", "of the plan", OneOf({{"text"}, {"json"}}));
  field("emit", c.emit, "", "what is printed",
        OneOf({{"plan"},
               {"flags", "a worker's, with the sizes chosen"},
               {"helm", "values of the chart, of the first layout"},
               {"compose", "a compose file of it"}}));
}

}  // namespace baton::cli
