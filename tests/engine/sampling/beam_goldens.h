// What make_beam_goldens.py wrote, as parameters of sampling.
#pragma once

#include <fstream>
#include <vector>

#include "common/json.h"
#include "engine/sampling/sampling_params.h"
#include "kernels/ops.h"

namespace baton::engine {

inline nlohmann::json BeamGoldens() {
  std::ifstream in("tests/engine/sampling/goldens/beams.json");
  return nlohmann::json::parse(in);
}

inline SamplingParams BeamParams(const nlohmann::json& one) {
  SamplingParams p;
  p.use_beam_search = true;
  p.n = one["n"];
  p.best_of = one["beams"];
  p.max_tokens = one["max_tokens"];
  p.min_tokens = one["min_tokens"];
  p.length_penalty = one["length_penalty"];
  const nlohmann::json& early = one["early_stopping"];
  p.early_stopping = early.is_string() ? 2 : early.get<bool>() ? 1 : 0;
  p.eos_token_ids = one["eos"].get<std::vector<int32_t>>();
  return p;
}

inline std::vector<int32_t> TokensOf(const std::vector<kernels::SampleResult>& results) {
  std::vector<int32_t> tokens;
  for (const kernels::SampleResult& r : results) tokens.push_back(r.token);
  return tokens;
}

}  // namespace baton::engine
