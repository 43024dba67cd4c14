// The one continuous-batching scheduler: admission, chunked prefill, decode, preemption, fairness, stops, credits.
//
// Pure core: no clock, thread or socket; time is an argument. One thread (the scheduler thread) owns it.
//   PlanStep(now)              decides and allocates            → StepPlan, run elsewhere
//   PlanAhead(now)             the same, for the step behind    → StepPlan, or an empty one
//   Commit(plan, result, now)  makes the step visible           → outputs
// Between the two, requests may come, be cancelled or get credit; blocks of the running plan stay owned until Commit.
//
// The order of requests: (priority, arrival). Decodes first, then prefill chunks. When blocks run out the last in that
// order loses its blocks and is recomputed; it keeps its place. The first in order can take all others' blocks, and the
// pool holds one sequence of max_model_len, so it always gets on: no livelock. Who has no credit takes no place from
// others, and loses its blocks before anybody else does, until its credit is back.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "common/step_sizes.h"
#include "engine/cache/kv_cache.h"
#include "engine/step/request.h"
#include "engine/step/role_policy.h"
#include "engine/step/step_plan.h"
#include "engine/step/step_predictor.h"

namespace baton::engine {

struct SchedulerOptions {
  int32_t max_model_len = 2048;
  int32_t vocab_size = 0;
  int32_t max_logprobs = std::numeric_limits<int32_t>::max();  ///< beside one token, that the device can give
  int32_t max_num_seqs = 128;                                  ///< sequences in one step
  int32_t max_num_batched_tokens = 2048;                       ///< rows in one step
  double max_step_ms = 200;                                    ///< 0: no cap, nor one by max_stall_ms
  double max_stall_ms = 80;          ///< of a step that also decodes, or twice what its decodes take; 0: no cap
  int32_t max_prefill_chunk = 0;     ///< tokens of one sequence in one step; 0: no limit but the above
  int32_t max_partial_prefills = 0;  ///< prompts of which a part is computed, at once; 0: no limit
  /// Of these, those longer than max_prefill_chunk; shorter ones pass the others that wait. 0: no limit.
  int32_t max_long_partial_prefills = 0;
  int32_t max_logit_rows = 128;  ///< prompt tokens scored in one step (prompt_logprobs)
  int32_t max_waiting_requests = 1024;
  int64_t max_waiting_tokens = 1 << 20;
  int32_t max_undelivered_tokens = 64;  ///< kept per sequence without credit
  double prior_ms_per_token = 1.0;      ///< believed until steps were seen
};

/// Load, for metrics, the router and refusals.
struct SchedulerLoad {
  int32_t running_sequences = 0;  ///< that have credit
  int32_t unread_sequences = 0;   ///< without credit, with or without KV: in no step until their readers take something
  int32_t waiting_requests = 0;
  int64_t waiting_tokens = 0;                                     ///< of waiting requests, cached or not
  int64_t prefill_tokens_left = 0;                                ///< of running prefills
  Duration predicted_wait{};                                      ///< until a request that comes now starts
  std::vector<int32_t> used_blocks, total_blocks, cached_blocks;  ///< per KV group
  int32_t shared_blocks = 0;                                      ///< of several owners, of all groups
  int64_t empty_tokens = 0;                                       ///< that would find room in used blocks of group 0
  int64_t steps = 0, preemptions = 0, cancelled_steps = 0;
  int64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
  int64_t steps_ended = 0;      ///< that computed something to its end
  int64_t computed_tokens = 0;  ///< of prompts, also computed again
  Duration step_time{},
      prefill_time{};         ///< from plan to commit, of those steps; of those that computed some of a prompt
  Duration predicted_step{};  ///< that the step which runs now takes; 0: none runs
  int32_t held_requests = 0;
  StepSizes step_sizes;
};

class Scheduler {
 public:
  /// All must outlive it; without `grammars` a request that has a grammar is refused. Dies when the cache cannot hold
  /// one sequence of max_model_len.
  Scheduler(const SchedulerOptions& options, KvCache& cache, RolePolicy& policy, GrammarPool* grammars = nullptr);
  ~Scheduler();

