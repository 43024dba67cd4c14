#include "router/policy/predicted_time_search.h"

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/attributes.h"
#include "router/policy/predicted_time_cost.h"

namespace baton::router {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-9;  // of a cost: sums of the same terms in another order

/// A candidate, and what of a pair's cost it decides.
struct Side {
  double ms;  ///< of a decode worker: with a transfer from a worker that it has not met
  uint32_t candidate;
  uint32_t kind;
};

/// The candidates of one role, and their kinds: those of the same numerics and versions. Decode workers of a kind pair
/// with the same prefill workers, and prefill workers of a kind with the same decode workers.
class Sides {
 public:
  struct Kind {
    const Candidate* one = nullptr;
    size_t cheapest = 0;           ///< the first of them: its place
    double least_ms = kNever;      ///< its cost
    double least_own_ms = kNever;  ///< of decode workers, without a transfer
  };

  explicit Sides(size_t most) : sides_(std::make_unique_for_overwrite<Side[]>(most)) {}

  /// Its kind.
  ABSL_ATTRIBUTE_ALWAYS_INLINE Kind& Add(const Candidate& c, size_t candidate, double ms) {
    if (!AsTheLast(c)) last_ = KindOf(c);
    Kind& kind = kinds_[last_];
    if (ms < kind.least_ms) kind.least_ms = ms, kind.cheapest = size_;
    Side& side = sides_[size_++];
    side.ms = ms, side.candidate = static_cast<uint32_t>(candidate), side.kind = last_;
    return kind;
  }
  const std::vector<Kind>& kinds() const { return kinds_; }
  const Side& Cheapest(size_t kind) const { return sides_[kinds_[kind].cheapest]; }
  size_t size() const { return size_; }
  const Side* begin() const { return sides_.get(); }
  const Side* end() const { return begin() + size_; }
  absl::Span<const Side> all() const { return {begin(), size_}; }

 private:
  static constexpr char kNobodys[1] = {};  ///< a text of no candidate

  // Workers of one build often share the text.
  bool AsTheLast(const Candidate& c) const {
    return c.kv_protocol == versions_ && c.numerics.data() == numerics_.data() && c.numerics.size() == numerics_.size();
  }

  uint32_t KindOf(const Candidate& c) {
    numerics_ = c.numerics, versions_ = c.kv_protocol;
    for (size_t i = kinds_.size(); i > 0; --i) {
      const Candidate& one = *kinds_[i - 1].one;
      if (one.kv_protocol == c.kv_protocol && one.numerics == c.numerics) return static_cast<uint32_t>(i - 1);
    }
    kinds_.push_back({&c});
    return static_cast<uint32_t>(kinds_.size() - 1);
  }

  std::unique_ptr<Side[]> sides_;
  size_t size_ = 0;
  std::vector<Kind> kinds_;
  uint32_t last_ = 0;                                      ///< the kind of the last one: most are as the one before
  std::string_view numerics_{kNobodys, sizeof(kNobodys)};  ///< of the last one
  ProtocolVersions versions_;
};

/// The cheapest kCloseLook of those that are added; of equal ones the first.
class CloseLook {
 public:
  void Add(const Side& side) {
    const Kept added{side, added_++};
    if (size_ < kCloseLook) {
      kept_[size_++] = added;
      dearest_ms_ = std::max(dearest_ms_, side.ms);
      return;
    }
    if (side.ms >= dearest_ms_) return;
    if (!std::exchange(heap_, true)) std::ranges::make_heap(kept_, Before);
    std::ranges::pop_heap(kept_, Before);
    kept_.back() = added;
    std::ranges::push_heap(kept_, Before);
    dearest_ms_ = kept_.front().side.ms;
  }
  /// None that costs so much, or more, would be kept.
  bool Full(double ms) const { return size_ == kCloseLook && dearest_ms_ <= ms; }
  /// Cheapest first.
  std::vector<Side> Sorted() {
    const auto all = absl::MakeSpan(kept_).first(size_);
    if (!std::ranges::is_sorted(all, Before)) std::ranges::sort(all, Before);
    std::vector<Side> sides;
    sides.reserve(size_);
    for (const Kept& kept : all) sides.push_back(kept.side);
    return sides;
  }

 private:
  struct Kept {
    Side side;
    uint32_t order;
  };
  static bool Before(const Kept& a, const Kept& b) {
    return a.side.ms != b.side.ms ? a.side.ms < b.side.ms : a.order < b.order;
  }

