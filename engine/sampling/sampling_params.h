// A request's wishes for sampling. Neutral values switch a field off. Stop *strings* are not here: the router's
// detokenizer matches them; workers get token-level stops only.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "text/grammar_kind.h"

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
  std::vector<int32_t> bad_words;          ///< token ids, -1 behind each word's: none of them is in the output in a row
  bool ignore_eos = false;
  int32_t min_tokens = 0;
  int32_t max_tokens = 16;
  uint64_t seed = 0;                         ///< always set: an unseeded request got one at admission
  int32_t n = 1;                             ///< choices; one prefill, copy-on-write blocks
  int32_t logprobs = -1;                     ///< -1: none; k: chosen and the k best
  std::shared_ptr<const Grammar> grammar{};  ///< null: none
  int32_t prompt_logprobs = -1;              ///< -1: none; such a request does not read the prefix cache, but fills it
  bool use_beam_search = false;              ///< beam_search.h; nothing is drawn
  int32_t best_of = 0;                       ///< beams of a beam search, whose n best are answered; 0: n
  float length_penalty = 1.0f;               ///< of a beam search, and so is
  int32_t early_stopping = 0;                ///< 0: false, 1: true, 2: "never"
};

/// 0: no beam search.
inline int32_t BeamWidth(const SamplingParams& p) { return p.use_beam_search ? (p.best_of > 0 ? p.best_of : p.n) : 0; }
/// Sequences that decode beside each other.
inline int32_t DecodingSequences(const SamplingParams& p) { return p.use_beam_search ? BeamWidth(p) : p.n; }

/// The range of a number of SamplingParams.
struct SamplingRange {
  const char* name;
  double (*value)(const SamplingParams&);
  double low, high;  ///< `high` is finite: an infinity and NaN are always outside
  bool low_open;
  const char* allowed;  ///< the range in words
};
constexpr double kAnyFinite = std::numeric_limits<float>::max();
#define BATON_VALUE(member) [](const SamplingParams& p) -> double { return p.member; }
inline constexpr SamplingRange kSamplingRanges[] = {
    {"temperature", BATON_VALUE(temperature), 0, kAnyFinite, false, "at least 0"},
    {"top_k", BATON_VALUE(top_k), 0, kAnyFinite, false, "at least 1, or 0 for all"},
    {"top_p", BATON_VALUE(top_p), 0, 1, true, "in (0, 1]"},
    {"min_p", BATON_VALUE(min_p), 0, 1, false, "in [0, 1]"},
    {"repetition_penalty", BATON_VALUE(repetition_penalty), 0, kAnyFinite, true, "greater than 0"},
    {"presence_penalty", BATON_VALUE(presence_penalty), -2, 2, false, "in [-2, 2]"},
    {"frequency_penalty", BATON_VALUE(frequency_penalty), -2, 2, false, "in [-2, 2]"},
    {"n", BATON_VALUE(n), 1, kAnyFinite, false, "at least 1"},
    {"max_tokens", BATON_VALUE(max_tokens), 1, kAnyFinite, false, "at least 1"},
    {"min_tokens", BATON_VALUE(min_tokens), 0, kAnyFinite, false, "at least 0"},
    {"logprobs", BATON_VALUE(logprobs), -1, kAnyFinite, false, "at least 0"},
    {"prompt_logprobs", BATON_VALUE(prompt_logprobs), -1, kAnyFinite, false, "at least 0"},
    {"best_of", BATON_VALUE(best_of), 0, kAnyFinite, false, "at least 0"},
    {"length_penalty", BATON_VALUE(length_penalty), -16, 16, false, "in [-16, 16]"},
    {"early_stopping", BATON_VALUE(early_stopping), 0, 2, false, "0, 1 or 2"},
};
#undef BATON_VALUE

/// InvalidArgument, naming field and value, for what sampling cannot do.
absl::Status ValidateSampling(const SamplingParams& params, int32_t vocab_size);

}  // namespace baton::engine
