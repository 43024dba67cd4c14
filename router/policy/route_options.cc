#include "router/policy/route_options.h"

#include <algorithm>

namespace baton::router {
namespace {

int64_t Uncached(const Candidate& c, uint32_t prompt_tokens) { return int64_t{prompt_tokens} - c.cached_tokens; }

void AddOptionsWith(const RouteQuestion& question, size_t w, std::vector<RouteOption>& options) {
  const absl::Span<const Candidate> candidates = question.candidates;
  const HandoffTerms* handoff = question.handoff;
  const Candidate& worker = candidates[w];
  if (worker.role == WorkerRole::kBoth) options.push_back({w});
  if (worker.role != WorkerRole::kDecode) return;
  bool alone = true;  // until a pair pays
  const auto alike = [&](const Candidate& c) { return MakePair(c, worker) && c.numerics == worker.numerics; };
  const bool only_alike = question.numerics.require || std::ranges::any_of(candidates, alike);
  for (size_t p = 0; handoff != nullptr && p < candidates.size(); ++p) {
    if (!MakePair(candidates[p], worker) || (only_alike && !alike(candidates[p]))) continue;
    const double rate = handoff->tokens_per_s(p, w);
    const uint32_t local = LocalPrefillTokens(worker, rate, *handoff);
    alone &= Uncached(worker, question.prompt_tokens) <= local;
    options.push_back({w, p, rate, handoff->handoff_ms, local});
  }
  if (alone) options.push_back({w});
}

}  // namespace

uint32_t LocalPrefillTokens(const Candidate& decode, double transfer_tokens_per_s, const HandoffTerms& handoff) {
  if (handoff.local_prefill_max_tokens >= 0) return static_cast<uint32_t>(handoff.local_prefill_max_tokens);
  return BreakEvenTokens(decode.prefill_tokens_per_s, transfer_tokens_per_s, handoff.handoff_ms);
}

std::vector<RouteOption> OptionsOf(const RouteQuestion& question) {
  std::vector<RouteOption> options;
  for (size_t w = 0; w < question.candidates.size(); ++w) AddOptionsWith(question, w, options);
  KeepNumerics(question.candidates, question.numerics, options);
  return options;
}

std::vector<RouteOption> OptionsWith(const RouteQuestion& question, size_t worker) {
  std::vector<RouteOption> options;
  AddOptionsWith(question, worker, options);
  KeepNumerics(question.candidates, question.numerics, options);
  return options;
}

bool ManyPairs(const RouteQuestion& question) {
  constexpr size_t kFewPairs = 256;
  if (question.handoff == nullptr) return false;
  size_t prefills = 0, decodes = 0;
  for (const Candidate& c : question.candidates) {
    prefills += c.role == WorkerRole::kPrefill ? 1 : 0;
    decodes += c.role == WorkerRole::kDecode ? 1 : 0;
    if (prefills * decodes > kFewPairs) return true;
  }
  return false;
}

uint32_t BreakEvenTokens(double prefill_tokens_per_s, double transfer_tokens_per_s, double handoff_ms) {
  constexpr double kMost = kMostBreakEvenTokens;
  if (prefill_tokens_per_s <= 0 || transfer_tokens_per_s <= 0) return 0;
  const double gain_ms = 1000 / prefill_tokens_per_s - 1000 / transfer_tokens_per_s;  // of a handoff, per token
  return static_cast<uint32_t>(gain_ms * kMost <= handoff_ms ? kMost : handoff_ms / gain_ms);
}

const char* WhyNoOption(const NumericsRule& numerics) {
  return numerics.require && !numerics.so_far.empty()
             ? "no worker with the numerics of the answer so far is ready (--require-identical-failover)"
             : "no worker that decodes is ready";
}

void KeepNumerics(absl::Span<const Candidate> candidates, const NumericsRule& numerics,
                  std::vector<RouteOption>& options) {
  const auto other = [&](const RouteOption& o) {
    return candidates[o.worker].numerics != numerics.so_far ||
           candidates[o.prefill.value_or(o.worker)].numerics != numerics.so_far;
  };
  if (numerics.so_far.empty() || (!numerics.require && std::ranges::all_of(options, other))) return;
  std::erase_if(options, other);
}

}  // namespace baton::router
