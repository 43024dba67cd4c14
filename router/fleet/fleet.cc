#include "router/fleet/fleet.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "common/status.h"
#include "common/str_cat.h"
#include "router/policy/break_even.h"

namespace baton::router {
namespace {

std::string KeyBytes(const HashKey& key) {
  return std::string(reinterpret_cast<const char*>(key.bytes.data()), key.bytes.size());
}

std::string Different(const char* field, const std::string& worker, const std::string& others) {
  return StrCat(field, ": worker has \"", worker, "\", the other workers have \"", others, "\"");
}

bool Excluded(const std::vector<WorkerId>& excluded, WorkerId id) {
  return std::find(excluded.begin(), excluded.end(), id) != excluded.end();
}

Candidate CandidateOf(const LinkView& view) {
  Candidate c;
  c.id = view.id;
  const int64_t own = view.outstanding->uncached_tokens.load(std::memory_order_relaxed);
  c.queued_tokens = static_cast<double>(std::max(own, view.load.queued_tokens));
  c.running =
      std::max(view.outstanding->requests.load(std::memory_order_relaxed), view.load.running + view.load.waiting);
  c.max_num_seqs = view.facts->max_num_seqs;
  if (view.load.kv_blocks_total > 0) {
    c.kv_used_fraction = static_cast<double>(view.load.kv_blocks_used) / static_cast<double>(view.load.kv_blocks_total);
  }
  c.prefill_tokens_per_s =
      view.load.prefill_tokens_per_s > 0 ? view.load.prefill_tokens_per_s : view.facts->prefill_tokens_per_s;
  c.decode_step_ms = view.load.decode_step_ms > 0 ? view.load.decode_step_ms : view.facts->decode_step_ms;
  return c;
}

}  // namespace

bool RetryBudget::Take(int64_t live_requests) {
  const int64_t limit = std::max<int64_t>(at_least_, static_cast<int64_t>(share_ * static_cast<double>(live_requests)));
  if (running_.fetch_add(1, std::memory_order_relaxed) < limit) return true;
  running_.fetch_sub(1, std::memory_order_relaxed);
  return false;
}

absl::StatusOr<std::unique_ptr<Fleet>> Fleet::Create(const RouterConfig& config, const std::string& version,
                                                     Executor& home, const Clock& clock) {
  BATON_ASSIGN_OR_RETURN(auto scorer, MakeScorer(config.route_policy, config.route_lambda));
  const bool from_file = !config.hash_key_file.empty();
  BATON_ASSIGN_OR_RETURN(const HashKey key, from_file ? HashKey::FromFile(config.hash_key_file) : HashKey::Random());
  BATON_ASSIGN_OR_RETURN(const HashKey identity, HashKey::Random());
  const std::string router_id = "router-" + identity.Hex().substr(0, 16);
  std::unique_ptr<Fleet> fleet(new Fleet(config, std::move(scorer), key, from_file));
  for (size_t i = 0; i < config.worker.size(); ++i) {
    fleet->links_.push_back(std::make_shared<WorkerLink>(static_cast<int32_t>(i), config.worker[i], fleet->config_,
                                                         router_id, version, home, *fleet, fleet->index_, clock));
  }
  return fleet;
}

Fleet::Fleet(const RouterConfig& config, std::unique_ptr<Scorer> scorer, HashKey key, bool key_from_file)
    : config_(config),
      scorer_(std::move(scorer)),
      index_(config.index_max_bytes),
      key_from_file_(key_from_file),
      key_(key),
      hasher_(std::make_shared<const PrefixHasher>(key)) {}

Fleet::~Fleet() { Stop(); }

void Fleet::Start() {
  for (auto& link : links_) link->Start();
}

void Fleet::Stop() {
  if (std::exchange(stopped_, true)) return;
  for (auto& link : links_) link->Stop();
}

// A router whose key is not from a file may adopt that of a running worker instead.
std::string Fleet::GreetingKey(bool refused_before) {
  std::lock_guard lock(mutex_);
  if (refused_before && !key_from_file_) return "";
  return KeyBytes(key_);
}

// With no other worker ready the index is empty and nothing was hashed that still counts: the key may change.
bool Fleet::OthersReady(int32_t slot) const {
  for (size_t i = 0; i < links_.size(); ++i) {
    if (static_cast<int32_t>(i) != slot && links_[i]->View().state == LinkState::kReady) return true;
  }
  return false;
}

absl::Status Fleet::Admit(int32_t slot, const WorkerFacts& facts) {
  std::lock_guard lock(mutex_);
  if (facts.role != "both" && facts.role != "prefill" && facts.role != "decode") {
    return absl::FailedPreconditionError(StrCat("role: worker is \"", facts.role, "\", not both, prefill or decode"));
  }
  if (!facts.hash_key.empty() && facts.hash_key != KeyBytes(key_)) {
    if (key_from_file_ || OthersReady(slot)) {
      return absl::FailedPreconditionError(
          "hash_key: the worker's key is not this router's; give every router the same --hash-key-file");
    }
    if (facts.hash_key.size() != key_.bytes.size()) {
      return absl::FailedPreconditionError(
          StrCat("hash_key: ", facts.hash_key.size(), " bytes, expected ", key_.bytes.size()));
    }
    std::memcpy(key_.bytes.data(), facts.hash_key.data(), key_.bytes.size());
    hasher_ = std::make_shared<const PrefixHasher>(key_);
  }
  // A fleet of one may come back with another model; with several, the one that was first decides.
  if (facts_ && links_.size() > 1) {
    if (facts.model_digest != facts_->model_digest) {
      return absl::FailedPreconditionError(Different("model_digest", facts.model_digest, facts_->model_digest));
    }
    if (facts.kv_layout != facts_->kv_layout) {
      return absl::FailedPreconditionError(Different("kv_layout", facts.kv_layout, facts_->kv_layout));
    }
    if (facts.max_model_len != facts_->max_model_len) {
      return absl::FailedPreconditionError(
          Different("max_model_len", StrCat(facts.max_model_len), StrCat(facts_->max_model_len)));
    }
  }
  facts_ = std::make_shared<const WorkerFacts>(facts);
  return absl::OkStatus();
}

std::shared_ptr<const WorkerFacts> Fleet::model_facts() const {
  std::lock_guard lock(mutex_);
  return facts_;
}

std::vector<LinkView> Fleet::Views() const {
  std::vector<LinkView> views;
  views.reserve(links_.size());
  for (const auto& link : links_) views.push_back(link->View());
  return views;
}

std::vector<WorkerStatus> Fleet::Status() const {
  std::vector<WorkerStatus> all;
  for (const LinkView& v : Views()) {
    WorkerStatus s{v.address, LinkStateName(v.state), v.detail};
    if (v.facts) {
      s.incarnation = v.facts->incarnation;
      s.kv_blocks = v.facts->kv_blocks;
      s.max_num_seqs = v.facts->max_num_seqs;
    }
    all.push_back(std::move(s));
  }
  return all;
}

Readiness Fleet::ReadinessNow() const {
  Readiness r;
  r.status = "no_worker";
  bool decodes = false, missing = false;  // a prefill worker that was never there is waited for
  for (const LinkView& v : Views()) {
    const bool ready = v.state == LinkState::kReady;
    if (ready && v.facts->role == "both") return Readiness{true, "ready", "", 1, ""};
    decodes |= ready && v.facts->role == "decode";
    missing |= v.facts == nullptr;
    if (v.state == LinkState::kLoading && (r.status != "loading" || v.progress > r.progress)) {
      r.status = "loading";
      r.phase = v.phase;
      r.progress = v.progress;
    }
    absl::StrAppend(&r.detail, r.detail.empty() ? "" : "; ", "worker ", v.id.slot, " ", LinkStateName(v.state),
                    v.state == LinkState::kMismatch ? ": " + v.detail : "");
  }
  if (decodes && !missing) return Readiness{true, "ready", "", 1, ""};
  if (links_.empty()) r.detail = "no worker is configured (--worker)";
  return r;
}

PrefixIndex::Depths Fleet::Match(const Generation& generation, const std::vector<Candidate>& candidates) {
  if (generation.sampling.prompt_logprobs || index_.size_units() == 0) return {};  // such requests read no cache
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
  const std::vector<PrefixHash> chain = hasher->Chain(hasher->Root(scope), generation.prompt);
  std::vector<uint64_t> keys(chain.size());
  for (size_t i = 0; i < chain.size(); ++i) keys[i] = chain[i].lo;
  uint64_t eligible = 0;
  for (const Candidate& c : candidates) eligible |= uint64_t{1} << c.id.slot;
  return index_.Match(keys, eligible);
}

absl::StatusOr<Fleet::Candidates> Fleet::CandidatesFor(const Generation& generation,
                                                       const std::vector<WorkerId>& excluded) {
  Candidates out;
  for (const auto& link : links_) {
    const LinkView view = link->View();
    if (view.state != LinkState::kReady || Excluded(excluded, view.id)) continue;
    out.all.push_back(CandidateOf(view));
    out.loads.push_back(view.outstanding);
    out.roles.push_back(view.facts->role);
    out.incarnations.push_back(view.facts->incarnation);
    out.peers.push_back(view.load.handoff.peers);
  }
  if (out.all.empty()) {
    const Readiness why = ReadinessNow();
    if (why.ready) return absl::UnavailableError("no other worker can take the request");
    return absl::UnavailableError(
        StrCat("no worker is ready: ", why.detail,
               why.phase.empty() ? "" : StrCat(" (", why.phase, " ", static_cast<int>(100 * why.progress), " %)")));
  }
  const PrefixIndex::Depths depths = Match(generation, out.all);
  for (Candidate& c : out.all) {
    c.cached_tokens =
        std::min<uint32_t>(depths[c.id.slot] * kUnitTokens, static_cast<uint32_t>(generation.prompt.size()) - 1);
  }
  return out;
}

Fleet::Candidates Fleet::Candidates::Only(const std::function<bool(size_t)>& keep) const {
  Candidates out;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!keep(i)) continue;
    out.all.push_back(all[i]);
    out.loads.push_back(loads[i]);
    out.roles.push_back(roles[i]);
    out.incarnations.push_back(incarnations[i]);
    out.peers.push_back(peers[i]);
  }
  return out;
}

