// When a sequence ends, by token ids alone (stop strings are the router's). Pure; same answer on every worker.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/sampling/sampling_params.h"

namespace baton::engine {

/// The field's finish_reason. kHeld is not an end: the prefill leg is done and its KV waits for the handoff.
enum class FinishReason : uint8_t { kNone, kStop, kLength, kAbort, kError, kHeld };

struct StopDecision {
  FinishReason reason = FinishReason::kNone;
  std::optional<int32_t> stop_token;  ///< the stop_token_ids entry that matched; none for eos, as vLLM reports it
  bool nothing_allowed = false;       ///< with kStop: no token could be drawn (not DecideStop's to say)
};

/// Looks at the last of `output_len` generated tokens (those from before a migration count). In order: min_tokens not
/// reached → only length ends it; eos unless ignore_eos (with a grammar: always); stop_token_ids; max_tokens or
/// `total_len` ≥ `max_model_len`.
StopDecision DecideStop(const SamplingParams& params, int32_t token, int32_t output_len, int32_t total_len,
                        int32_t max_model_len);

/// The ids that sampling may not draw as output token number `output_len` (from 0): eos and stop ids before min_tokens.
/// Sorted, unique.
std::vector<int32_t> BannedBeforeMinTokens(const SamplingParams& params, int32_t output_len);

/// Adds to `banned`, which stays sorted and unique, the last token of each bad word whose other tokens the output so
/// far ends in.
void BanEndsOfBadWords(const SamplingParams& params, std::span<const int32_t> output, std::vector<int32_t>& banned);

/// Whether a token of the vocabulary may be drawn: one of `allowed` (empty: all) that is not `banned` (sorted, unique,
/// of the vocabulary).
bool AnyTokenLeft(const std::vector<int32_t>& allowed, const std::vector<int32_t>& banned, int32_t vocab_size);

}  // namespace baton::engine
