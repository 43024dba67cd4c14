// What `baton sim` is told beside a worker's sizes, the machine and the load.
#pragma once

#include <string>
#include <vector>

#include "common/config_fields.h"

namespace baton::cli {

struct SimOptions {
  std::string trace;
  int prefill = 0, decode = 0, both = 0;
  std::vector<std::string> compare_policies;
  double step_ms = 0, row_us = 0, sequence_us = 0, kilotoken_us = 0;
  double prefill_factor = 1, decode_factor = 1;
  double link_latency_us = 50;
  std::vector<std::string> kill;
  int64_t restart_ms = 10000;
  std::string format = "text";
};

template <class Visitor>
void VisitFields(SimOptions& c, Visitor&& field) {
  field("trace", c.trace, "file", "a trace: --dataset-path, whose form is seen from its first line");
  field("prefill", c.prefill, "workers", "that compute prompts and hand their KV over", Range(0, 1024));
  field("decode", c.decode, "workers", "that take KV and decode", Range(0, 1024));
  field("both", c.both, "workers", "that prefill and decode; without any of the three: one", Range(0, 1024));
  field("compare-policies", c.compare_policies, "policies", "of --route-policy: the same load under each");
  field("step-ms", c.step_ms, "ms", "measured: of every step; beside the roofline's where there is one", AtLeast(0));
  field("row-us", c.row_us, "us", "measured: of a token that a step computes", AtLeast(0));
  field("sequence-us", c.sequence_us, "us", "measured: of a sequence in a step", AtLeast(0));
  field("kilotoken-us", c.kilotoken_us, "us", "measured: of 1000 tokens of KV that a step reads", AtLeast(0));
  field("prefill-factor", c.prefill_factor, "", "real steps with a chunk of a prompt take so many times the roofline",
        AtLeast(0.01));
  field("decode-factor", c.decode_factor, "", "the same of steps that only decode", AtLeast(0.01));
  field("link-latency-us", c.link_latency_us, "us", "of a message between workers", AtLeast(0));
  field("kill", c.kill, "worker@time",
        "a worker dies, by name or role: decode@30s, prefill-1@500ms; how deep and how long the dip is");
  field("restart-ms", c.restart_ms, "ms", "until a worker that was killed serves again", AtLeast(0));
  field("format", c.format, "", "of the result", OneOf({{"text"}, {"json"}}));
}

}  // namespace baton::cli
