#include "router/policy/predicted_time_search.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <vector>

#include "router/policy/predicted_time_cost.h"

namespace baton::router {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-9;  // of a cost: sums of the same terms in another order

/// A candidate, and what of a pair's cost it decides.
struct Side {
  size_t candidate = 0;
  double ms = 0;     ///< of a decode worker: with a transfer from a worker that it has not met
  size_t order = 0;  ///< among equals
};

// Sorts by cost and leaves the first kCloseLook. True: some went, and among equals it is the turn of the first.
bool KeepCheapest(std::vector<Side>& sides, size_t turn) {
  const size_t n = sides.size();
  const bool too_many = n > kCloseLook;
  const size_t first = too_many ? turn % n : 0;
  for (size_t i = 0; i < n; ++i) sides[i].order = i >= first ? i - first : i + n - first;
  const auto before = [](const Side& a, const Side& b) { return a.ms != b.ms ? a.ms < b.ms : a.order < b.order; };
  std::partial_sort(sides.begin(), sides.begin() + static_cast<ptrdiff_t>(std::min(n, kCloseLook)), sides.end(),
                    before);
  sides.resize(std::min(n, kCloseLook));
  return too_many;
}

/// One question. Of the options it has seen it keeps the cheapest.
class Search {
 public:
  Search(const RouteQuestion& question, double lambda, size_t turn)
      : question_(question),
        all_(question.candidates),
        lambda_(lambda),
        turn_(turn),
        decode_terms_(all_.size()),
        met_with_(all_.size(), 0) {
    prefills_.reserve(all_.size()), decodes_.reserve(all_.size());
    for (size_t i = 0; i < all_.size(); ++i) {
      if (all_[i].role == WorkerRole::kPrefill) prefills_.push_back(i);
      if (all_[i].role == WorkerRole::kDecode) decodes_.push_back(i);
    }
  }

  // `only`: options of these numerics alone.
  std::optional<RouteOption> Run(std::optional<std::string_view> only) {
    const bool some_do_both = prefills_.size() + decodes_.size() < all_.size();
    for (size_t i = 0; i < all_.size() && some_do_both; ++i) {
      if (all_[i].role == WorkerRole::kBoth && (!only || all_[i].numerics == *only)) Consider({i});
    }
    for (const Candidate* kind : KindsOfDecodes(only)) Group(*kind, only);
    return Chosen();
  }

 private:
  struct Pool {
    std::vector<size_t> prefills, decodes;
  };

  // Decode workers of a kind pair with the same prefill workers.
  static bool OneKind(const Candidate& a, const Candidate& b) { return a.kv_protocol == b.kv_protocol && Alike(a, b); }

  // Workers of one build often share the text.
  static bool Alike(const Candidate& a, const Candidate& b) {
    if (a.numerics.size() != b.numerics.size()) return false;
    return a.numerics.data() == b.numerics.data() || a.numerics == b.numerics;
  }

  // One of each kind.
  std::vector<const Candidate*> KindsOfDecodes(std::optional<std::string_view> only) const {
    std::vector<const Candidate*> found;
    for (const size_t d : decodes_) {
      const Candidate& c = all_[d];
      if (only && c.numerics != *only) continue;
      if (std::ranges::none_of(found, [&c](const Candidate* known) { return OneKind(*known, c); })) found.push_back(&c);
    }
    return found;
  }

  // Decode workers of this kind, with the prefill workers that they pair with.
  void Group(const Candidate& kind, std::optional<std::string_view> only) {
    Pool pool;
    bool alike = question_.numerics.require;
    for (size_t i = 0; i < prefills_.size() && !alike; ++i) {
      const Candidate& c = all_[prefills_[i]];
      alike = MakePair(c, kind) && Alike(c, kind);
    }
    pool.prefills.reserve(prefills_.size()), pool.decodes.reserve(decodes_.size());
    for (const size_t d : decodes_) {
      if (OneKind(all_[d], kind)) pool.decodes.push_back(d);
    }
    for (const size_t p : prefills_) {
      if (MakePair(all_[p], kind) && (!alike || Alike(all_[p], kind))) pool.prefills.push_back(p);
    }
    ConsiderAlone(pool);
    // With prefill workers of other numerics the decode worker may still be alone in having those that are asked for.
    if (pool.prefills.empty() || (only && !alike)) return;
    ConsiderPairs(pool, kind);
  }

