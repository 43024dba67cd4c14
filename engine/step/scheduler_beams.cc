// Beam search: one request whose beams are sequences that step together. A beam whose candidates are there waits for
// the others, so it does not matter in which steps their rows were computed. Then the search says which beams go on:
// they are new sequences that share their parents' blocks, and a parent without children gives its own back. Preempted,
// the search starts over from the prompt: nothing of it has been output, and it comes to the same answers.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "engine/step/scheduler_state.h"

namespace baton::engine {

// The worst case must fit the pool: nothing of a search is output before it is over, so it cannot go on in parts.
absl::Status Scheduler::State::ValidateBeams(const Request& r) const {
  const int32_t width = BeamWidth(r.sampling);
  if (r.sampling.n > width) {
    return absl::InvalidArgumentError(
        absl::StrCat("n = ", r.sampling.n, " answers of a beam search with ", width, " beams (best_of)"));
  }
  if (width > options.max_num_seqs || 2 * int64_t{width} > options.vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat("a beam search with ", width, " beams, at most ",
                                                   std::min(options.max_num_seqs, options.vocab_size / 2),
                                                   " are possible (--max-num-seqs, half of the vocabulary)"));
  }
  if (const int32_t candidates = BeamCandidates(r.sampling, options.vocab_size); candidates > kMostBeamCandidates) {
    return absl::InvalidArgumentError(
        absl::StrCat("a beam search with ", width, " beams, ", r.sampling.stop_token_ids.size(),
                     " stop_token_ids and logprobs ", r.sampling.logprobs, " looks at ", candidates,
                     " candidates of a beam, at most ", kMostBeamCandidates, " are possible"));
  }
  if (r.sampling.grammar) return absl::InvalidArgumentError("a beam search has no grammar");
  if (static_cast<int64_t>(r.tokens.size()) > r.prompt_len)
    return absl::InvalidArgumentError("a beam search starts at its prompt: it has no output so far");
  const int64_t longest = std::min<int64_t>(options.max_model_len, int64_t{r.prompt_len} + r.sampling.max_tokens);
  for (int32_t g = 0; g < cache.num_groups(); ++g) {
    const int64_t per_block = cache.pool(g).tokens_per_block();
    const int64_t shared = r.prompt_len / per_block, all = (longest + per_block - 1) / per_block;
    const int64_t of_one = cache.MaxBlocksOf(g, static_cast<int32_t>(longest), options.max_num_batched_tokens);
    const int64_t need = 1 + std::min(shared + width * (all - shared), width * of_one);
    if (need <= cache.pool(g).num_blocks()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "a beam search with ", width, " beams of ", longest, " tokens (prompt and max_tokens) may need ", need,
        " KV blocks of group ", g, ", there are ", cache.pool(g).num_blocks(), ": ask for fewer beams or tokens"));
  }
  return absl::OkStatus();
}

std::unique_ptr<BeamSearch> Scheduler::State::MakeSearch(const Request& r) const {
  return std::make_unique<BeamSearch>(r.sampling,
                                      std::min(r.sampling.max_tokens, options.max_model_len - r.prompt_len));
}

absl::Status Scheduler::State::AttachSearch(AttachedRequest attached, TimePoint now) {
  if (attached.first.size() != 1 || attached.first[0].candidates.empty())
    return absl::InvalidArgumentError("a beam search handed over without its first candidates");
  for (const kernels::TokenLogprob& c : attached.first[0].candidates) {
    if (c.token < 0 || c.token >= options.vocab_size)
      return absl::InvalidArgumentError(absl::StrCat("a beam search handed over with candidate ", c.token));
  }
  std::vector<int32_t> tokens = std::move(attached.request.tokens);
  const auto length = static_cast<int32_t>(tokens.size());
  cache.Publish(attached.kv, tokens, length);
  RequestState& r = Register(std::move(attached.request), now);
  Sequence& carrier = MakeSequence(r, 0, std::move(tokens));
  carrier.kv = std::move(attached.kv);
  carrier.computed = length;
  StartRunning(carrier);
  carrier.candidates.emplace().top = std::move(attached.first[0].candidates);
  OutputStart(r, now);
  AdvanceBeams(r, now);
  EraseIfEnded(r);
  return absl::OkStatus();
}

void Scheduler::State::TakeCandidates(Sequence& s, const kernels::SampleResult& drawn, TimePoint now) {
  RequestState& r = *s.request;
  const bool first = std::exchange(r.first_token, std::min(r.first_token, now)) == TimePoint::max();
  if (policy->HoldAfterFirstToken(r.request.key)) return HoldCandidates(s, drawn, now);
  if (first && !r.forked) OutputStart(r, now);
  s.candidates = drawn;
  AdvanceBeams(r, now);
}