std::pair<size_t, double> Fleet::BestOf(const Candidates& candidates, uint32_t tokens) {
  const size_t chosen = scorer_->Choose(candidates.all, tokens);
  size_t ignored = 0;
  return {chosen, scorer_->Table(candidates.all, tokens, &ignored)[chosen].total_ms};
}

Placement Fleet::Place(const Candidates& candidates, size_t chosen, uint32_t tokens) {
  const Candidate& c = candidates.all[chosen];
  return Placement{c.id, LoadTicket(candidates.loads[chosen], int64_t{tokens} - c.cached_tokens), c.cached_tokens};
}

void Fleet::NoteHandoff(double ms) {
  constexpr double kShare = 0.1, kLeast = 0.5, kMost = 50;
  const double mean = handoff_ms_.load(std::memory_order_relaxed);  // a lost update is one sample
  handoff_ms_.store(mean + kShare * (std::clamp(ms, kLeast, kMost) - mean), std::memory_order_relaxed);
}

double Fleet::TransferRate(const Candidates& prefills, size_t p, const Candidates& decodes, size_t d,
                           int64_t bytes_per_token) const {
  double gigabytes_per_s = 1;  // until they have met
  for (const PeerPath& peer : prefills.peers[p]) {
    if (peer.incarnation == decodes.incarnations[d] && peer.gigabytes_per_second > 0)
      gigabytes_per_s = peer.gigabytes_per_second;
  }
  return gigabytes_per_s * 1e9 / static_cast<double>(std::max<int64_t>(1, bytes_per_token));
}