  // A decode worker serves alone what breaks even with every prefill worker: with the one that it reaches fastest.
  void ConsiderAlone(const Pool& pool) {
    const HandoffTerms& handoff = *question_.handoff;
    const int64_t most =
        handoff.local_prefill_max_tokens >= 0 ? handoff.local_prefill_max_tokens : kMostBreakEvenTokens;
    std::vector<size_t> short_of_little;
    for (const size_t d : pool.decodes) {
      const int64_t lacks = int64_t{question_.prompt_tokens} - all_[d].cached_tokens;
      if (!pool.prefills.empty() && lacks > most) continue;
      const double slowest = std::numeric_limits<double>::min();
      const bool possible = pool.prefills.empty() || lacks <= LocalPrefillTokens(all_[d], slowest, handoff);
      if (possible) short_of_little.push_back(d);
    }
    if (short_of_little.empty()) return;
    std::vector<double> fastest(all_.size(), 0);
    std::vector<size_t> met(all_.size(), 0);
    if (handoff.local_prefill_max_tokens < 0) {
      for (const size_t p : pool.prefills) {
        for (const MetPeer& peer : handoff.met(p)) {
          fastest[peer.decode] = std::max(fastest[peer.decode], peer.tokens_per_s);
          ++met[peer.decode];
        }
      }
    }
    for (const size_t d : short_of_little) {
      const int64_t lacks = int64_t{question_.prompt_tokens} - all_[d].cached_tokens;
      const double unmet = met[d] < pool.prefills.size() ? handoff.unmet_tokens_per_s : 0;
      const double rate = std::max(fastest[d], unmet);
      if (pool.prefills.empty() || lacks <= LocalPrefillTokens(all_[d], rate, handoff)) Consider({d});
    }
  }

  void ConsiderPairs(const Pool& pool, const Candidate& kind) {
    const HandoffTerms& handoff = *question_.handoff;
    const uint32_t tokens = question_.prompt_tokens;
    std::vector<Side> prefills, decodes;
    prefills.reserve(pool.prefills.size()), decodes.reserve(pool.decodes.size());
    double least_decode = kNever;  // without a transfer
    Side p0, d0;                   // the first of the cheapest
    for (const size_t p : pool.prefills) {
      const Side& side = prefills.emplace_back(p, TermsOfPrefill(all_[p], tokens, lambda_).side_ms);
      if (prefills.size() == 1 || side.ms < p0.ms) p0 = side;
    }
    for (const size_t d : pool.decodes) {
      const DecodeTerms terms = TermsOfDecode(all_[d], tokens);
      decode_terms_[d] = terms;
      const double own = DecodeSideMs(terms, handoff.handoff_ms);
      least_decode = std::min(least_decode, own);
      const Side& side = decodes.emplace_back(d, own + TransferMs(terms, handoff.unmet_tokens_per_s));
      if (decodes.size() == 1 || side.ms < d0.ms) d0 = side;
    }
    const double one_ms = CostMs(Pair(p0.candidate, d0.candidate, RateOf(p0.candidate, d0.candidate)));
    // Nobody who costs more than this by himself is in a cheaper pair.
    const double bound = std::min(best_ms_, one_ms) * (1 + kRounding);
    std::erase_if(prefills, [&](const Side& p) { return p.ms + least_decode > bound; });
    std::erase_if(decodes, [&](const Side& d) { return d.ms + p0.ms > bound; });
    prefills_left_out_ |= KeepCheapest(prefills, turn_);
    decodes_left_out_ |= KeepCheapest(decodes, turn_);
    groups_.push_back(std::move(decodes));
    for (const Side& p : prefills) {
      if (p.ms + least_decode <= best_ms_ * (1 + kRounding)) PairsOf(p.candidate, kind);
    }
  }

