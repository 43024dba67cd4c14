#include "kernels/cpu/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/check.h"
#include "kernels/philox.h"

namespace baton::kernels::cpu {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

using Candidate = std::pair<float, int32_t>;

// Best first; ties: lower id first.
bool Better(const Candidate& a, const Candidate& b) {
  return a.first != b.first ? a.first > b.first : a.second < b.second;
}

bool InVocabulary(int32_t token, std::span<const float> logits) {
  return token >= 0 && static_cast<size_t>(token) < logits.size();
}

void KeepAllowed(std::span<float> logits, std::span<const int32_t> allowed, SamplerScratch& scratch) {
  if (allowed.empty()) return;
  scratch.row.assign(logits.begin(), logits.end());
  std::fill(logits.begin(), logits.end(), kNever);
  for (int32_t t : allowed) {
    if (InVocabulary(t, logits)) logits[t] = scratch.row[t];
  }
}

void ApplyMask(std::span<float> logits, const uint32_t* mask) {
  if (mask == nullptr) return;
  for (size_t i = 0; i < logits.size(); ++i) {
    if ((mask[i / 32] >> (i % 32) & 1) == 0) logits[i] = kNever;
  }
}

void RepetitionPenalty(std::span<float> logits, const SampleRow& row, SamplerScratch& scratch) {
  if (row.repetition_penalty == 1.0f) return;
  std::vector<int32_t>& seen = scratch.tokens;
  seen.assign(row.prompt_tokens.begin(), row.prompt_tokens.end());
  seen.insert(seen.end(), row.output_tokens.begin(), row.output_tokens.end());
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  for (int32_t t : seen) {
    if (!InVocabulary(t, logits)) continue;
    logits[t] = logits[t] > 0 ? logits[t] / row.repetition_penalty : logits[t] * row.repetition_penalty;
  }
}

// logit -= frequency · count + presence, over the tokens that were output.
void CountPenalties(std::span<float> logits, const SampleRow& row, SamplerScratch& scratch) {
  if (row.presence_penalty == 0.0f && row.frequency_penalty == 0.0f) return;
  std::vector<int32_t>& seen = scratch.tokens;
  seen.assign(row.output_tokens.begin(), row.output_tokens.end());
  std::sort(seen.begin(), seen.end());
  for (size_t i = 0, end; i < seen.size(); i = end) {
    end = i;
    while (end < seen.size() && seen[end] == seen[i]) ++end;
    if (!InVocabulary(seen[i], logits)) continue;
    logits[seen[i]] -= row.frequency_penalty * static_cast<float>(end - i) + row.presence_penalty;
  }
}

void EditLogits(std::span<float> logits, const SampleRow& row, SamplerScratch& scratch) {
  KeepAllowed(logits, row.allowed_tokens, scratch);
  for (const auto& [token, bias] : row.logit_bias) {
    if (InVocabulary(token, logits)) logits[token] += bias;
  }
  for (int32_t t : row.banned_tokens) {
    if (InVocabulary(t, logits)) logits[t] = kNever;
  }
  RepetitionPenalty(logits, row, scratch);
  CountPenalties(logits, row, scratch);
  ApplyMask(logits, row.grammar_mask);
}

// The k best of the row, best first.
void TopK(std::span<const float> logits, size_t k, std::vector<Candidate>& out) {
  out.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    const Candidate c{logits[i], static_cast<int32_t>(i)};
    if (std::isnan(c.first) || (out.size() == k && (k == 0 || !Better(c, out.front())))) continue;
    if (out.size() == k) {
      std::pop_heap(out.begin(), out.end(), Better);
      out.pop_back();
    }
    out.push_back(c);
    std::push_heap(out.begin(), out.end(), Better);  // the worst kept is in front
  }
  std::sort_heap(out.begin(), out.end(), Better);
}

// All tokens at or above `floor`, best first.
void AllAbove(std::span<const float> logits, float floor, std::vector<Candidate>& out) {
  out.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] >= floor && logits[i] > kNever) out.emplace_back(logits[i], static_cast<int32_t>(i));
  }
  std::sort(out.begin(), out.end(), Better);
}

// Probability, up to the common factor, of a logit under the temperature: 1 for the best.
double Weight(float logit, float best, double inverse_temperature) {
  return std::exp((static_cast<double>(logit) - best) * inverse_temperature);
}

// The smallest head of `candidates` whose mass reaches top_p of `total`.
void KeepNucleus(std::vector<Candidate>& candidates, float top_p, double total, float best,
                 double inverse_temperature) {
  double mass = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    mass += Weight(candidates[i].first, best, inverse_temperature);
    if (mass >= static_cast<double>(top_p) * total) {
      candidates.resize(i + 1);
      return;
    }
  }
}

// Candidates that top-k, top-p and min-p leave, best first.
void Filter(const KernelTable& kernels, std::span<const float> logits, const SampleRow& row, float best,
            SamplerScratch& scratch) {
  std::vector<Candidate>& kept = scratch.candidates;
  const double inverse = 1.0 / row.temperature;
  const bool top_k = row.top_k > 0 && static_cast<size_t>(row.top_k) < logits.size();
  double total = 0;
  if (top_k) {
    TopK(logits, static_cast<size_t>(row.top_k), kept);
    while (!kept.empty() && kept.back().first == kNever) kept.pop_back();
    for (const Candidate& c : kept) total += Weight(c.first, best, inverse);
  } else if (row.top_p < 1.0f) {
    // Tokens below this share of the whole hold less than 1 - top_p together: the nucleus is above it.
    total = kernels.sum_exp(logits.data(), best, static_cast<float>(inverse), static_cast<int64_t>(logits.size()));
    const double share = (1.0 - row.top_p) * total / static_cast<double>(logits.size());
    const double floor = share > 0 ? best + std::log(share) * row.temperature - 1e-3 * row.temperature : kNever;
    AllAbove(logits, static_cast<float>(std::min<double>(floor, best)), kept);
  } else {
    const double floor = best + std::log(static_cast<double>(row.min_p)) * row.temperature;
    AllAbove(logits, static_cast<float>(floor - 1e-3 * (1 + std::abs(floor))), kept);
  }
  if (row.top_p < 1.0f) KeepNucleus(kept, row.top_p, total, best, inverse);
  if (row.min_p > 0.0f) {
    auto low = [&](const Candidate& c) { return Weight(c.first, best, inverse) < row.min_p; };
    kept.erase(std::find_if(kept.begin(), kept.end(), low), kept.end());
  }
  if (kept.empty())
    kept.emplace_back(best, static_cast<int32_t>(kernels.argmax(logits.data(), static_cast<int64_t>(logits.size()))));
}

