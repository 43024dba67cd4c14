// Beam search, as transformers' generate(num_beams, do_sample=False) does it: which beams go on, which answers are kept
// and when no better one can come. Tokens and logprobs in, decisions out: no model, no KV, no blocks. Pure; any thread.
//
// A step: every beam's likeliest next tokens are its candidates. The best of all beams' candidates together, by the sum
// of their logprobs in f32, are looked at in order (ties: the better beam, then the lower token id). Those that end an
// answer, by a token or by its length, are kept if they are among the first `width`, and the `width` best answers by
// logprob / length ^ length_penalty stay; the `width` best of the others are the next beams.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/sampling/sampling_params.h"
#include "kernels/ops.h"

namespace baton::engine {

class BeamSearch {
 public:
  /// A beam of the next step: an earlier one, and its next token.
  struct Beam {
    int32_t parent = 0;
    int32_t token = 0;
  };
  struct Answer {
    std::vector<kernels::SampleResult> tokens;
    float score = 0;
    bool ended = false;  ///< by its last token; else its length is the most that there may be
  };

  /// Of params.use_beam_search; an answer has at most `max_tokens` tokens.
  BeamSearch(const SamplingParams& params, int32_t max_tokens);

  /// Takes for each beam, best first, what was drawn from its last row: `top` has its candidates, BeamCandidates many.
  /// The beams that go on, best first; none: the search is over.
  std::vector<Beam> Advance(const std::vector<const kernels::SampleResult*>& drawn);
  /// The best answers, best first; fewer than `count` only if there were not even so many candidates.
  std::vector<Answer> TakeAnswers(int32_t count);

 private:
  static constexpr int32_t kRoot = -1;
  struct Node {
    int32_t parent = kRoot;
    kernels::SampleResult token;
  };
  struct Living {
    int32_t node = kRoot;
    float score = 0;
  };
  struct Candidate {
    float score = 0;
    int32_t parent = 0;  ///< of living_
    size_t place = 0;    ///< in its beam's `top`
    int32_t token = 0;
    bool ends = false;
  };
  struct Finished {
    int32_t node = kRoot;
    float score = 0;
    bool ended = false;
  };

  std::vector<Candidate> BestCandidates(const std::vector<const kernels::SampleResult*>& drawn) const;
  int32_t AddNode(const Candidate& candidate, const kernels::SampleResult& drawn);
  void Keep(Finished answer);
  float Penalized(float score, int32_t length) const;
  bool MayImprove() const;

  const int32_t width_, min_tokens_, max_tokens_, logprobs_, early_stopping_;
  const float length_penalty_;
  const std::vector<int32_t> ends_;    ///< eos and stop tokens, sorted
  const std::vector<int32_t> banned_;  ///< below min_tokens, sorted
  int32_t length_ = 0;                 ///< tokens of every living beam
  std::vector<Node> nodes_;            ///< all tokens, as a tree
  std::vector<Living> living_;         ///< best first
  std::vector<Finished> kept_;         ///< best first, at most width_
};

/// As many candidates as every device finds at once.
inline constexpr int32_t kMostBeamCandidates = 128;

/// Candidates that a beam needs for Advance, and for the logprobs that are asked for.
int32_t BeamCandidates(const SamplingParams& params, int32_t vocab_size);

}  // namespace baton::engine
