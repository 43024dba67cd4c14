// Rotary embedding frequencies from a config: default, linear, llama3 and yarn scaling.
#pragma once

#include <string_view>

#include "engine/model/config/json_fields.h"
#include "kernels/ops.h"

namespace baton::engine {

/// Where a family's rope parameters may stand in its config.
struct RopeFields {
  int head_dim = 0;
  int max_position_embeddings = 0;
  std::string_view theta_key = "rope_theta";
  double theta = 10000.0;       ///< when the config has none
  std::string_view layer_type;  ///< "full_attention" …: the entry of a rope_parameters object kept per layer type
  bool scaled = true;           ///< whether "rope_scaling" holds for these layers
};

/// Reads "rope_parameters" (newer configs), else the theta key and "rope_scaling". Types that are not supported set
/// the error, named. "freq_factors" beside the type (from a GGUF file) divide the frequencies.
kernels::RopeParams ReadRope(JsonFields& in, const RopeFields& fields);

}  // namespace baton::engine