// Standard Gumbel of one token: -log(-log u), u in (0, 1) with 32 bits.
double Gumbel(const SampleRow& row, int32_t token) {
  const uint32_t word = PhiloxWordOf(row.seed, row.sequence_index, row.position, static_cast<uint32_t>(token));
  return -std::log(-std::log((static_cast<double>(word) + 0.5) * 0x1p-32));
}

// The race: greatest logit / temperature + Gumbel. Ties: the lower id.
class Race {
 public:
  Race(const SampleRow& row, float best) : row_(row), best_(best), inverse_(1.0 / row.temperature) {}
  void Enter(float logit, int32_t token) {
    const double head_start = (static_cast<double>(logit) - best_) * inverse_;
    if (!(head_start + kMostLuck >= score_)) return;  // cannot win, or NaN
    const double score = head_start + Gumbel(row_, token);
    if (score > score_ || (score == score_ && token < token_)) {
      score_ = score;
      token_ = token;
    }
  }
  int32_t winner() const { return token_; }

 private:
  static constexpr double kMostLuck = 22.9;  // -log(-log(1 - 2^-33)), rounded up
  const SampleRow& row_;
  const double best_, inverse_;
  double score_ = -std::numeric_limits<double>::infinity();
  int32_t token_ = 0;
};

int32_t DrawToken(const KernelTable& kernels, std::span<const float> logits, const SampleRow& row,
                  SamplerScratch& scratch) {
  const int64_t n = static_cast<int64_t>(logits.size());
  const int64_t first = kernels.argmax(logits.data(), n);
  const float best = logits[first];
  if (row.temperature <= 0.0f || !std::isfinite(best)) return static_cast<int32_t>(first);
  Race race(row, best);
  const bool filtered = row.top_k > 0 || row.top_p < 1.0f || row.min_p > 0.0f;
  if (filtered) {
    Filter(kernels, logits, row, best, scratch);
    for (const Candidate& c : scratch.candidates) race.Enter(c.first, c.second);
  } else {
    race.Enter(best, static_cast<int32_t>(first));  // the favourite first: most others are then out at once
    for (int64_t i = 0; i < n; ++i) {
      if (logits[i] > kNever) race.Enter(logits[i], static_cast<int32_t>(i));
    }
  }
  return race.winner();
}

// Of the raw logits: what log-softmax subtracts, and the k best.
struct RawLogprobs {
  double log_sum = 0;
  std::vector<TokenLogprob> top;
};

RawLogprobs ReadRaw(const KernelTable& kernels, std::span<const float> logits, int32_t k, SamplerScratch& scratch) {
  const int64_t n = static_cast<int64_t>(logits.size());
  const float best = kernels.max(logits.data(), n);
  RawLogprobs raw;
  raw.log_sum = best + std::log(kernels.sum_exp(logits.data(), best, 1.0f, n));
  TopK(logits, static_cast<size_t>(std::min<int64_t>(k, n)), scratch.candidates);
  for (size_t i = 0; i < scratch.candidates.size(); ++i) {
    const auto& [logit, token] = scratch.candidates[i];
    raw.top.push_back({token, static_cast<float>(logit - raw.log_sum), static_cast<int32_t>(i + 1)});
  }
  return raw;
}

TokenLogprob LogprobOfToken(std::span<const float> logits, int32_t token, double log_sum) {
  const Candidate target{logits[token], token};
  int32_t rank = 1;
  for (size_t i = 0; i < logits.size(); ++i) rank += Better({logits[i], static_cast<int32_t>(i)}, target);
  return {token, static_cast<float>(logits[token] - log_sum), rank};
}

}  // namespace

SampleResult SampleToken(const KernelTable& kernels, std::span<float> logits, const SampleRow& row,
                         SamplerScratch& scratch) {
  SampleResult result;
  if (row.num_logprobs < 0) {
    EditLogits(logits, row, scratch);
    result.token = DrawToken(kernels, logits, row, scratch);
    return result;
  }
  RawLogprobs raw = ReadRaw(kernels, logits, row.num_logprobs, scratch);
  const std::vector<float> untouched(logits.begin(), logits.end());
  EditLogits(logits, row, scratch);
  result.token = DrawToken(kernels, logits, row, scratch);
  result.chosen = LogprobOfToken(untouched, result.token, raw.log_sum);
  result.top = std::move(raw.top);
  return result;
}

SampleResult LogprobsOf(const KernelTable& kernels, std::span<const float> logits, int32_t target, int32_t k,
                        SamplerScratch& scratch) {
  BATON_CHECK(InVocabulary(target, logits), "target ", target, " of ", logits.size());
  RawLogprobs raw = ReadRaw(kernels, logits, std::max(k, 0), scratch);
  return {target, LogprobOfToken(logits, target, raw.log_sum), std::move(raw.top)};
}

}  // namespace baton::kernels::cpu
