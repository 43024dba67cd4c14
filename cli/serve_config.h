// ServeConfig: what an operator can set on `baton serve` itself; the flags of its router and workers come beside these.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/config_fields.h"

namespace baton::cli {

struct ServeConfig {
  std::string model;
  std::vector<std::string> served_model_name;
  int32_t prefill = 0, decode = 0, both = 0;
  bool restart = true;
};

/// The flags: name, field, unit, help, range (common/config_fields.h).
template <class Visitor>
void VisitFields(ServeConfig& c, Visitor&& field) {
  field("model", c.model, "", "HF directory or .gguf file; may stand without --model",
        NotEmpty("an HF directory or a .gguf file"));
  field("served-model-name", c.served_model_name, "", "names clients use (repeatable; the model's base name)");
  field("prefill", c.prefill, "workers", "workers that compute prompts and hand their KV over", AtLeast(0));
  field("decode", c.decode, "workers", "workers that take KV and decode", AtLeast(0));
  field("both", c.both, "workers", "workers that do everything (1, unless there are others)", AtLeast(0));
  field("restart", c.restart, "", "restart a worker or the router when it dies, after 0.2 s doubling to 5 s");
}

}  // namespace baton::cli
