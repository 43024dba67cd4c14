#include "engine/sampling/stop_rule.h"

#include <algorithm>

namespace baton::engine {
namespace {

bool Contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

StopDecision DecideStop(const SamplingParams& params, int32_t token, int32_t output_len, int32_t total_len,
                        int32_t max_model_len) {
  if (output_len >= params.min_tokens) {
    const bool eos_ends = !params.ignore_eos || params.grammar != nullptr;  // nothing but eos follows a grammar's end
    if (eos_ends && Contains(params.eos_token_ids, token)) return {FinishReason::kStop, std::nullopt};
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

void BanEndsOfBadWords(const SamplingParams& params, std::span<const int32_t> output, std::vector<int32_t>& banned) {
  const std::vector<int32_t>& words = params.bad_words;
  for (auto begin = words.begin(); begin != words.end();) {
    const auto end = std::find(begin, words.end(), -1);
    const auto before = static_cast<size_t>(end - begin) - 1;  // tokens that come before the last
    if (before <= output.size() && std::equal(begin, end - 1, output.end() - static_cast<ptrdiff_t>(before)))
      banned.push_back(*(end - 1));
    begin = end + 1;
  }
  std::sort(banned.begin(), banned.end());
  banned.erase(std::unique(banned.begin(), banned.end()), banned.end());
}

bool AnyTokenLeft(const std::vector<int32_t>& allowed, const std::vector<int32_t>& banned, int32_t vocab_size) {
  if (allowed.empty()) return static_cast<int32_t>(banned.size()) < vocab_size;
  return std::any_of(allowed.begin(), allowed.end(),
                     [&](int32_t id) { return !std::binary_search(banned.begin(), banned.end(), id); });
}

}  // namespace baton::engine