  std::array<Kept, kCloseLook> kept_;
  size_t size_ = 0;
  uint32_t added_ = 0;
  bool heap_ = false;  ///< kept_ is one, with the last of them in front
  double dearest_ms_ = -kNever;
};

// Of more than kCloseLook the cheapest ones, as none costs less than `least_ms`; sorted. `left_out`: some went, and
// among equals it is the turn of the first.
std::vector<Side> Cheapest(absl::Span<const Side> sides, double least_ms, size_t turn, bool* left_out) {
  size_t first = 0;
  if (sides.size() > kCloseLook) {
    *left_out = true;
    first = turn % sides.size();
  }
  CloseLook look;
  for (const auto part : {sides.subspan(first), sides.first(first)}) {
    for (const Side& side : part) {
      if (look.Full(least_ms)) return look.Sorted();
      look.Add(side);
    }
  }
  return look.Sorted();
}

/// One question. Of the options it has seen it keeps the cheapest.
class Search {
 public:
  // The one walk over the candidates, which are more than the first cache holds.
  Search(const RouteQuestion& question, double lambda, size_t turn)
      : question_(question),
        all_(question.candidates),
        lambda_(lambda),
        turn_(turn),
        place_(all_.size(), kNotThere),
        prefills_(all_.size()),
        decodes_(all_.size()),
        terms_(std::make_unique_for_overwrite<DecodeTerms[]>(all_.size())) {
    size_t i = 0;
    for (const Candidate& c : all_) {
      if (c.role == WorkerRole::kPrefill)
        prefills_.Add(c, i, TermsOfPrefill(c, question_.prompt_tokens, lambda_).side_ms);
      if (c.role == WorkerRole::kDecode) AddDecode(c, i);
      ++i;
    }
    met_in_.assign(decodes_.size(), 0);
  }

  // `only`: options of these numerics alone.
  std::optional<RouteOption> Run(std::optional<std::string_view> only) {
    const bool some_do_both = prefills_.size() + decodes_.size() < all_.size();
    for (size_t i = 0; i < all_.size() && some_do_both; ++i) {
      if (all_[i].role == WorkerRole::kBoth && (!only || all_[i].numerics == *only)) Consider({i});
    }
    for (uint32_t kind = 0; kind < decodes_.kinds().size(); ++kind) {
      if (!only || decodes_.kinds()[kind].one->numerics == *only) Group(kind, only.has_value());
    }
    return Chosen();
  }

 private:
  static constexpr uint32_t kNotThere = UINT32_MAX;

  void AddDecode(const Candidate& c, size_t i) {
    const DecodeTerms terms = TermsOfDecode(c, question_.prompt_tokens);
    if (terms.tokens != unmet_tokens_) {  // most hold nothing of the prompt, all as little
      unmet_tokens_ = terms.tokens;
      unmet_ms_ = TransferMs(terms, question_.handoff->unmet_tokens_per_s);
    }
    const double own_ms = DecodeSideMs(terms, question_.handoff->handoff_ms);
    place_[i] = static_cast<uint32_t>(decodes_.size());
    // Each by itself: as one they would be written to the stack and read from there at once, which waits.
    DecodeTerms& kept = terms_[decodes_.size()];
    kept.tokens = terms.tokens, kept.slowdown_ms = terms.slowdown_ms, kept.pressure_ms = terms.pressure_ms;
    Sides::Kind& kind = decodes_.Add(c, i, own_ms + unmet_ms_);
    kind.least_own_ms = std::min(kind.least_own_ms, own_ms);
    most_cached_ = std::max(most_cached_, c.cached_tokens);
  }

  // Tokens of the prompt; less than none where it has more in common with others.
  int64_t Lacks(uint32_t cached_tokens) const { return int64_t{question_.prompt_tokens} - cached_tokens; }

  // Decode workers of this kind, with the prefill workers that they pair with.
  void Group(uint32_t kind, bool of_one_numerics) {
    const Candidate& decodes = *decodes_.kinds()[kind].one;
    const auto pair = [&](const Sides::Kind& k) { return MakePair(*k.one, decodes); };
    const auto alike = [&](const Sides::Kind& k) {
      return MakePair(*k.one, decodes) && k.one->numerics == decodes.numerics;
    };
    const bool only_alike = question_.numerics.require || std::ranges::any_of(prefills_.kinds(), alike);
    takes_.clear();
    for (const Sides::Kind& k : prefills_.kinds()) takes_.push_back(only_alike ? alike(k) : pair(k));
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
    if (paired && Lacks(most_cached_) > most) return;
    std::vector<size_t> short_of_little;
    for (const Side& d : decodes_) {
      const int64_t lacks = Lacks(all_[d.candidate].cached_tokens);
      if (d.kind != kind || (paired && lacks > most)) continue;
      const double slowest = std::numeric_limits<double>::min();
      const bool possible = !paired || lacks <= LocalPrefillTokens(all_[d.candidate], slowest, handoff);
      if (possible) short_of_little.push_back(d.candidate);
    }
    if (short_of_little.empty()) return;
    std::vector<double> fastest(all_.size(), 0);
    std::vector<size_t> met(all_.size(), 0);
    size_t prefills = 0;
    for (const Side& p : prefills_) {
      if (!takes_[p.kind]) continue;
      ++prefills;
      if (handoff.local_prefill_max_tokens >= 0) continue;
      for (const MetPeer& peer : handoff.met(p.candidate)) {
        fastest[peer.decode] = std::max(fastest[peer.decode], peer.tokens_per_s);
        ++met[peer.decode];
      }
    }
    for (const size_t d : short_of_little) {
      const double unmet = met[d] < prefills ? handoff.unmet_tokens_per_s : 0;
      const double rate = std::max(fastest[d], unmet);
      if (!paired || Lacks(all_[d].cached_tokens) <= LocalPrefillTokens(all_[d], rate, handoff)) Consider({d});
    }
  }