uint32_t Fleet::LocalPrefillTokens(const Candidate& decode, double transfer_tokens_per_s) const {
  if (config_.local_prefill_max_tokens >= 0) return static_cast<uint32_t>(config_.local_prefill_max_tokens);
  return BreakEvenTokens(decode.prefill_tokens_per_s, transfer_tokens_per_s, handoff_ms_.load(std::memory_order_relaxed));
}

// One rule: a worker alone costs its queue, the prefill, and what its decodes lose; a pair costs the prefill worker's
// queue and prefill, the handoff, and on the decode worker the transfer of what it lacks. A decode worker alone is a
// candidate for prompts below break-even, or when there is no prefill worker.
absl::StatusOr<Placement> Fleet::Choose(const Generation& generation, uint32_t tokens,
                                        const std::vector<WorkerId>& excluded, bool with_prefill) {
  BATON_ASSIGN_OR_RETURN(const Candidates candidates, CandidatesFor(generation, excluded));
  const auto is = [&](size_t i, const char* role) { return candidates.roles[i] == role; };
  const Candidates prefills = candidates.Only([&](size_t i) { return with_prefill && is(i, "prefill"); });
  Candidates decodes = candidates.Only([&](size_t i) { return is(i, "decode"); });
  const bool pairs = !prefills.all.empty() && !decodes.all.empty();
  const std::shared_ptr<const WorkerFacts> facts = model_facts();
  const int64_t bytes_per_token = facts ? facts->kv_bytes_per_token : 0;
  const auto [p, prefill_ms] = pairs ? BestOf(prefills, tokens) : std::pair<size_t, double>{};
  const auto rate_to = [&, p = p](const Candidates& to, size_t i) {
    return TransferRate(prefills, p, to, i, bytes_per_token);
  };
  const Candidates alone = candidates.Only([&](size_t i) {
    if (is(i, "both") || !is(i, "decode")) return is(i, "both");
    const Candidate& c = candidates.all[i];
    return !pairs || int64_t{tokens} - c.cached_tokens <= LocalPrefillTokens(c, rate_to(candidates, i));
  });
  std::vector<uint32_t> local(decodes.all.size());
  for (size_t d = 0; pairs && d < decodes.all.size(); ++d) {
    Candidate& c = decodes.all[d];
    const double rate = rate_to(decodes, d);
    local[d] = LocalPrefillTokens(c, rate);
    c.queued_tokens = 0;
    c.prefill_tokens_per_s = rate * (1 + config_.route_lambda);  // nobody else waits for a transfer
  }
  if (alone.all.empty() && !pairs) return absl::UnavailableError("no worker that decodes is ready");
  std::optional<std::pair<size_t, double>> single;
  if (!alone.all.empty()) single = BestOf(alone, tokens);
  if (!pairs) return Place(alone, single->first, tokens);
  const auto [d, decode_ms] = BestOf(decodes, tokens);
  const double pair_ms = prefill_ms + decode_ms + handoff_ms_.load(std::memory_order_relaxed);
  if (single && single->second < pair_ms) return Place(alone, single->first, tokens);
  Placement pair{decodes.all[d].id, LoadTicket(decodes.loads[d], 0), decodes.all[d].cached_tokens};
  pair.prefill = std::make_unique<Placement>(Place(prefills, p, tokens));
  pair.predicted_cached_tokens = pair.prefill->predicted_cached_tokens;
  pair.local_prefill_tokens = local[d];
  return pair;
}

