// Fleet: every worker of the static list, and the choice of one for a request. Owns the links, the prefix index, the
// scorer and the hash key. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/prefix_hash.h"
#include "router/fleet/worker_link.h"
#include "router/policy/scorer.h"
#include "router/server.h"

namespace baton::router {

/// A worker for a request, and its place in that worker's load.
struct Placement {
  WorkerId worker;
  LoadTicket ticket;
  uint32_t predicted_cached_tokens = 0;
  std::unique_ptr<Placement> prefill{};  ///< who computes the prompt; null: `worker` does
  uint32_t local_prefill_tokens = 0;  ///< with `prefill`: so many uncached ones `worker` computes itself all the same
};

/// What a decision would be: /debug/route.
struct ExplainedCost {
  WorkerId worker;
  std::optional<WorkerId> prefill;  ///< null: `worker` computes the prompt
  Cost cost;
  uint32_t cached_tokens = 0;  ///< where the prompt is computed, as the index predicts
  bool chosen = false;
};
struct ExplainedRoute {
  size_t prompt_tokens = 0;
  std::string policy;
  std::vector<ExplainedCost> costs;  ///< of every option that the ready workers give
};

/// Retries and migrations may not exceed a share of live requests. Thread-safe.
class RetryBudget {
 public:
  RetryBudget(double share, int32_t at_least) : share_(share), at_least_(at_least) {}
  /// False: the budget is spent; fail instead. A retry that was taken is given back with Done().
  bool Take(int64_t live_requests);
  void Done() { running_.fetch_sub(1, std::memory_order_relaxed); }

 private:
  const double share_;
  const int32_t at_least_;
  std::atomic<int64_t> running_{0};
};

class Fleet final : public LinkHost {
 public:
  /// `home`: where the links' state machines run.
  static absl::StatusOr<std::unique_ptr<Fleet>> Create(const RouterConfig& config, const std::string& version,
                                                       Executor& home, const Clock& clock);
  ~Fleet() override;

  void Start();
  /// Every request on a worker is told that it is lost. Idempotent; not on the home executor.
  void Stop();

  /// What the workers serve; null until one has been admitted. Stays when all are lost.
  std::shared_ptr<const WorkerFacts> model_facts() const;
  /// What decides the bits of a worker's answers; empty: not known.
  std::string NumericsOf(WorkerId id) const;
  /// What `decode` has cached may be the work of a prefill worker with other numerics.
  bool MayHoldOthersKv(WorkerId decode) const;
  std::vector<LinkView> Views() const;
  std::vector<WorkerStatus> Status() const;
  /// Ready when a worker can take requests; otherwise says why not.
  Readiness ReadinessNow() const;

  /// Unavailable: no worker can take it (says why). ResourceExhausted is the workers' own answer to an Attach.
  /// `with_prefill`: a (prefill, decode) pair may be chosen, when it is predicted to be faster than one worker alone.
  /// `numerics_so_far`: of what the client has already; empty: nothing.
  absl::StatusOr<Placement> Choose(const Generation& generation, uint32_t tokens_to_prefill,
                                   const std::vector<WorkerId>& excluded, bool with_prefill,
                                   const std::string& numerics_so_far);
  /// A worker that decodes was there and is not now: its connection broke, or it starts again. `one_leaves`: a worker
  /// has said so that is not yet seen to leave.
  bool MayComeBack(bool one_leaves) const;
  /// Another prefill worker for a ticket that `decode` gave.
  absl::StatusOr<Placement> ChoosePrefill(const Generation& generation, const std::vector<WorkerId>& excluded,
                                          WorkerId decode);
  /// What a handoff took beside the prefill: reserving, and waiting for the last KV. Any thread.
  void NoteHandoff(double ms);
  /// The cost table of that decision, without taking it. InvalidArgument: an empty prompt. Unavailable: no worker.
  absl::StatusOr<ExplainedRoute> Explain(const Generation& generation) const;

  absl::Status Attach(WorkerId id, const Generation& generation, const AttachOrder& order,
                      std::shared_ptr<RelaySink> sink);
  void Reserve(WorkerId id, const Generation& generation, const LegKey& key, uint32_t expiry_ms,
               std::shared_ptr<RelaySink> sink);
  void Prefill(WorkerId id, const Generation& generation, const LegKey& key, const TicketGrant& grant,
               uint32_t deadline_ms, std::shared_ptr<RelaySink> sink);
  void CancelLeg(WorkerId id, const LegKey& key, bool asks_again);
  void Cancel(WorkerId id, const std::string& leg_id, uint64_t attach_gen, std::optional<uint32_t> index);
  void Credit(WorkerId id, const std::string& leg_id, uint64_t attach_gen, uint32_t index, uint32_t tokens);
  void Forget(WorkerId id, const std::string& leg_id);

  const PrefixIndex& index() const { return index_; }

 private:
  Fleet(const RouterConfig& config, std::unique_ptr<Scorer> scorer, HashKey key, bool key_from_file);
  bool OthersReady(int32_t slot) const;

  std::string GreetingKey(bool refused_before) override;
  absl::Status Admit(int32_t slot, const WorkerFacts& facts) override;
  void OnReady(int32_t slot) override;
  /// The workers that can take a request.
  struct Ready {
    std::vector<Candidate> candidates;
    std::vector<LinkView> views;  // [candidates]
    UnitKeys keys;                // of the prompt
    int64_t prompt_tokens = 0;
    /// On candidate `i`, which computes what it lacks of so many tokens.
    Placement Place(size_t i, uint32_t tokens_to_prefill) const;
  };
  absl::StatusOr<Ready> ReadyFor(const Generation& generation, const std::vector<WorkerId>& excluded) const;
  /// Of what it refers to, `ready` must outlive it.
  HandoffTerms HandoffTermsOf(const Ready& ready) const;
  WorkerLink* LinkOf(WorkerId id);
  UnitKeys KeysOf(const Generation& generation) const;
  void Match(const Generation& generation, Ready& ready) const;

  const RouterConfig config_;
  const std::unique_ptr<Scorer> scorer_;
  PrefixIndex index_;
  std::vector<std::shared_ptr<WorkerLink>> links_;
  std::atomic<bool> stopped_{false};
  const bool key_from_file_;
  std::atomic<double> handoff_ms_{4};  ///< moving mean of NoteHandoff

  mutable std::mutex mutex_;  // guards what follows
  HashKey key_;
  std::shared_ptr<const PrefixHasher> hasher_;
  std::shared_ptr<const WorkerFacts> facts_;
};

}  // namespace baton::router
