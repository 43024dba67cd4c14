#include "router/fleet/fleet.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/kv_digest.h"
#include "common/status.h"
#include "common/str_cat.h"
#include "common/trust/hash_key.h"
#include "router/policy/policies.h"
#include "router/policy/predicted_time_cost.h"

namespace baton::router {
namespace {

std::string KeyBytes(const HashKey& key) {
  return std::string(reinterpret_cast<const char*>(key.bytes.data()), key.bytes.size());
}

absl::StatusOr<HashKey> KeyOf(const std::string& file, const trust::ClusterSecret* secret) {
  if (!file.empty()) return HashKey::FromFile(file);
  return secret == nullptr ? HashKey::Random() : trust::HashKeyOf(*secret);
}

std::string Different(const char* field, const std::string& worker, const std::string& others) {
  return StrCat(field, ": worker has \"", worker, "\", the other workers have \"", others, "\"");
}

bool Excluded(const std::vector<WorkerId>& excluded, WorkerId id) {
  return std::find(excluded.begin(), excluded.end(), id) != excluded.end();
}

// Its numerics live as long as the view's facts.
Candidate CandidateOf(const LinkView& view) {
  Candidate c;
  c.id = view.id;
  c.role = view.facts->role;
  c.numerics = view.facts->numerics_id;
  c.kv_protocol = view.facts->kv_protocol;
  c.name = view.facts->worker_id;
  c.running = std::max(view.outstanding->requests(), view.load.running + view.load.waiting);
  c.max_num_seqs = view.facts->max_num_seqs;
  if (view.load.kv_blocks_total > 0) {
    c.kv_used_fraction = static_cast<double>(view.load.kv_blocks_used) / static_cast<double>(view.load.kv_blocks_total);
  }
  c.prefill_tokens_per_s =
      view.load.prefill_tokens_per_s > 0 ? view.load.prefill_tokens_per_s : view.facts->prefill_tokens_per_s;
  c.decode_step_ms = view.load.decode_step_ms > 0 ? view.load.decode_step_ms : view.facts->decode_step_ms;
  c.queued_tokens =
      view.outstanding->QueuedTokens(c.prefill_tokens_per_s) + static_cast<double>(view.others_queued_tokens);
  return c;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Fleet>> Fleet::Create(const RouterConfig& config, Loops loops, const Clock& clock,
                                                     WireMaker wires, CanarySender send_canary,
                                                     const trust::ClusterSecret* secret) {
  BATON_ASSIGN_OR_RETURN(auto scorer, MakeScorer(config.route_policy, config.route_lambda));
  const bool from_file = !config.hash_key_file.empty();
  BATON_ASSIGN_OR_RETURN(const HashKey key, KeyOf(config.hash_key_file, secret));
  std::unique_ptr<Fleet> fleet(
      new Fleet(config, loops, clock, std::move(wires), std::move(send_canary), std::move(scorer), key, from_file));
  std::vector<Endpoint> listed;
  for (const std::string& address : config.worker) listed.push_back({address});
  fleet->roster_.Listed(listed, clock.Now());
  fleet->Seat();
  return fleet;
}

Fleet::Fleet(const RouterConfig& config, Loops loops, const Clock& clock, WireMaker wires, CanarySender send_canary,
             std::unique_ptr<Scorer> scorer, HashKey key, bool key_from_file)
    : config_(config),
      scorer_(std::move(scorer)),
      index_(config.index_max_bytes),
      loops_(loops),
      clock_(clock),
      wires_(std::move(wires)),
      send_canary_(std::move(send_canary)),
      key_from_file_(key_from_file),
      created_(clock.Now()),
      roster_(kMaxWorkers),
      flips_(std::chrono::milliseconds(config.heartbeat_timeout_ms)),
      key_(key),
      hasher_(std::make_shared<const PrefixHasher>(key)) {}

Fleet::~Fleet() { Stop(); }

// A router whose key is not from a file may adopt that of a running worker instead.
std::string Fleet::GreetingKey(bool refused_before) {
  std::lock_guard lock(mutex_);
  if (refused_before && !key_from_file_) return "";
  return KeyBytes(key_);
}

// With no other worker ready the index is empty and nothing was hashed that still counts: the key may change.
bool Fleet::OthersReady(int32_t slot) const {
  bool others = false;
  ForEachView([&](const LinkView& v) { others |= v.id.index != slot && v.state == LinkState::kReady; });
  return others;
}

absl::Status Fleet::Admit(int32_t slot, const WorkerFacts& facts) {
  BATON_RETURN_IF_ERROR(CheckName(slot, facts));
  std::lock_guard lock(mutex_);
  if (facts.role == WorkerRole::kUnknown) {
    return absl::FailedPreconditionError("role: worker is neither both nor prefill nor decode");
  }
  if (facts.kv_digest != kKvDigestName) {
    return absl::FailedPreconditionError(
        StrCat("kv_digest: worker has \"", facts.kv_digest, "\", this router's build \"", kKvDigestName, "\""));
  }
  if (!facts.hash_key.empty() && facts.hash_key != KeyBytes(key_)) {
    if (key_from_file_ || OthersReady(slot)) {
      return absl::FailedPreconditionError(
          "hash_key: the worker's key is not this router's; give every router and worker the same --hash-key-file, or "
          "none and the same --cluster-secret-file");
    }
    if (facts.hash_key.size() != key_.bytes.size()) {
      return absl::FailedPreconditionError(
          StrCat("hash_key: ", facts.hash_key.size(), " bytes, expected ", key_.bytes.size()));
    }
    std::memcpy(key_.bytes.data(), facts.hash_key.data(), key_.bytes.size());
    hasher_ = std::make_shared<const PrefixHasher>(key_);
  }
  // A fleet of one may come back with another model; with several, the one that was first decides.
  if (facts_ && CountWorkers() > 1) {
    if (facts.model_digest != facts_->model_digest) {
      return absl::FailedPreconditionError(Different("model_digest", facts.model_digest, facts_->model_digest));
    }
    if (facts.kv_layout != facts_->kv_layout) {
      return absl::FailedPreconditionError(Different("kv_layout", facts.kv_layout, facts_->kv_layout));
    }
    if (facts.tokenizer_digest != facts_->tokenizer_digest && !facts.tokenizer_digest.empty() &&
        !facts_->tokenizer_digest.empty()) {
      return absl::FailedPreconditionError(
          Different("tokenizer_digest", facts.tokenizer_digest, facts_->tokenizer_digest));
    }
    if (facts.vocab_size != facts_->vocab_size) {
      return absl::FailedPreconditionError(
          Different("vocab_size", StrCat(facts.vocab_size), StrCat(facts_->vocab_size)));
    }
    if (facts.max_model_len != facts_->max_model_len) {
      return absl::FailedPreconditionError(
          Different("max_model_len", StrCat(facts.max_model_len), StrCat(facts_->max_model_len)));
    }
  }
  facts_ = std::make_shared<const WorkerFacts>(facts);
  return absl::OkStatus();
}

void Fleet::OnReady(int32_t slot) {
  NoteReady();
  std::vector<Meetings::Member> ready;  // ascending slots
  ForEachView([&](const LinkView& v) {
    if (v.state == LinkState::kReady)
      ready.push_back(
          {v.id.index, v.facts->role == WorkerRole::kPrefill, !v.facts->landing_address.empty(), v.facts->kv_protocol});
  });
  const auto self = std::ranges::find(ready, slot, &Meetings::Member::slot);
  if (self == ready.end()) return;
  for (const Meetings::Meeting& m : meetings_.Ready(*self, ready)) {
    const auto prefill = LinkOf({m.prefill});
    const std::shared_ptr<const WorkerFacts> decode = FactsOf({m.decode});
    if (prefill != nullptr && decode != nullptr) prefill->Meet(decode->landing_address);
  }
  LookAtCanaries();
}

std::shared_ptr<const WorkerFacts> Fleet::model_facts() const {
  std::lock_guard lock(mutex_);
  return facts_;
}

void Fleet::ForEachView(absl::FunctionRef<void(const LinkView&)> look) const {
  const std::shared_ptr<const Links> all = links();
  for (const auto& link : *all) {
    if (link != nullptr) link->Look(look);
  }
}

size_t Fleet::CountWorkers() const {
  const std::shared_ptr<const Links> all = links();
  return static_cast<size_t>(std::ranges::count_if(*all, [](const auto& link) { return link != nullptr; }));
}

std::vector<LinkView> Fleet::Views() const {
  std::vector<LinkView> views;
  const std::shared_ptr<const Links> all = links();
  views.reserve(all->size());
  for (const auto& link : *all) {
    if (link != nullptr) views.push_back(link->View());
  }
  return views;
}

std::vector<WorkerStatus> Fleet::Status() const {
  std::vector<WorkerStatus> all;
  for (const LinkView& v : Views()) {
    WorkerStatus s{v.address, LinkStateName(v.shown_state()), v.shown_detail()};
    if (v.facts) {
      s.incarnation = v.facts->incarnation;
      s.kv_blocks = v.facts->kv_blocks;
      s.max_num_seqs = v.facts->max_num_seqs;
    }
    all.push_back(std::move(s));
  }
  return all;
}

// Null: the request reads no cache.
UnitKeys Fleet::KeysOf(const TokenizedRequest& generation) const {
  if (generation.sampling.prompt_logprobs) return nullptr;
  std::shared_ptr<const PrefixHasher> hasher;
  std::shared_ptr<const WorkerFacts> facts;
  {
    std::lock_guard lock(mutex_);
    hasher = hasher_;
    facts = facts_;
  }
  PrefixScope scope;
  scope.model_digest = facts->model_digest;
  scope.salt = generation.cache_salt;
  return generation.prompt.KeysIn(scope, *hasher);
}

// What each worker holds, by its events, or will have computed when it begins with this prompt.
void Fleet::Match(const TokenizedRequest& generation, Ready& ready) const {
  ready.prompt_tokens = static_cast<int64_t>(generation.prompt.size());
  ready.keys = KeysOf(generation);
  if (!ready.keys) return;
  WorkerSet eligible;
  for (const Candidate& c : ready.candidates) eligible.Add(c.id.index);
  const WorkerPrefixes::Depths depths = index_.Match(*ready.keys, eligible);
  for (size_t i = 0; i < ready.candidates.size(); ++i) {
    Candidate& c = ready.candidates[i];
    const uint32_t units =
        std::max(depths[static_cast<size_t>(c.id.index)], ready.parts[i].outstanding->UnitsUnderWay(*ready.keys));
    c.cached_tokens = std::min<uint32_t>(units * kUnitTokens, static_cast<uint32_t>(generation.prompt.size()) - 1);
  }
}

absl::StatusOr<Fleet::Ready> Fleet::ReadyFor(const TokenizedRequest& generation,
                                             const std::vector<WorkerId>& excluded) const {
  Ready out;
  out.candidates.reserve(CountWorkers());
  out.parts.reserve(CountWorkers());
  ForEachView([&](const LinkView& view) {
    if (!view.takes_requests() || Excluded(excluded, view.id)) return;
    out.candidates.push_back(CandidateOf(view));
    out.parts.push_back(
        {view.facts, view.outstanding, view.load.handoff.peers, view.load.handoff.mean_peer_gigabytes_per_second});
  });
  if (out.candidates.empty()) {
    const Readiness why = ReadinessNow();
    if (why.ready) return absl::UnavailableError("no other worker can take the request");
    return absl::UnavailableError(
        StrCat("no worker is ready: ", why.detail,
               why.phase.empty() ? "" : StrCat(" (", why.phase, " ", static_cast<int>(100 * why.progress), " %)")));
  }
  GuessUnknownRates(absl::MakeSpan(out.candidates));
  Match(generation, out);
  return out;
}

RoutedTo Fleet::Ready::Place(size_t i, uint32_t tokens_to_prefill) const {
  const Candidate& c = candidates[i];
  const int64_t uncached = std::max<int64_t>(0, int64_t{tokens_to_prefill} - c.cached_tokens);
  return RoutedTo{c.id, LoadShare(parts[i].outstanding, uncached, prompt_tokens, keys), c.cached_tokens};
}

void Fleet::NoteHandoff(double ms) {
  constexpr double kShare = 0.1, kLeast = 0.5, kMost = 50;
  const double mean = handoff_ms_.load(std::memory_order_relaxed);  // a lost update is one sample
  handoff_ms_.store(mean + kShare * (std::clamp(ms, kLeast, kMost) - mean), std::memory_order_relaxed);
}

/// The decode candidates that prefill candidates are connected to, looked up when they are asked for.
class Fleet::Peers {
 public:
  absl::Span<const MetPeer> Of(size_t prefill, const std::vector<Ready::Part>& parts, double bytes_per_token) {
    if (known_.empty()) {
      known_.resize(parts.size());
      place_.assign(parts.size(), kNoPlace);
      by_incarnation_.reserve(parts.size());
      for (size_t i = 0; i < parts.size(); ++i) by_incarnation_.emplace(parts[i].facts->incarnation, i);
    }
    std::optional<std::vector<MetPeer>>& met = known_[prefill];
    if (met) return *met;
    met.emplace();
    for (const PeerPath& peer : *parts[prefill].peers) {
      const auto there = by_incarnation_.find(peer.incarnation);
      if (there == by_incarnation_.end() || peer.gigabytes_per_second <= 0) continue;
      const MetPeer path{there->second, peer.gigabytes_per_second * 1e9 / bytes_per_token};
      size_t& at = place_[path.decode];
      if (at == kNoPlace) {
        at = met->size();
        met->push_back(path);
      } else {
        (*met)[at] = path;
      }
    }
    for (const MetPeer& path : *met) place_[path.decode] = kNoPlace;
    return *met;
  }

 private:
  static constexpr size_t kNoPlace = SIZE_MAX;

  absl::flat_hash_map<std::string_view, size_t> by_incarnation_;  // of candidates
  std::vector<size_t> place_;  // [candidate] in the list that is being made; a path told twice counts as told last
  std::vector<std::optional<std::vector<MetPeer>>> known_;  // [candidate]
};

// Two workers that have not met are taken to reach each other as others do in the mean. Taken for slower, a decode
// worker that has just come would get no work, and its path would stay unknown.
double Fleet::UnmetGigabytesPerSecond(const Ready& ready) {
  constexpr double kNobodyHasMet = 1;
  double sum = 0;
  int known = 0;
  for (const Ready::Part& part : ready.parts) {
    sum += part.mean_peer_gigabytes_per_second;
    known += part.mean_peer_gigabytes_per_second > 0 ? 1 : 0;
  }
  return known > 0 ? sum / known : kNobodyHasMet;
}

HandoffTerms Fleet::HandoffTermsOf(const Ready& ready) const {
  const std::shared_ptr<const WorkerFacts> facts = model_facts();
  const double bytes_per_token = facts ? static_cast<double>(std::max<int64_t>(1, facts->kv_bytes_per_token)) : 1;
  const double unmet = UnmetGigabytesPerSecond(ready);
  const auto tokens_per_s = [&parts = ready.parts, bytes_per_token, unmet](size_t p, size_t d) {
    double gigabytes_per_s = unmet;
    for (const PeerPath& peer : *parts[p].peers) {
      const bool there = peer.incarnation == parts[d].facts->incarnation;
      if (there && peer.gigabytes_per_second > 0) gigabytes_per_s = peer.gigabytes_per_second;
    }
    return gigabytes_per_s * 1e9 / bytes_per_token;
  };
  HandoffTerms terms{handoff_ms_.load(std::memory_order_relaxed), config_.local_prefill_max_tokens, tokens_per_s};
  terms.unmet_tokens_per_s = unmet * 1e9 / bytes_per_token;
  terms.met = [&parts = ready.parts, bytes_per_token, peers = std::make_shared<Peers>()](size_t p) {
    return peers->Of(p, parts, bytes_per_token);
  };
  return terms;
}

absl::StatusOr<RoutedTo> Fleet::Choose(const TokenizedRequest& generation, uint32_t tokens,
                                       const std::vector<WorkerId>& excluded, bool with_prefill,
                                       const std::string& numerics_so_far) {
  BATON_ASSIGN_OR_RETURN(const Ready ready, ReadyFor(generation, excluded));
  const HandoffTerms handoff = HandoffTermsOf(ready);
  const NumericsRule numerics{numerics_so_far, config_.require_identical_failover};
  const auto chosen =
      scorer_->Answer({ready.candidates, tokens, with_prefill ? &handoff : nullptr, numerics, generation.session});
  if (!chosen) return absl::UnavailableError(WhyNoOption(numerics));
  RoutedTo placement = ready.Place(chosen->worker, chosen->prefill ? 0 : tokens);
  if (chosen->prefill) {
    placement.prefill = std::make_unique<RoutedTo>(ready.Place(*chosen->prefill, tokens));
    placement.predicted_cached_tokens = placement.prefill->predicted_cached_tokens;
    placement.local_prefill_tokens = chosen->local_prefill_tokens;
  }
  const Cost cost = PredictedCost(ready.candidates, *chosen, tokens, /*lambda=*/0);
  placement.predicted_ttft_ms = cost.queue_ms + cost.prefill_ms + cost.transfer_ms + cost.handoff_ms;
  return placement;
}

bool Fleet::MayComeBack(bool one_leaves) const {
  if (stopped_ || one_leaves) return !stopped_;
  return std::ranges::any_of(Views(), [this](const LinkView& view) {
    const bool away = view.state == LinkState::kLost || view.state == LinkState::kConnecting ||
                      view.state == LinkState::kLoading || view.state == LinkState::kDraining || !view.takes_requests();
    if (view.changes_its_role()) return true;  // it decodes again where all have changed at once (FlipBook)
    // A worker that joined and has not been greeted yet may be the one that takes the place of one that leaves.
    return away && (view.facts == nullptr ? was_ready_.load() : view.facts->role != WorkerRole::kPrefill);
  });
}

absl::StatusOr<RoutedTo> Fleet::ChoosePrefill(const TokenizedRequest& generation, const std::vector<WorkerId>& excluded,
                                              WorkerId decode) {
  BATON_ASSIGN_OR_RETURN(const Ready ready, ReadyFor(generation, excluded));
  const std::shared_ptr<const WorkerFacts> facts = FactsOf(decode);
  if (facts == nullptr) return absl::UnavailableError("the decode worker has left");
  std::vector<RouteOption> options;
  for (size_t i = 0; i < ready.candidates.size(); ++i) {
    const Candidate& c = ready.candidates[i];
    if (c.role == WorkerRole::kPrefill && c.kv_protocol.Shares(facts->kv_protocol)) options.push_back({i});
  }
  const NumericsRule numerics{facts->numerics_id, config_.require_identical_failover};
  KeepNumerics(ready.candidates, numerics, options);
  if (options.empty()) return absl::UnavailableError("no other prefill worker is ready");
  const auto tokens = static_cast<uint32_t>(generation.prompt.size());
  return ready.Place(
      options[scorer_->Choose({ready.candidates, tokens, nullptr, numerics, generation.session}, options)].worker,
      tokens);
}

std::string Fleet::NameOf(WorkerId id) const {
  const auto link = LinkOf(id);
  return link == nullptr ? "none" : link->View().name();
}

KvPath Fleet::PathOf(WorkerId prefill, WorkerId decode) const {
  const auto from = LinkOf(prefill);
  const std::shared_ptr<const WorkerFacts> facts = FactsOf(decode);
  if (from == nullptr || facts == nullptr) return {};
  KvPath path{.bytes_per_token = facts->kv_bytes_per_token};
  const LinkView view = from->View();
  for (const PeerPath& peer : *view.load.handoff.peers) {
    if (peer.incarnation != facts->incarnation) continue;
    path.transport = peer.transport;
    path.path = peer.path;
    path.gigabytes_per_second = peer.gigabytes_per_second;
  }
  return path;
}

std::shared_ptr<const WorkerFacts> Fleet::FactsOf(WorkerId id) const {
  const auto link = LinkOf(id);
  return link == nullptr ? nullptr : link->View().facts;
}

std::string Fleet::NumericsOf(WorkerId id) const {
  const std::shared_ptr<const WorkerFacts> facts = FactsOf(id);
  return facts == nullptr ? "" : facts->numerics_id;
}

void Fleet::Send(WorkerId id, const TokenizedRequest& generation, const LegOrder& order,
                 std::shared_ptr<LegEvents> events) {
  if (const auto link = LinkOf(id)) return link->Send(id, generation, order, std::move(events));
  LegBook unsent;  // of this order alone
  unsent.Note(order, events);
  unsent.TellLost(id, absl::UnavailableError("the worker has left"));
}

void Fleet::Forget(WorkerId id, const std::string& leg_id) {
  if (const auto link = LinkOf(id)) link->Forget(id, leg_id);
}

}  // namespace baton::router
