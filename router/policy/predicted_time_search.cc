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
  const auto before = [](const Side& a, const Side& b) { return a.ms != b.ms ? a.ms < b.ms : a.order < b.order; };
  std::vector<Side> kept;  // a heap with the last of them in front
  kept.reserve(std::min(n, kCloseLook));
  for (size_t order = 0, at = first; order < n; ++order, at = at + 1 == n ? 0 : at + 1) {
    Side side = sides[at];
    side.order = order;
    if (kept.size() == kCloseLook) {
      if (side.ms >= kept.front().ms) continue;  // of equals the earlier ones are there
      std::ranges::pop_heap(kept, before);
      kept.back() = side;
    } else {
      kept.push_back(side);
    }
    std::ranges::push_heap(kept, before);
  }
  std::ranges::sort_heap(kept, before);
  sides = std::move(kept);
  return too_many;
}

/// One question. Of the options it has seen it keeps the cheapest.
class Search {
 public:
  // The one walk over the candidates, which are more than the first cache holds.
  Search(const RouteQuestion& question, double lambda, size_t turn)
      : question_(question), all_(question.candidates), lambda_(lambda), turn_(turn), place_(all_.size(), kNotThere) {
    prefills_.reserve(all_.size()), decodes_.reserve(all_.size());
    for (size_t i = 0; i < all_.size(); ++i) {
      if (all_[i].role == WorkerRole::kPrefill) AddPrefill(i);
      if (all_[i].role == WorkerRole::kDecode) AddDecode(i);
    }
  }

  // `only`: options of these numerics alone.
  std::optional<RouteOption> Run(std::optional<std::string_view> only) {
    const bool some_do_both = prefills_.size() + decodes_.size() < all_.size();
    for (size_t i = 0; i < all_.size() && some_do_both; ++i) {
      if (all_[i].role == WorkerRole::kBoth && (!only || all_[i].numerics == *only)) Consider({i});
    }
    for (uint32_t kind = 0; kind < decode_kinds_.size(); ++kind) {
      if (!only || decode_kinds_[kind].one->numerics == *only) Group(kind, only.has_value());
    }
    return Chosen();
  }

 private:
  struct Prefill {
    size_t candidate = 0;
    uint32_t kind = 0;
    double ms = 0;  ///< what of a pair's cost it decides
  };
  struct Decode {
    size_t candidate = 0;
    uint32_t kind = 0;
    uint32_t round = 0;  ///< the last one whose prefill worker has met it
    int64_t lacks = 0;   ///< tokens of the prompt
    DecodeTerms terms;
    double ms = 0;  ///< what of a pair's cost it decides, with a transfer from a worker that it has not met
  };
  /// Those of the same numerics and versions.
  struct Kind {
    const Candidate* one = nullptr;
    size_t cheapest = 0;           ///< the first of them: a place in prefills_ or decodes_
    double least_ms = kNever;      ///< its cost
    double least_own_ms = kNever;  ///< of decode workers, without a transfer
  };
  static constexpr uint32_t kNotThere = UINT32_MAX;

  // Decode workers of a kind pair with the same prefill workers, and prefill workers of a kind with the same decode
  // workers.
  static bool OneKind(const Candidate& a, const Candidate& b) { return a.kv_protocol == b.kv_protocol && Alike(a, b); }

  // Workers of one build often share the text.
  static bool Alike(const Candidate& a, const Candidate& b) {
    if (a.numerics.size() != b.numerics.size()) return false;
    return a.numerics.data() == b.numerics.data() || a.numerics == b.numerics;
  }

  // Its place among the kinds; of a new one it is the first.
  static uint32_t KindOf(const Candidate& c, size_t place, std::vector<Kind>& kinds) {
    for (size_t i = kinds.size(); i > 0; --i) {
      if (OneKind(*kinds[i - 1].one, c)) return static_cast<uint32_t>(i - 1);
    }
    kinds.push_back({&c, place});
    return static_cast<uint32_t>(kinds.size() - 1);
  }