// The prompt is computed. Who waits for that hears of it: the tokens come at the end.
void Scheduler::State::OutputStart(const RequestState& r, TimePoint now) {
  const auto living = std::find_if(r.choices.begin(), r.choices.end(), [](const auto& c) { return !c.ended; });
  outputs.push_back(MakeOutput(r, static_cast<int32_t>(living - r.choices.begin()), now));
}

// The search is another worker's: the candidates are handed to it as the logprobs of the first token.
void Scheduler::State::HoldCandidates(Sequence& carrier, const kernels::SampleResult& drawn, TimePoint now) {
  carrier.request->beams.reset();
  carrier.request->forked = true;
  carrier.tokens.push_back(drawn.token);
  carrier.undelivered.push_back(drawn);
  carrier.end.reason = FinishReason::kHeld;
  FinishGenerating(carrier);
  Deliver(carrier, now);
}

// When every beam has its candidates.
void Scheduler::State::AdvanceBeams(RequestState& r, TimePoint now) {
  std::vector<Sequence*> parents(r.sequences.size());
  std::vector<const kernels::SampleResult*> drawn(r.sequences.size());
  for (const auto& s : r.sequences) {
    if (!s->candidates) return;
    parents[static_cast<size_t>(s->beam)] = s.get();
    drawn[static_cast<size_t>(s->beam)] = &*s->candidates;
  }
  const std::vector<BeamSearch::Beam> next = r.beams->Advance(drawn);
  if (next.empty()) return EndSearch(r, now);
  r.forked = true;
  for (size_t i = 0; i < next.size(); ++i) {
    const Sequence& parent = *parents[static_cast<size_t>(next[i].parent)];
    std::vector<int32_t> tokens = parent.tokens;
    tokens.push_back(next[i].token);
    Sequence& s = MakeSequence(r, 0, std::move(tokens));
    s.beam = static_cast<int32_t>(i);
    s.kv = parent.kv.Share();
    s.computed = parent.computed;
    s.turn = parent.turn;
    s.prompt_scored = r.request.prompt_len;
    StartRunning(s);
  }
  for (Sequence* parent : parents) Remove(*parent);
}

// Its answers are choices that have ended, and are output as credit allows.
void Scheduler::State::EndSearch(RequestState& r, TimePoint now) {
  const auto n = static_cast<int32_t>(r.choices.size());
  std::vector<BeamSearch::Answer> answers = r.beams->TakeAnswers(n);
  const auto& first = r.sequences.front()->tokens;
  const std::vector<int32_t> prompt(first.begin(), first.begin() + r.request.prompt_len);
  while (!r.sequences.empty()) Remove(*r.sequences.back());
  r.beams.reset();
  r.forked = true;
  std::vector<Sequence*> ended;
  for (int32_t c = 0; c < n && c < static_cast<int32_t>(answers.size()); ++c) {
    if (r.choices[static_cast<size_t>(c)].ended) continue;
    Sequence& s = MakeSequence(r, c, prompt);
    s.undelivered = std::move(answers[static_cast<size_t>(c)].tokens);
    for (const kernels::SampleResult& t : s.undelivered) s.tokens.push_back(t.token);
    s.computed = s.length() - 1;
    s.prompt_scored = r.request.prompt_len;
    s.phase = Sequence::Phase::kFinished;
    s.end = DecideStop(r.request.sampling, s.tokens.back(), s.length() - r.request.prompt_len, s.length(),
                       options.max_model_len);
    BATON_CHECK(s.end.reason != FinishReason::kNone, "answer ", c, " of a beam search has not ended");
    generated_tokens += static_cast<int64_t>(s.undelivered.size());
    ended.push_back(&s);
  }
  for (Sequence* s : ended) Deliver(*s, now);
  const absl::Status none = absl::InternalError(absl::StrCat("the beam search found ", answers.size(), " answers"));
  for (auto c = static_cast<int32_t>(answers.size()); c < n; ++c) EndChoice(r, c, FinishReason::kError, none, now);
}

// Its beams share blocks, which computed again one by one they would not: the whole search is computed again.
void Scheduler::State::RestartSearch(RequestState& r) {
  const auto& first = r.sequences.front()->tokens;
  std::vector<int32_t> prompt(first.begin(), first.begin() + r.request.prompt_len);
  while (!r.sequences.empty()) Remove(*r.sequences.back());
  r.beams = MakeSearch(r.request);
  r.forked = false;
  Sequence& carrier = MakeSequence(r, 0, std::move(prompt));
  carrier.prompt_scored = r.request.prompt_len;
  Enqueue(carrier);
}

}  // namespace baton::engine