absl::StatusOr<Placement> Fleet::ChoosePrefill(const Generation& generation, const std::vector<WorkerId>& excluded) {
  BATON_ASSIGN_OR_RETURN(const Candidates candidates, CandidatesFor(generation, excluded));
  const Candidates prefills = candidates.Only([&](size_t i) { return candidates.roles[i] == "prefill"; });
  if (prefills.all.empty()) return absl::UnavailableError("no other prefill worker is ready");
  const auto tokens = static_cast<uint32_t>(generation.prompt.size());
  return Place(prefills, scorer_->Choose(prefills.all, tokens), tokens);
}

absl::StatusOr<ExplainedRoute> Fleet::Explain(const Generation& generation) {
  if (generation.prompt.empty()) return absl::InvalidArgumentError("the prompt is empty: it has 0 tokens");
  BATON_ASSIGN_OR_RETURN(const Candidates candidates, CandidatesFor(generation, {}));
  ExplainedRoute route{generation.prompt.size(), config_.route_policy, {}};
  size_t chosen = 0;
  const std::vector<Cost> table =
      scorer_->Table(candidates.all, static_cast<uint32_t>(generation.prompt.size()), &chosen);
  for (size_t i = 0; i < table.size(); ++i) {
    route.costs.push_back(ExplainedCost{table[i], candidates.all[i].cached_tokens, i == chosen});
  }
  return route;
}

std::string Fleet::NumericsOf(WorkerId id) const {
  if (id.slot < 0 || static_cast<size_t>(id.slot) >= links_.size()) return "";
  const std::shared_ptr<const WorkerFacts> facts = links_[static_cast<size_t>(id.slot)]->View().facts;
  return facts == nullptr ? "" : facts->numerics_id;
}

WorkerLink* Fleet::LinkOf(WorkerId id) {
  return id.slot >= 0 && static_cast<size_t>(id.slot) < links_.size() ? links_[id.slot].get() : nullptr;
}

absl::Status Fleet::Attach(WorkerId id, const Generation& generation, const AttachOrder& order,
                           std::shared_ptr<RelaySink> sink) {
  WorkerLink* link = LinkOf(id);
  if (!link) return absl::UnavailableError("no such worker");
  return link->Attach(id, generation, order, std::move(sink));
}

void Fleet::Reserve(WorkerId id, const Generation& generation, const LegKey& key, uint32_t expiry_ms,
                    std::shared_ptr<RelaySink> sink) {
  if (WorkerLink* link = LinkOf(id)) link->Reserve(id, generation, key, expiry_ms, std::move(sink));
}

void Fleet::Prefill(WorkerId id, const Generation& generation, const LegKey& key, const TicketGrant& grant,
                    uint32_t deadline_ms, std::shared_ptr<RelaySink> sink) {
  if (WorkerLink* link = LinkOf(id)) link->Prefill(id, generation, key, grant, deadline_ms, std::move(sink));
}

void Fleet::CancelLeg(WorkerId id, const LegKey& key) {
  if (WorkerLink* link = LinkOf(id)) link->CancelLeg(id, key);
}

void Fleet::Cancel(WorkerId id, const std::string& leg_id, uint64_t attach_gen, std::optional<uint32_t> index) {
  if (WorkerLink* link = LinkOf(id)) link->Cancel(id, leg_id, attach_gen, index);
}

void Fleet::Credit(WorkerId id, const std::string& leg_id, uint64_t attach_gen, uint32_t index, uint32_t tokens) {
  if (WorkerLink* link = LinkOf(id)) link->Credit(id, leg_id, attach_gen, index, tokens);
}

void Fleet::Forget(WorkerId id, const std::string& leg_id) {
  if (WorkerLink* link = LinkOf(id)) link->Forget(id, leg_id);
}

}  // namespace baton::router
