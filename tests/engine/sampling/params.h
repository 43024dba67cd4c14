// What the tests of this folder start from.
#pragma once

#include "engine/sampling/sampling_params.h"

namespace baton::engine {

/// Ends at 2 (eos), at 7 (a stop token) and after 5 tokens.
inline SamplingParams Params() {
  SamplingParams p;
  p.eos_token_ids = {2};
  p.stop_token_ids = {7};
  p.max_tokens = 5;
  return p;
}

}  // namespace baton::engine
