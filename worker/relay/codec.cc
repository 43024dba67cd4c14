#include "worker/relay/codec.h"

#include <cstring>

#include "common/status.h"
#include "proto/order_limits.h"
#include "proto/sampling_codec.h"

namespace baton::worker {
namespace {

constexpr size_t kShortIdBytes = sizeof(uint16_t);

absl::Status CheckVocabulary(const std::vector<int32_t>& tokens, int32_t vocab_size) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= vocab_size) {
      return absl::InvalidArgumentError(
          StrCat("token id ", tokens[i], " at position ", i, " is outside the vocabulary of ", vocab_size));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> DecodeTokens(const std::string& bytes, int32_t vocab_size) {
  BATON_RETURN_IF_ERROR(CheckTokenBytes(bytes.size()));
  std::vector<int32_t> tokens(bytes.size() / 4);
  if (!bytes.empty()) std::memcpy(tokens.data(), bytes.data(), bytes.size());
  BATON_RETURN_IF_ERROR(CheckVocabulary(tokens, vocab_size));
  return tokens;
}

absl::StatusOr<std::vector<int32_t>> DecodeTokens(const v1::Attach& attach, int32_t vocab_size) {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
  const std::string& bytes = attach.short_prompt_token_ids();
  if (bytes.empty()) return DecodeTokens(attach.prompt_token_ids(), vocab_size);
  if (!attach.prompt_token_ids().empty())
    return absl::InvalidArgumentError("an Attach has prompt_token_ids and short_prompt_token_ids");
  if (bytes.size() % kShortIdBytes != 0) {
    return absl::InvalidArgumentError(
        StrCat("short_prompt_token_ids has ", bytes.size(), " bytes, not a multiple of ", kShortIdBytes));
  }
  std::vector<int32_t> tokens(bytes.size() / kShortIdBytes);
  for (size_t i = 0; i < tokens.size(); ++i) {
    uint16_t id = 0;
    std::memcpy(&id, bytes.data() + i * kShortIdBytes, kShortIdBytes);
    tokens[i] = id;
  }
  BATON_RETURN_IF_ERROR(CheckVocabulary(tokens, vocab_size));
  return tokens;
}

engine::SamplingParams DecodeSampling(const v1::SamplingParams& p, const v1::Attach& attach) {
  engine::SamplingParams out;
  DecodeSamplingFields(p, out);
  out.top_k = std::max(out.top_k, 0);  // -1 means all, too
  out.eos_token_ids.assign(attach.eos_token_ids().begin(), attach.eos_token_ids().end());
  return out;
}

// Sets sequence_index and n from the choices asked for.
absl::Status DecodeChoices(const v1::Attach& attach, engine::Request& request) {
  if (attach.choices().empty()) return absl::OkStatus();
  for (int i = 1; i < attach.choices_size(); ++i) {
    if (attach.choices(i) != attach.choices(0) + static_cast<uint32_t>(i)) {
      return absl::InvalidArgumentError(
          StrCat("choices must be consecutive, got ", attach.choices(i - 1), " then ", attach.choices(i)));
    }
  }
  request.sequence_index = attach.choices(0);
  request.sampling.n = attach.choices_size();
  return absl::OkStatus();
}

void EncodeCandidate(const kernels::TokenLogprob& from, v1::TokenLogprob& to) {
  to.set_token_id(from.token);
  to.set_logprob(from.logprob);
  to.set_rank(from.rank);
}

void EncodePosition(const kernels::SampleResult& from, v1::PositionLogprobs& to) {
  EncodeCandidate(from.chosen, *to.mutable_chosen());
  for (const kernels::TokenLogprob& t : from.top) EncodeCandidate(t, *to.add_top());
}

v1::FinishReason EncodeFinish(engine::FinishReason reason) {
  switch (reason) {
    case engine::FinishReason::kNone:
    case engine::FinishReason::kHeld: return v1::FINISH_REASON_UNSPECIFIED;
    case engine::FinishReason::kStop: return v1::FINISH_REASON_STOP;
    case engine::FinishReason::kLength: return v1::FINISH_REASON_LENGTH;
    case engine::FinishReason::kAbort: return v1::FINISH_REASON_ABORT;
    case engine::FinishReason::kError: return v1::FINISH_REASON_ERROR;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

}  // namespace

absl::Status CheckNames(const v1::RequestKey& key, const std::string& cache_salt) {
  BATON_RETURN_IF_ERROR(CheckAtMost("the length of request_id", key.request_id().size(), kMostIdBytes));
  return CheckAtMost("the length of cache_salt", cache_salt.size(), kMostSaltBytes);
}

absl::Status CheckTokenBytes(size_t bytes) {
  if (bytes % 4 == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("prompt_token_ids has ", bytes, " bytes, not a multiple of 4"));
}

size_t TokensIn(const v1::Attach& attach) {
  return attach.prompt_token_ids().size() / sizeof(int32_t) + attach.short_prompt_token_ids().size() / kShortIdBytes;
}

absl::StatusOr<engine::Request> DecodeAttach(const v1::Attach& attach, const AttachLimits& limits,
                                             engine::RequestKey key, TimePoint now) {
  engine::Request request;
  request.key = key;
  BATON_RETURN_IF_ERROR(CheckNames(attach.key(), attach.cache_salt()));
  BATON_ASSIGN_OR_RETURN(request.tokens, DecodeTokens(attach, limits.vocab_size));
  const size_t tokens = request.tokens.size();
  if (attach.prompt_len() < 1 || attach.prompt_len() > tokens) {
    return absl::InvalidArgumentError(StrCat("prompt_len ", attach.prompt_len(), " does not fit ", tokens, " tokens"));
  }
  if (attach.output_len_so_far() != tokens - attach.prompt_len()) {
    return absl::InvalidArgumentError(StrCat("output_len_so_far ", attach.output_len_so_far(), ", but ", tokens,
                                             " tokens less a prompt of ", attach.prompt_len(), " leave ",
                                             tokens - attach.prompt_len()));
  }
  const bool has_token = !attach.first().empty() && !attach.sampling().use_beam_search();
  const size_t next = tokens + (has_token ? 1 : 0);
  if (attach.position() != 0 && attach.position() != next) {
    return absl::InvalidArgumentError(StrCat("position ", attach.position(), ", but ", next, " tokens were sent"));
  }
  BATON_RETURN_IF_ERROR(CheckAtMost("deadline_ms", attach.deadline_ms(), kMostDeadlineMs));
  BATON_RETURN_IF_ERROR(CheckAtMost("lease_ms", attach.lease_ms(), kMostLeaseMs));
  request.prompt_len = static_cast<int32_t>(attach.prompt_len());
  request.sampling = DecodeSampling(attach.sampling(), attach);
  BATON_RETURN_IF_ERROR(DecodeChoices(attach, request));
  request.priority = attach.priority();
  request.cache_salt = attach.cache_salt();
  request.canary = attach.canary();
  if (attach.deadline_ms() > 0) request.deadline = now + std::chrono::milliseconds(attach.deadline_ms());
  const int64_t credit = static_cast<int64_t>(tokens) + attach.credit_tokens();
  request.credit = static_cast<int32_t>(std::min<int64_t>(credit, engine::kUnlimitedCredit));
  return request;
}

engine::FirstToken DecodeFirst(const v1::FirstToken& first) {
  engine::FirstToken out{first.index(), first.token_id()};
  for (const v1::TokenLogprob& t : first.logprobs().top())
    out.candidates.push_back({t.token_id(), t.logprob(), t.rank()});
  return out;
}

v1::RelayEntry EncodeOutput(const engine::SequenceOutput& output) {
  v1::RelayEntry entry;
  entry.set_index(output.sequence_index);
  entry.set_position(static_cast<uint64_t>(output.position));
  for (const kernels::SampleResult& token : output.tokens) {
    entry.add_token_ids(token.token);
    if (token.chosen.rank > 0) EncodePosition(token, *entry.add_logprobs());
  }
  entry.set_finish_reason(EncodeFinish(output.finish));
  if (output.stop_token) entry.set_stop_token_id(*output.stop_token);
  entry.set_nothing_allowed(output.nothing_allowed);
  if (output.finish == engine::FinishReason::kError) *entry.mutable_error() = EncodeError(output.error, 0, 0);
  if (output.finish != engine::FinishReason::kNone) {
    v1::StageTimings& t = *entry.mutable_timings();
    t.set_queue_prefill_ms(Milliseconds(output.timings.queued));
    t.set_prefill_ms(Milliseconds(output.timings.prefill));
    t.set_decode_ms(Milliseconds(output.timings.total - output.timings.queued - output.timings.prefill));
  }
  return entry;
}

std::vector<std::string> EncodePromptLogprobs(const std::vector<kernels::SampleResult>& scores, size_t max_bytes) {
  std::vector<std::string> pieces;
  std::string piece;
  for (const kernels::SampleResult& score : scores) {
    v1::PromptLogprobs one;
    EncodePosition(score, *one.add_positions());
    const std::string bytes = one.SerializeAsString();
    if (!piece.empty() && piece.size() + bytes.size() > max_bytes) pieces.push_back(std::exchange(piece, {}));
    piece += bytes;
  }
  if (!piece.empty()) pieces.push_back(std::move(piece));
  return pieces;
}

v1::Error EncodeError(const absl::Status& status, uint32_t retry_after_ms, uint32_t queue_ms) {
  v1::Error error;
  error.set_code(static_cast<int>(status.code()));
  error.set_message(std::string(View(status.message())));
  error.set_retry_after_ms(retry_after_ms);
  error.set_queue_ms(queue_ms);
  return error;
}

}  // namespace baton::worker