  static void Compare(Kind& kind, size_t place, double ms) {
    if (ms >= kind.least_ms) return;
    kind.least_ms = ms;
    kind.cheapest = place;
  }

  void AddPrefill(size_t i) {
    const Candidate& c = all_[i];
    const uint32_t kind = KindOf(c, prefills_.size(), prefill_kinds_);
    const double ms = TermsOfPrefill(c, question_.prompt_tokens, lambda_).side_ms;
    Compare(prefill_kinds_[kind], prefills_.size(), ms);
    prefills_.push_back({i, kind, ms});
  }

  void AddDecode(size_t i) {
    const Candidate& c = all_[i];
    const uint32_t kind = KindOf(c, decodes_.size(), decode_kinds_);
    const DecodeTerms terms = TermsOfDecode(c, question_.prompt_tokens);
    if (terms.tokens != unmet_tokens_) {  // most hold nothing of the prompt, all as little
      unmet_tokens_ = terms.tokens;
      unmet_ms_ = TransferMs(terms, question_.handoff->unmet_tokens_per_s);
    }
    const double own_ms = DecodeSideMs(terms, question_.handoff->handoff_ms), ms = own_ms + unmet_ms_;
    Compare(decode_kinds_[kind], decodes_.size(), ms);
    decode_kinds_[kind].least_own_ms = std::min(decode_kinds_[kind].least_own_ms, own_ms);
    const int64_t lacks = int64_t{question_.prompt_tokens} - c.cached_tokens;
    least_lacks_ = std::min(least_lacks_, lacks);
    place_[i] = static_cast<uint32_t>(decodes_.size());
    decodes_.push_back({i, kind, 0, lacks, terms, ms});
  }

  // Decode workers of this kind, with the prefill workers that they pair with.
  void Group(uint32_t kind, bool of_one_numerics) {
    const Candidate& decodes = *decode_kinds_[kind].one;
    const auto pair = [&](const Kind& k) { return MakePair(*k.one, decodes); };
    const auto alike = [&](const Kind& k) { return MakePair(*k.one, decodes) && Alike(*k.one, decodes); };
    const bool only_alike = question_.numerics.require || std::ranges::any_of(prefill_kinds_, alike);
    takes_.clear();
    for (const Kind& k : prefill_kinds_) takes_.push_back(only_alike ? alike(k) : pair(k));
    const bool paired = std::ranges::count(takes_, true) > 0;
    ConsiderAlone(kind, paired);
    // With prefill workers of other numerics the decode worker may still be alone in having those that are asked for.
    if (paired && (!of_one_numerics || only_alike)) ConsiderPairs(kind);
  }

  // A decode worker serves alone what breaks even with every prefill worker: with the one that it reaches fastest.
  void ConsiderAlone(uint32_t kind, bool paired) {
    const HandoffTerms& handoff = *question_.handoff;
    const int64_t most =
        handoff.local_prefill_max_tokens >= 0 ? handoff.local_prefill_max_tokens : kMostBreakEvenTokens;
    if (paired && least_lacks_ > most) return;
    std::vector<const Decode*> short_of_little;
    for (const Decode& d : decodes_) {
      if (d.kind != kind || (paired && d.lacks > most)) continue;
      const double slowest = std::numeric_limits<double>::min();
      const bool possible = !paired || d.lacks <= LocalPrefillTokens(all_[d.candidate], slowest, handoff);
      if (possible) short_of_little.push_back(&d);
    }
    if (short_of_little.empty()) return;
    std::vector<double> fastest(all_.size(), 0);
    std::vector<size_t> met(all_.size(), 0);
    size_t prefills = 0;
    for (const Prefill& p : prefills_) {
      if (!takes_[p.kind]) continue;
      ++prefills;
      if (handoff.local_prefill_max_tokens >= 0) continue;
      for (const MetPeer& peer : handoff.met(p.candidate)) {
        fastest[peer.decode] = std::max(fastest[peer.decode], peer.tokens_per_s);
        ++met[peer.decode];
      }
    }
    for (const Decode* d : short_of_little) {
      const double unmet = met[d->candidate] < prefills ? handoff.unmet_tokens_per_s : 0;
      const double rate = std::max(fastest[d->candidate], unmet);
      if (!paired || d->lacks <= LocalPrefillTokens(all_[d->candidate], rate, handoff)) Consider({d->candidate});
    }
  }