  void ConsiderPairs(uint32_t kind) {
    const double least_decode = decodes_.kinds()[kind].least_own_ms;
    const Side& d0 = decodes_.Cheapest(kind);
    const Side& p0 = CheapestPrefill();
    const double one_ms = CostMs(Pair(p0.candidate, d0.candidate, RateOf(p0.candidate, d0.candidate)));
    // Nobody who costs more than this by himself is in a cheaper pair.
    const double bound = std::min(best_ms_, one_ms) * (1 + kRounding);
    const auto taken = [&](const Side& p) { return (takes_[p.kind] != 0) & !(p.ms + least_decode > bound); };
    const auto of_kind = [&](const Side& d) { return (d.kind == kind) & !(d.ms + p0.ms > bound); };
    const std::vector<Side> prefills = Cheapest(Those(prefills_.all(), taken), p0.ms, turn_, &prefills_left_out_);
    std::vector<Side> decodes = Cheapest(Those(decodes_.all(), of_kind), d0.ms, turn_, &decodes_left_out_);
    groups_.push_back(std::move(decodes));
    for (const Side& p : prefills) {
      if (p.ms + least_decode <= best_ms_ * (1 + kRounding)) PairsOf(p, kind);
    }
  }

  // Those that are wanted; until it is called again.
  template <class Wanted>
  absl::Span<const Side> Those(absl::Span<const Side> sides, Wanted wanted) {
    size_t n = 0;
    for (const Side& side : sides) {  // no branch: whether it is wanted cannot be guessed
      wanted_[n] = side;
      n += wanted(side) ? 1 : 0;
    }
    return {wanted_.get(), n};
  }

  // One of the cheapest that the group pairs with.
  const Side& CheapestPrefill() const {
    const Side* found = nullptr;
    for (size_t k = 0; k < prefills_.kinds().size(); ++k) {
      if (!takes_[k]) continue;
      const Side& p = prefills_.Cheapest(k);
      if (found == nullptr || p.ms < found->ms) found = &p;
    }
    return *found;
  }

  // With each that it has met, and with the cheapest that it has not.
  void PairsOf(const Side& prefill, uint32_t kind) {
    const size_t p = prefill.candidate;
    ++round_;
    const PrefillTerms terms = TermsOfPrefill(all_[p], question_.prompt_tokens, lambda_);
    for (const MetPeer& peer : question_.handoff->met(p)) {
      const uint32_t at = place_[peer.decode];
      if (at == kNotThere) continue;
      met_in_[at] = round_;
      if (decodes_.begin()[at].kind == kind) ConsiderPair(terms, terms_[at], {p, peer.decode, peer.tokens_per_s});
    }
    for (const Side& d : groups_.back()) {
      if (prefill.ms + d.ms > best_ms_ * (1 + kRounding)) return;
      const uint32_t at = place_[d.candidate];
      if (met_in_[at] == round_) continue;
      ConsiderPair(terms, terms_[at], {p, d.candidate, question_.handoff->unmet_tokens_per_s, groups_.size()});
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
  void ConsiderPair(const PrefillTerms& prefill, const DecodeTerms& decode, const Found& pair) {
    Keep(pair, PairMs(prefill, decode, pair.rate, question_.handoff->handoff_ms));
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
  Sides prefills_, decodes_;
  std::unique_ptr<DecodeTerms[]> terms_;     ///< of decodes_
  std::vector<uint32_t> met_in_;             ///< of decodes_: the last round whose prefill worker has met it
  uint32_t most_cached_ = 0;                 ///< by a decode worker
  double unmet_tokens_ = -1, unmet_ms_ = 0;  ///< the last transfer between two that have not met
  std::vector<char> takes_;  ///< [kind of prefill workers] whether the decode workers of the group pair with it
  std::unique_ptr<Side[]> wanted_ = std::make_unique_for_overwrite<Side[]>(all_.size());
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