  /// Another role's from now on; while no request lives.
  void UsePolicy(RolePolicy& policy);

  // ---- messages
  /// Queues a request. InvalidArgument: too long (with both numbers), or sampling that cannot be done; AlreadyExists:
  /// the key lives; ResourceExhausted: the waiting queue is full (with its length and the predicted wait).
  absl::Status AddRequest(Request request, TimePoint now);
  /// Starts a request whose KV arrived by handoff: it decodes in the next step. Its first tokens are not output again
  /// (but may end it). InvalidArgument as AddRequest, and when `kv` does not cover the tokens.
  absl::Status AttachRequest(AttachedRequest attached, TimePoint now);
  /// Ends all choices of a request, or one, with finish kAbort. False: no such key, or ended already.
  bool Cancel(RequestKey key, TimePoint now);
  bool CancelSequence(RequestKey key, uint32_t sequence_index, TimePoint now);
  /// Cancels every request and lets go of what is held (shutdown).
  void CancelAll(TimePoint now);
  /// Raises the position below which tokens may be delivered. Repeats and lower values change nothing.
  void SetCredit(RequestKey key, uint32_t sequence_index, int32_t position, TimePoint now);
  /// The KV of a request's first living choice, running or held; Share() it to pin it beyond a Cancel. Null: it has
  /// none.
  const SequenceKv* Kv(RequestKey key) const;
  /// Lets go of a request held by RolePolicy::HoldAfterFirstToken. False: nothing is held under the key.
  bool ReleaseHeld(RequestKey key);
  /// Blocks for [0, tokens) of an arriving handoff on top of `prefix` (from cache().Match), leaving one block per
  /// running sequence; of window groups only what steps from the last position on can see. ResourceExhausted with both
  /// numbers; then `prefix` is untouched.
  absl::Status BindForHandoff(SequenceKv& prefix, int32_t tokens);
  /// Compiling begins now, for a request that will come; who drops it before has it given up. Null: no tokenizer.
  std::shared_ptr<AnswerGrammar> BeginGrammar(std::shared_ptr<const Grammar> grammar);

  // ---- steps
  /// The next step; empty() when there is nothing to do. While no plan runs.
  StepPlan PlanStep(TimePoint now);
  /// The step behind the one that runs, made of decodes whose tokens that one draws (scheduler_ahead.cc); empty() when
  /// it has to wait for the running one's Commit. While one plan runs.
  StepPlan PlanAhead(TimePoint now);
  /// Makes the oldest running plan's result visible and returns what is new, this step's and what piled up since the
  /// last.
  std::vector<SequenceOutput> Commit(const StepPlan& plan, const StepResult& result, TimePoint now);
  /// As Commit for a plan whose execution failed: its requests end with kError and `error`.
  std::vector<SequenceOutput> CommitFailure(const StepPlan& plan, const absl::Status& error, TimePoint now);
  /// Outputs that messages caused outside of a step (aborts, credit, deadlines).
  std::vector<SequenceOutput> TakeOutputs();
  /// True when every sequence of all running plans was cancelled: the executor may stop between layers.
  bool RunningPlanAbandoned() const;
  /// The next time at which PlanStep may have to end a request, TimePoint::max() when none.
  TimePoint NextDeadline() const;

  // ---- state
  bool Idle() const;  ///< no request lives (held ones do not count)
  SchedulerLoad Load() const;
  KvCache& cache();
  const SchedulerOptions& options() const;
  /// Block owners that the scheduler's sequences are: with the pins held elsewhere they add up to the pool's.
  int64_t OwnedBlocks(int32_t group) const;
  /// Dies when owners, queues or tables disagree. For tests, after every step.
  void CheckInvariants() const;

 private:
  class State;  // scheduler_state.h
  std::unique_ptr<State> state_;
};

}  // namespace baton::engine
