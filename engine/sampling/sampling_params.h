// What a request asks of sampling. Neutral values switch a field off. Stop *strings* are not here: the router's
// detokenizer matches them; workers get token-level stops only.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace baton::engine {

struct SamplingParams {
  float temperature = 1.0f;  ///< 0: greedy
  int32_t top_k = 0;         ///< 0: all
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::vector<int32_t> allowed_token_ids;  ///< empty: all
  std::vector<int32_t> eos_token_ids;      ///< end the sequence unless ignore_eos
  std::vector<int32_t> stop_token_ids;     ///< end the sequence even with ignore_eos
  bool ignore_eos = false;
  int32_t min_tokens = 0;
  int32_t max_tokens = 16;
  uint64_t seed = 0;             ///< always set: an unseeded request got one at admission
  int32_t n = 1;                 ///< choices; one prefill, copy-on-write blocks
  int32_t num_logprobs = -1;     ///< -1: none; k: chosen and the k best
  int32_t prompt_logprobs = -1;  ///< -1: none; such a request does not read the prefix cache, but fills it
};

}  // namespace baton::engine
