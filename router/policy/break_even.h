// When a decode worker computes a short rest of a prompt itself instead of having it handed over. Pure.
#pragma once

#include <cstdint>

namespace baton::router {

/// Tokens of which computing takes no longer than a handoff, which costs `handoff_ms` and the transfer; at most 64, for
/// more would hold up the sequences that decode. 0 while the prefill rate is not known.
inline uint32_t BreakEvenTokens(double prefill_tokens_per_s, double transfer_tokens_per_s, double handoff_ms) {
  constexpr double kMost = 64;
  if (prefill_tokens_per_s <= 0 || transfer_tokens_per_s <= 0) return 0;
  const double gain_ms = 1000 / prefill_tokens_per_s - 1000 / transfer_tokens_per_s;  // of a handoff, per token
  return static_cast<uint32_t>(gain_ms * kMost <= handoff_ms ? kMost : handoff_ms / gain_ms);
}

}  // namespace baton::router
