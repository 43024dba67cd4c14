#include "engine/sampling/beam_search.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "common/check.h"
#include "engine/sampling/stop_rule.h"

namespace baton::engine {
namespace {

constexpr int32_t kAsMany = 1, kNever = 2;  // of early_stopping

std::vector<int32_t> EndTokens(const SamplingParams& p) {
  std::vector<int32_t> ends = p.stop_token_ids;
  if (!p.ignore_eos) ends.insert(ends.end(), p.eos_token_ids.begin(), p.eos_token_ids.end());
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  return ends;
}

}  // namespace

// Of all candidates only the first `width`, and the first `width` that end nothing, are of consequence: so many of one
// beam, behind all that may be skipped.
int32_t BeamCandidates(const SamplingParams& p, int32_t vocab_size) {
  const size_t skipped = std::max(EndTokens(p).size(), BannedBeforeMinTokens(p, 0).size());
  const int64_t width = BeamWidth(p);
  return static_cast<int32_t>(
      std::min(int64_t{vocab_size}, std::max({width + static_cast<int64_t>(skipped), 2 * width, int64_t{p.logprobs}})));
}

BeamSearch::BeamSearch(const SamplingParams& p, int32_t max_tokens)
    : width_(BeamWidth(p)),
      min_tokens_(p.min_tokens),
      max_tokens_(max_tokens),
      logprobs_(p.logprobs),
      early_stopping_(p.early_stopping),
      length_penalty_(p.length_penalty),
      ends_(EndTokens(p)),
      banned_(BannedBeforeMinTokens(p, 0)),
      living_(1) {
  BATON_CHECK(width_ > 0 && max_tokens > 0, width_, " beams of ", max_tokens, " tokens");
}

float BeamSearch::Penalized(float score, int32_t length) const {
  return score / static_cast<float>(std::pow(static_cast<double>(length), static_cast<double>(length_penalty_)));
}

std::vector<BeamSearch::Candidate> BeamSearch::BestCandidates(
    const std::vector<const kernels::SampleResult*>& drawn) const {
  std::vector<Candidate> all;
  const bool bans = length_ < min_tokens_;
  for (size_t beam = 0; beam < drawn.size(); ++beam) {
    const std::vector<kernels::TokenLogprob>& top = drawn[beam]->top;
    for (size_t place = 0; place < top.size(); ++place) {
      const int32_t token = top[place].token;
      const float score = living_[beam].score + top[place].logprob;
      if (!std::isfinite(score) || (bans && std::binary_search(banned_.begin(), banned_.end(), token))) continue;
      const bool ends = length_ + 1 >= max_tokens_ || std::binary_search(ends_.begin(), ends_.end(), token);
      all.push_back({score, static_cast<int32_t>(beam), place, token, ends});
    }
  }
  std::sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) {
    return std::tuple(-a.score, a.parent, a.token) < std::tuple(-b.score, b.parent, b.token);
  });
  return all;
}

std::vector<BeamSearch::Beam> BeamSearch::Advance(const std::vector<const kernels::SampleResult*>& drawn) {
  BATON_CHECK(drawn.size() == living_.size(), drawn.size(), " rows of ", living_.size(), " beams");
  const std::vector<Candidate> best = BestCandidates(drawn);
  ++length_;
  const auto width = static_cast<size_t>(width_);
  std::vector<Living> next;
  std::vector<Beam> beams;
  for (size_t i = 0; i < best.size() && (i < width || next.size() < width); ++i) {
    const Candidate& c = best[i];
    const kernels::SampleResult& row = *drawn[static_cast<size_t>(c.parent)];
    if (c.ends) {
      const bool by_token = std::binary_search(ends_.begin(), ends_.end(), c.token);
      if (i < width) Keep({AddNode(c, row), Penalized(c.score, length_), by_token});
    } else if (next.size() < width) {
      next.push_back({AddNode(c, row), c.score});
      beams.push_back({c.parent, c.token});
    }
  }
  living_ = std::move(next);
  const bool full = kept_.size() == width;
  if (full && (early_stopping_ == kAsMany || !MayImprove())) beams.clear();
  return beams;
}

// Whether the best beam, should its logprob stay as it is, would be better than the worst answer that is kept: at its
// length now, or with "never" at the length that is best for it.
bool BeamSearch::MayImprove() const {
  if (living_.empty()) return false;
  const bool longest = early_stopping_ == kNever && length_penalty_ > 0;
  return Penalized(living_.front().score, longest ? max_tokens_ : length_) > kept_.back().score;
}

int32_t BeamSearch::AddNode(const Candidate& c, const kernels::SampleResult& drawn) {
  Node& node = nodes_.emplace_back();
  node.parent = living_[static_cast<size_t>(c.parent)].node;
  node.token.token = c.token;
  if (logprobs_ >= 0) {
    node.token.chosen = drawn.top[c.place];
    const auto shown = std::min(static_cast<size_t>(logprobs_), drawn.top.size());
    node.token.top.assign(drawn.top.begin(), drawn.top.begin() + static_cast<ptrdiff_t>(shown));
  }
  return static_cast<int32_t>(nodes_.size()) - 1;
}

// Of equal answers the earlier one stays in front.
void BeamSearch::Keep(Finished answer) {
  const auto better = [](const Finished& a, const Finished& b) { return a.score > b.score; };
  kept_.insert(std::upper_bound(kept_.begin(), kept_.end(), answer, better), answer);
  if (kept_.size() > static_cast<size_t>(width_)) kept_.pop_back();
}

std::vector<BeamSearch::Answer> BeamSearch::TakeAnswers(int32_t count) {
  std::vector<Answer> answers;
  for (const Finished& kept : kept_) {
    if (answers.size() == static_cast<size_t>(count)) break;
    Answer& answer = answers.emplace_back();
    answer.score = kept.score;
    answer.ended = kept.ended;
    for (int32_t node = kept.node; node != kRoot; node = nodes_[static_cast<size_t>(node)].parent)
      answer.tokens.push_back(nodes_[static_cast<size_t>(node)].token);
    std::reverse(answer.tokens.begin(), answer.tokens.end());
  }
  return answers;
}

}  // namespace baton::engine
