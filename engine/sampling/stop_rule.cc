#include "engine/sampling/stop_rule.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace baton::engine {
namespace {

bool Contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

absl::Status OutOfRange(const char* field, double value, const char* allowed) {
  return absl::InvalidArgumentError(absl::StrCat(field, " must be ", allowed, ", got ", value));
}

absl::Status CheckTokenIds(const char* field, const std::vector<int32_t>& ids, int32_t vocab_size) {
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat(field, " has token id ", id, ", the vocabulary has ", vocab_size));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckCounts(const SamplingParams& p) {
  if (p.n < 1) return OutOfRange("n", p.n, "at least 1");
  if (p.max_tokens < 1) return OutOfRange("max_tokens", p.max_tokens, "at least 1");
  if (p.min_tokens < 0) return OutOfRange("min_tokens", p.min_tokens, "at least 0");
  if (p.min_tokens > p.max_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("min_tokens ", p.min_tokens, " is greater than max_tokens ", p.max_tokens));
  }
  if (p.num_logprobs < -1) return OutOfRange("logprobs", p.num_logprobs, "at least 0");
  if (p.prompt_logprobs < -1) return OutOfRange("prompt_logprobs", p.prompt_logprobs, "at least 0");
  return absl::OkStatus();
}

}  // namespace

StopDecision DecideStop(const SamplingParams& params, int32_t token, int32_t output_len, int32_t total_len,
                        int32_t max_model_len) {
  if (output_len >= params.min_tokens) {
    if (!params.ignore_eos && Contains(params.eos_token_ids, token)) return {FinishReason::kStop, std::nullopt};
    if (Contains(params.stop_token_ids, token)) return {FinishReason::kStop, token};
  }
  if (output_len >= params.max_tokens || total_len >= max_model_len) return {FinishReason::kLength, std::nullopt};
  return {};
}

std::vector<int32_t> BannedBeforeMinTokens(const SamplingParams& params, int32_t output_len) {
  if (output_len >= params.min_tokens) return {};
  std::vector<int32_t> banned = params.eos_token_ids;
  banned.insert(banned.end(), params.stop_token_ids.begin(), params.stop_token_ids.end());
  std::sort(banned.begin(), banned.end());
  banned.erase(std::unique(banned.begin(), banned.end()), banned.end());
  return banned;
}

absl::Status ValidateSampling(const SamplingParams& p, int32_t vocab_size) {
  // Written so that a NaN fails.
  if (!(p.temperature >= 0 && std::isfinite(p.temperature)))
    return OutOfRange("temperature", p.temperature, "at least 0");
  if (p.top_k < 0) return OutOfRange("top_k", p.top_k, "at least 1, or 0 for all");
  if (!(p.top_p > 0 && p.top_p <= 1)) return OutOfRange("top_p", p.top_p, "in (0, 1]");
  if (!(p.min_p >= 0 && p.min_p <= 1)) return OutOfRange("min_p", p.min_p, "in [0, 1]");
  if (!(p.repetition_penalty > 0 && std::isfinite(p.repetition_penalty))) {
    return OutOfRange("repetition_penalty", p.repetition_penalty, "greater than 0");
  }
  if (!(std::fabs(p.presence_penalty) <= 2)) return OutOfRange("presence_penalty", p.presence_penalty, "in [-2, 2]");
  if (!(std::fabs(p.frequency_penalty) <= 2)) return OutOfRange("frequency_penalty", p.frequency_penalty, "in [-2, 2]");
  if (absl::Status s = CheckCounts(p); !s.ok()) return s;
  for (const auto& [id, bias] : p.logit_bias) {
    if (id < 0 || id >= vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("logit_bias has token id ", id, ", the vocabulary has ", vocab_size));
    }
    if (!std::isfinite(bias)) return OutOfRange("logit_bias", bias, "finite");
  }
  // An eos id beyond the vocabulary is the model's business, and harmless: it is never drawn.
  if (absl::Status s = CheckTokenIds("allowed_token_ids", p.allowed_token_ids, vocab_size); !s.ok()) return s;
  return CheckTokenIds("stop_token_ids", p.stop_token_ids, vocab_size);
}

}  // namespace baton::engine