  // With each that it has met, and with the cheapest that it has not.
  void PairsOf(size_t p, const Candidate& kind) {
    ++round_;
    const PrefillTerms terms = TermsOfPrefill(all_[p], question_.prompt_tokens, lambda_);
    for (const MetPeer& peer : question_.handoff->met(p)) {
      met_with_[peer.decode] = round_;
      const Candidate& d = all_[peer.decode];
      if (d.role == WorkerRole::kDecode && OneKind(d, kind)) ConsiderPair(terms, {p, peer.decode, peer.tokens_per_s});
    }
    for (const Side& d : groups_.back()) {
      if (met_with_[d.candidate] == round_) continue;
      ConsiderPair(terms, {p, d.candidate, question_.handoff->unmet_tokens_per_s, groups_.size()});
      return;
    }
  }

  RouteOption Pair(size_t p, size_t d, double rate) const {
    const HandoffTerms& handoff = *question_.handoff;
    return {d, p, rate, handoff.handoff_ms, LocalPrefillTokens(all_[d], rate, handoff)};
  }

  double RateOf(size_t p, size_t d) const {
    for (const MetPeer& peer : question_.handoff->met(p)) {
      if (peer.decode == d) return peer.tokens_per_s;
    }
    return question_.handoff->unmet_tokens_per_s;
  }

  double CostMs(const RouteOption& option) const {
    return PredictedCost(all_, option, question_.prompt_tokens, lambda_).total_ms;
  }

  /// A worker alone, or a pair.
  struct Found {
    std::optional<size_t> prefill;
    size_t worker = 0;  ///< that decodes
    double rate = 0;    ///< of the pair, tokens/s
    size_t group = 0;   ///< 1 + where others that cost the same with this prefill worker stand; 0: it is one by itself
  };

  void Consider(const RouteOption& alone) { Keep({std::nullopt, alone.worker}, CostMs(alone)); }
  /// The decode worker is one of a pool that ConsiderPairs has looked at.
  void ConsiderPair(const PrefillTerms& prefill, const Found& pair) {
    Keep(pair, PairMs(prefill, decode_terms_[pair.worker], pair.rate, question_.handoff->handoff_ms));
  }
  void Keep(const Found& found, double ms) {
    if (ms > best_ms_) return;
    if (ms < best_ms_) cheapest_.clear();
    best_ms_ = ms;
    cheapest_.push_back(found);
  }

  RouteOption OptionOf(const Found& found) const {
    return found.prefill ? Pair(*found.prefill, found.worker, found.rate) : RouteOption{found.worker};
  }

  // Prefill workers of equal cost in turn, and with each of them decode workers.
  std::optional<RouteOption> Chosen() const {
    if (cheapest_.empty()) return std::nullopt;
    const size_t n = cheapest_.size();
    const Found& found = cheapest_[prefills_left_out_ ? 0 : turn_ % n];
    if (found.group == 0 || decodes_left_out_) return OptionOf(found);
    const size_t p = *found.prefill;
    const auto met = question_.handoff->met(p);
    std::vector<RouteOption> equal;
    for (const Side& d : groups_[found.group - 1]) {
      if (std::ranges::any_of(met, [&](const MetPeer& peer) { return peer.decode == d.candidate; })) continue;
      equal.push_back(Pair(p, d.candidate, question_.handoff->unmet_tokens_per_s));
      if (CostMs(equal.back()) == best_ms_) continue;
      equal.pop_back();
      break;
    }
    return equal[(prefills_left_out_ ? turn_ : turn_ / n) % equal.size()];
  }

  const RouteQuestion& question_;
  const absl::Span<const Candidate> all_;
  const double lambda_;
  const size_t turn_;
  std::vector<size_t> prefills_, decodes_;  ///< candidates
  double best_ms_ = kNever;
  std::vector<Found> cheapest_;
  std::vector<std::vector<Side>> groups_;  ///< decode workers, cheapest first
  bool prefills_left_out_ = false, decodes_left_out_ = false;
  std::vector<DecodeTerms> decode_terms_;  ///< [candidate] of the pools that were looked at
  std::vector<uint32_t> met_with_;         ///< [candidate]: the last round whose prefill worker has met it
  uint32_t round_ = 0;
};

}  // namespace

std::optional<RouteOption> CheapestOption(const RouteQuestion& question, double lambda, size_t turn) {
  const NumericsRule& rule = question.numerics;
  if (!rule.so_far.empty()) {
    const auto same = Search(question, lambda, turn).Run(rule.so_far);
    if (same || rule.require) return same;
  }
  return Search(question, lambda, turn).Run(std::nullopt);
}

}  // namespace baton::router
