// The values of a request between the frontends (HTTP, gRPC) and the workers: plain values, no protobuf, no JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "router/prompt_ids.h"
#include "router/sampling_options.h"

namespace baton::router {

enum class FinishReason : uint8_t { kNone, kStop, kLength, kAbort, kError };

struct TokenLogprob {
  int32_t token_id = 0;
  float logprob = 0;
  int32_t rank = 0;
};

struct PositionLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  ///< best first
};

/// Where a request's time went (proto StageTimings). The first six come from workers, the last four from the router.
struct RequestUsage {
  int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
  std::optional<int64_t> thought_tokens{};  ///< of the completion's; nothing: nobody looked for thoughts
};

struct StageTimings {
  double queue_prefill_ms = 0, prefill_ms = 0, transfer_ms = 0, queue_decode_ms = 0, first_decode_ms = 0, decode_ms = 0;
  double router_ms = 0, lost_ms = 0, reserve_ms = 0, network_ms = 0;
};

/// When an answer's tokens came, as the router saw them, from the request's arrival on.
struct AnswerTimes {
  double first_ms = 0, last_ms = 0;  ///< tokens
  double gaps_ms = 0;                ///< between two tokens of a choice, all together
  int64_t gaps = 0;
};

/// Which connection to which worker: a restarted or re-dialled worker has a new session.
struct WorkerId {
  int32_t index = -1;    ///< in the list of workers
  uint64_t session = 0;  ///< of the connection
  bool operator==(const WorkerId&) const = default;
};

enum class WorkerRole : uint8_t { kUnknown, kPrefill, kDecode, kBoth };
inline const char* WorkerRoleName(WorkerRole role) {
  switch (role) {
    case WorkerRole::kPrefill: return "prefill";
    case WorkerRole::kDecode: return "decode";
    case WorkerRole::kBoth: return "both";
    case WorkerRole::kUnknown: break;
  }
  return "unknown";
}

/// A tokenized request, ready for a worker.
struct TokenizedRequest {
  std::string request_id;
  PromptIds prompt;
  SamplingOptions sampling;  ///< resolved: seed and max_tokens are set
  std::vector<int32_t> eos_token_ids;
  std::vector<std::string> stop;  ///< stop strings, matched by the router
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;
  int32_t priority = 0;
  std::string cache_salt;
  std::string session;              ///< of the client, for --route-policy session; empty: none
  std::string traceparent;          ///< the caller's header, where traces are sent
  std::optional<Duration> timeout;  ///< the client's time limit for the whole request
  bool canary = false;              ///< nobody's: it proves workers (fleet/canary_book.h)
};

/// A decode worker's grant, as Reserve gave it (proto ReserveReply).
struct TicketGrant {
  std::string wire;    ///< the reply's own bytes, for the prefill worker
  std::string ticket;  ///< opaque
  uint32_t cached_tokens = 0;
};

/// The answer to Reserve.
struct ReserveResult {
  absl::Status status;
  uint32_t retry_after_ms = 0;
  uint32_t queue_ms = 0;
  TicketGrant grant;
};

/// A choice's first token, drawn by the prefill worker.
struct FirstToken {
  uint32_t index = 0;
  int32_t token_id = 0;
  std::optional<PositionLogprobs> logprobs;
  FinishReason finish = FinishReason::kNone;
  std::optional<int32_t> stop_token_id;
  bool nothing_allowed = false;  ///< with kStop: no token was drawn, `token_id` means nothing
};

/// The last answer of a Prefill leg.
struct PrefillResult {
  absl::Status status;
  bool no_room = false;  ///< the decode worker refused to take the KV
  std::vector<FirstToken> first;
  uint32_t cached_tokens = 0;
  StageTimings timings;
};

/// Which Reserve, Prefill or Cancel (proto RequestKey).
struct LegKey {
  std::string leg_id;
  uint32_t attempt = 0;
  uint32_t epoch = 0;  ///< of the ticket; 0: not of a prefill leg
};

/// News of one choice from a worker (proto RelayEntry).
struct RelayNews {
  uint64_t attach_gen = 0;
  uint32_t index = 0;
  uint64_t position = 0;
  std::vector<int32_t> token_ids;
  std::vector<PositionLogprobs> logprobs;
  FinishReason finish = FinishReason::kNone;
  std::optional<int32_t> stop_token_id;
  bool nothing_allowed = false;  ///< with kStop: no token could be drawn
  absl::Status error;            ///< with kError
  uint32_t retry_after_ms = 0;
  uint32_t queue_ms = 0;
  bool accepted = false;
  uint32_t cached_tokens = 0;   ///< with accepted
  std::string prompt_logprobs;  ///< a piece of a serialized PromptLogprobs
  bool prompt_logprobs_last = false;
  std::optional<StageTimings> timings;
};

/// Whether `last`, the last token of `end` (FirstToken or RelayNews), ended its choice: it counts, but is not text. The
/// model's own ends come without a stop_token_id.
template <typename End>
bool IsStopToken(int32_t last, const End& end) {
  return end.finish == FinishReason::kStop && !end.nothing_allowed && end.stop_token_id.value_or(last) == last;
}

/// News, and the leg that they are of.
struct LegNews {
  std::string_view leg_id;  ///< of the message they came in
  RelayNews news;
};

}  // namespace baton::router
