// A worker's requests to the scheduler, and the scheduler's answers.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "engine/cache/kv_cache.h"
#include "engine/sampling/sampling_params.h"
#include "engine/sampling/stop_rule.h"
#include "kernels/ops.h"

namespace baton::engine {

/// Chosen by the caller, unique among the requests it has not seen the end of.
using RequestKey = uint64_t;

inline constexpr int32_t kUnlimitedCredit = std::numeric_limits<int32_t>::max();

struct Request {
  RequestKey key = 0;
  std::vector<int32_t> tokens;  ///< prompt, and the tokens generated so far when it is resumed
  int32_t prompt_len = 0;       ///< of `tokens`; the rest is output so far
  SamplingParams sampling;      ///< n > 1 and beam search only without output so far
  uint32_t sequence_index = 0;  ///< of the first choice; choices are sequence_index, sequence_index + 1, …
  int32_t priority = 0;         ///< lower runs first, as in vLLM
  TimePoint deadline = TimePoint::max();
  std::string cache_salt;
  std::string lora_digest;
  /// Tokens at positions below this may be delivered, for each choice. Later ones are kept, and past
  /// SchedulerOptions::max_undelivered_tokens the sequence is not scheduled.
  int32_t credit = kUnlimitedCredit;
  bool canary = false;  ///< a router's own: neither tokens nor steps of it are counted, nor speeds taken from them
};

/// A token that another worker drew: the first one of a choice after a handoff.
struct FirstToken {
  uint32_t sequence_index = 0;
  int32_t token = 0;
  /// For a beam search, instead of the token: the likeliest ones after the prompt, BeamCandidates many, best first.
  std::vector<kernels::TokenLogprob> candidates{};
};

/// A request whose prompt KV arrived by handoff. `request.tokens` are the prompt (and output so far) whose KV is in
/// `kv`.
struct AttachedRequest {
  Request request;
  SequenceKv kv;
  std::vector<FirstToken> first;  ///< one per choice that has not ended; one for all of a beam search
};

struct Timings {
  Duration queued{};   ///< arrival to first scheduled step
  Duration prefill{};  ///< first scheduled step to first token (after a handoff: to the first one drawn here)
  Duration total{};    ///< arrival to this output
};

/// News of one sequence. Tokens of a sequence come in order, without gap or repetition, and one output ends it.
struct SequenceOutput {
  RequestKey key = 0;
  uint32_t sequence_index = 0;
  int32_t position = 0;  ///< of tokens[0]
  std::vector<kernels::SampleResult> tokens;
  /// Scores of prompt tokens [prompt_logprobs_position, …): of one choice only (0, or the first that lives), before its
  /// first token.
  int32_t prompt_logprobs_position = 0;
  std::vector<kernels::SampleResult> prompt_logprobs;
  FinishReason finish = FinishReason::kNone;
  std::optional<int32_t> stop_token;
  bool nothing_allowed = false;  ///< with kStop: no token could be drawn
  absl::Status error;            ///< kError: DeadlineExceeded, ResourceExhausted, Internal …
  int32_t cached_tokens = 0;     ///< prompt tokens that came from the prefix cache
  Timings timings;               ///< set with the first token and with the end
};

}  // namespace baton::engine
