#include "engine/sampling/sampling_params.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace baton::engine {
namespace {

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

// Each word has tokens, and -1 behind them.
absl::Status CheckBadWords(const std::vector<int32_t>& words, int32_t vocab_size) {
  for (size_t i = 0; i < words.size(); ++i) {
    const bool ends = words[i] == -1;
    if (ends && (i == 0 || words[i - 1] == -1)) return absl::InvalidArgumentError("bad_words has a word of 0 tokens");
    if (!ends && (words[i] < 0 || words[i] >= vocab_size))
      return absl::InvalidArgumentError(
          absl::StrCat("bad_words has token id ", words[i], ", the vocabulary has ", vocab_size));
  }
  if (!words.empty() && words.back() != -1) return absl::InvalidArgumentError("the last of bad_words has no end (-1)");
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateSampling(const SamplingParams& p, int32_t vocab_size) {
  for (const SamplingRange& range : kSamplingRanges) {
    const double value = range.value(p);
    // Written so that a NaN fails.
    const bool inside = value <= range.high && (range.low_open ? value > range.low : value >= range.low);
    if (!inside) return OutOfRange(range.name, value, range.allowed);
  }
  if (p.min_tokens > p.max_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("min_tokens ", p.min_tokens, " is greater than max_tokens ", p.max_tokens));
  }
  for (const auto& [id, bias] : p.logit_bias) {
    if (id < 0 || id >= vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("logit_bias has token id ", id, ", the vocabulary has ", vocab_size));
    }
    if (!std::isfinite(bias)) return OutOfRange("logit_bias", bias, "finite");
  }
  // An eos id beyond the vocabulary is the model's business, and harmless: it is never drawn.
  if (absl::Status s = CheckTokenIds("allowed_token_ids", p.allowed_token_ids, vocab_size); !s.ok()) return s;
  if (absl::Status s = CheckTokenIds("stop_token_ids", p.stop_token_ids, vocab_size); !s.ok()) return s;
  return CheckBadWords(p.bad_words, vocab_size);
}

}  // namespace baton::engine
