// What a SampleRow means, in double precision and without cleverness: sort, cut, race.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "kernels/philox.h"

namespace baton::cuda_test {

class SampleReference {
 public:
  SampleReference(std::span<const float> logits, const kernels::SampleRow& row)
      : raw_(logits), row_(row), edited_(logits.begin(), logits.end()), order_(logits.size()) {
    Edit();
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(), [&](int a, int b) { return raw_[a] > raw_[b]; });
  }
  /// 1: the greatest raw logit; ties: the lower id.
  int RankOf(int token) const {
    return static_cast<int>(std::find(order_.begin(), order_.end(), token) - order_.begin()) + 1;
  }
  double Logprob(int token) const {
    double sum = 0;
    for (float x : raw_) sum += std::exp(double{x} - raw_[order_[0]]);
    return double{raw_[token]} - raw_[order_[0]] - std::log(sum);
  }
  /// "" when the row may give `token`; a token that only a rounding of top-p or min-p keeps or drops counts as right.
  std::string Reject(int token) const {
    std::vector<int> best(edited_.size());
    std::iota(best.begin(), best.end(), 0);
    std::stable_sort(best.begin(), best.end(), [&](int a, int b) { return edited_[a] > edited_[b]; });
    if (!std::isfinite(edited_[best[0]])) return token == 0 ? "" : "nothing is allowed: not token 0";
    if (!(row_.temperature > 0)) return token == best[0] ? "" : Differs(token, best[0]);
    std::erase_if(best, [&](int t) { return !std::isfinite(edited_[t]); });
    // Once with slightly less, once with slightly more probability: the rounding of a cut.
    for (double slack : {-kSlack, kSlack})
      if (Winner(best, slack) == token) return {};
    return Differs(token, Winner(best, 0));
  }

 private:
  static constexpr double kSlack = 1e-5;
  static std::string Differs(int got, int want) {
    return "token " + std::to_string(got) + ", want " + std::to_string(want);
  }
  bool Held(int token) const { return token >= 0 && token < static_cast<int>(edited_.size()); }
  void Edit() {
    constexpr float kForbidden = -std::numeric_limits<float>::infinity();
    std::map<int, float> bias, output;
    std::map<int, bool> seen, allowed;
    for (auto [token, add] : row_.logit_bias) bias[token] += add;
    for (int t : row_.output_tokens) output[t] += 1, seen[t] = true;
    for (int t : row_.prompt_tokens) seen[t] = true;
    for (int t : row_.allowed_tokens) allowed[t] = true;
    for (auto [token, add] : bias)
      if (Held(token)) edited_[token] += add;
    for (int t : row_.banned_tokens)
      if (Held(t)) edited_[t] = kForbidden;
    for (auto [token, there] : seen)
      if (there && Held(token))
        edited_[token] =
            edited_[token] > 0 ? edited_[token] / row_.repetition_penalty : edited_[token] * row_.repetition_penalty;
    for (auto [token, count] : output)
      if (Held(token)) edited_[token] -= row_.frequency_penalty * count + row_.presence_penalty;
    for (int t = 0; t < static_cast<int>(edited_.size()); ++t) {
      const bool masked = row_.grammar_mask != nullptr && (row_.grammar_mask[t / 32] >> (t % 32) & 1) == 0;
      if (masked || (!row_.allowed_tokens.empty() && !allowed[t])) edited_[t] = kForbidden;
    }
  }
  /// The winner of the race among what top-k, top-p and min-p keep of `best`, best first.
  int Winner(std::vector<int> best, double slack) const {
    const double top = edited_[best[0]], temperature = row_.temperature;
    auto share = [&](int t) { return std::exp((edited_[t] - top) / temperature); };
    if (row_.top_k > 0 && row_.top_k < static_cast<int>(best.size())) best.resize(row_.top_k);
    double total = 0, sum = 0;
    for (int t : best) total += share(t);
    size_t kept = 0;
    if (row_.top_p < 1.0f)
      while (kept < best.size() && (kept == 0 || sum < (row_.top_p + slack) * total)) sum += share(best[kept++]);
    else
      kept = best.size();
    int winner = -1;
    double greatest = 0;
    for (size_t i = 0; i < kept; ++i) {
      const int t = best[i];
      if (row_.min_p > 0 && share(t) < row_.min_p * (1 - slack)) continue;
      const double u =
          (kernels::PhiloxWordOf(row_.seed, row_.sequence_index, row_.position, static_cast<uint32_t>(t)) + 0.5) *
          0x1p-32;
      const double score = edited_[t] / temperature - std::log(-std::log(u));
      if (winner < 0 || score > greatest || (score == greatest && t < winner)) greatest = score, winner = t;
    }
    return winner;
  }

  std::span<const float> raw_;
  const kernels::SampleRow& row_;
  std::vector<float> edited_;
  std::vector<int> order_;
};

}  // namespace baton::cuda_test