  void ConsiderPairs(uint32_t kind) {
    const double least_decode = decode_kinds_[kind].least_own_ms;
    const Decode* const d0 = &decodes_[decode_kinds_[kind].cheapest];
    const Prefill* const p0 = CheapestPrefill();
    const double one_ms = CostMs(Pair(p0->candidate, d0->candidate, RateOf(p0->candidate, d0->candidate)));
    // Nobody who costs more than this by himself is in a cheaper pair.
    const double bound = std::min(best_ms_, one_ms) * (1 + kRounding);
    std::vector<Side> prefills, decodes;
    prefills.reserve(prefills_.size()), decodes.reserve(decodes_.size());
    for (const Prefill& p : prefills_) {
      if (takes_[p.kind] && !(p.ms + least_decode > bound)) prefills.push_back({p.candidate, p.ms});
    }
    for (const Decode& d : decodes_) {
      if (d.kind == kind && !(d.ms + p0->ms > bound)) decodes.push_back({d.candidate, d.ms});
    }
    prefills_left_out_ |= KeepCheapest(prefills, turn_);
    decodes_left_out_ |= KeepCheapest(decodes, turn_);
    groups_.push_back(std::move(decodes));
    for (const Side& p : prefills) {
      if (p.ms + least_decode <= best_ms_ * (1 + kRounding)) PairsOf(p, kind);
    }
  }

  // One of the cheapest that the group pairs with.
  const Prefill* CheapestPrefill() const {
    const Prefill* found = nullptr;
    for (size_t k = 0; k < prefill_kinds_.size(); ++k) {
      if (!takes_[k]) continue;
      const Prefill& p = prefills_[prefill_kinds_[k].cheapest];
      if (found == nullptr || p.ms < found->ms) found = &p;
    }
    return found;
  }

  // With each that it has met, and with the cheapest that it has not.
  void PairsOf(const Side& prefill, uint32_t kind) {
    const size_t p = prefill.candidate;
    ++round_;
    const PrefillTerms terms = TermsOfPrefill(all_[p], question_.prompt_tokens, lambda_);
    for (const MetPeer& peer : question_.handoff->met(p)) {
      const uint32_t at = place_[peer.decode];
      if (at == kNotThere) continue;
      decodes_[at].round = round_;
      if (decodes_[at].kind == kind) ConsiderPair(terms, decodes_[at], {p, peer.decode, peer.tokens_per_s});
    }
    for (const Side& d : groups_.back()) {
      if (prefill.ms + d.ms > best_ms_ * (1 + kRounding)) return;
      const Decode& decode = decodes_[place_[d.candidate]];
      if (decode.round == round_) continue;
      ConsiderPair(terms, decode, {p, d.candidate, question_.handoff->unmet_tokens_per_s, groups_.size()});
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
  void ConsiderPair(const PrefillTerms& prefill, const Decode& decode, const Found& pair) {
    Keep(pair, PairMs(prefill, decode.terms, pair.rate, question_.handoff->handoff_ms));
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
  std::vector<uint32_t> place_;  ///< [candidate] in decodes_
  std::vector<Prefill> prefills_;
  std::vector<Decode> decodes_;
  std::vector<Kind> prefill_kinds_, decode_kinds_;
  int64_t least_lacks_ = std::numeric_limits<int64_t>::max();
  double unmet_tokens_ = -1, unmet_ms_ = 0;  ///< the last transfer between two that have not met
  std::vector<char> takes_;  ///< [kind of prefill workers] whether the decode workers of the group pair with it
  double best_ms_ = kNever;
  std::vector<Found> cheapest_;
  std::vector<std::vector<Side>> groups_;  ///< decode workers, cheapest first
  bool prefills_left_out_ = false, decodes_left_out_ = false;
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
