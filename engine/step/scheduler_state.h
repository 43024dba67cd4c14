// The scheduler's insides, split over scheduler.cc (messages), scheduler_plan.cc, scheduler_credit.cc,
// scheduler_ahead.cc, scheduler_commit.cc and scheduler_beams.cc.
// Not for other folders.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/sampling/beam_search.h"
#include "engine/step/scheduler.h"

namespace baton::engine {

struct RequestState;

/// One choice of a request, or one beam of its beam search. Before the first token of an n > 1 request, or of a beam
/// search, its only sequence carries the prefill for all.
struct Sequence {
  /// kParked: without credit it has given up its blocks; it waits for its reader, and holds up nobody who waits.
  enum class Phase : uint8_t { kWaiting, kRunning, kParked, kHeld, kFinished };

  SequenceId id = 0;
  RequestState* request = nullptr;
  int32_t choice = 0;  ///< index into RequestState::choices; 0 for beams
  int32_t beam = 0;    ///< among the beams of a search: 0 is the best
  Phase phase = Phase::kWaiting;
  std::vector<int32_t> tokens;  ///< prompt and output
  int32_t computed = 0;         ///< positions whose KV is committed
  SequenceKv kv;
  int32_t in_plans = 0;                             ///< of the running plans, the last of them …
  uint64_t last_planned = 0;                        ///< … being this step: blocks must stay
  bool on_executor = false;                         ///< the executor has its tokens
  uint64_t turn = 0;                                ///< place in the rotation when not all decodes fit
  int32_t prompt_scored = 1;                        ///< prompt tokens before this have their logprobs
  std::vector<kernels::SampleResult> undelivered;   ///< the last tokens of `tokens`, not output yet
  std::shared_ptr<AnswerGrammar> grammar;           ///< null: none
  StopDecision end;                                 ///< what is output after the last token
  bool ends_behind_tokens = false;                  ///< no token is the reason: it is output by itself
  std::optional<kernels::SampleResult> candidates;  ///< of a beam whose next tokens are known: it waits for the others

  int32_t length() const { return static_cast<int32_t>(tokens.size()); }
  int32_t remaining() const { return length() - computed; }
  /// The mask of its next token is not there, and takes long: nothing is drawn until it is.
  bool sits_out() const { return grammar != nullptr && !grammar->MayBePlanned(); }
  /// Tokens that a step may compute.
  int32_t computable() const { return remaining() - (sits_out() ? 1 : 0); }
};

struct RequestState {
  /// The facts about choice i that hold before and after it has a sequence.
  struct Choice {
    int32_t credit = 0;
    bool ended = false;
  };
  Request request;  ///< tokens moved out
  uint64_t arrival = 0;
  TimePoint arrived;
  TimePoint started = TimePoint::max();  ///< first scheduled
  TimePoint first_token = TimePoint::max();
  int32_t cached_tokens = 0;
  bool forked = false;                ///< each living choice, or beam, has its own sequence
  std::unique_ptr<BeamSearch> beams;  ///< null: none, or it is over and its answers are the choices
  std::vector<Choice> choices;
  std::vector<std::unique_ptr<Sequence>> sequences;
};

/// A plan that was given and is not committed yet.
struct RunningPlan {
  uint64_t step = 0;
  TimePoint planned_at;
  StepWork work;
  int32_t living = 0;                    ///< of its sequences
  bool lost = false;                     ///< planned ahead of a step that did not count
  std::vector<BlockTable> copy_sources;  ///< of its copies
  std::vector<SequenceKv> kept;          ///< of sequences that ended while they were in it
  bool Holds(const Sequence& s) const {
    return step <= s.last_planned && step + static_cast<uint64_t>(s.in_plans) > s.last_planned;
  }
};

/// Seniority: priority, then arrival, then choice or beam.
struct Senior {
  bool operator()(const Sequence* a, const Sequence* b) const {
    return std::tuple(a->request->request.priority, a->request->arrival, a->choice, a->beam) <
           std::tuple(b->request->request.priority, b->request->arrival, b->choice, b->beam);
  }
};

class Scheduler::State {
 public:
  State(const SchedulerOptions& o, KvCache& c, RolePolicy& p, GrammarPool* g)
      : options(o), cache(c), policy(&p), grammars(g), predictor(o.prior_ms_per_token) {}

  // scheduler.cc
  absl::Status Validate(const Request& request) const;
  absl::Status CheckQueueRoom(int32_t tokens) const;
  RequestState& Register(Request request, TimePoint now);
  /// `like`: one that stands at the same token, if there is any.
  Sequence& MakeSequence(RequestState& request, int32_t choice, std::vector<int32_t> tokens,
                         const Sequence* like = nullptr);
  RequestState* Find(RequestKey key) const;
  void Enqueue(Sequence& sequence);
  void StartRunning(Sequence& sequence);
  void LeaveQueues(Sequence& sequence);
  /// Ends one choice now: output, blocks back (or at Commit when it is in the running plan).
  void EndChoice(RequestState& request, int32_t choice, FinishReason reason, const absl::Status& error, TimePoint now);
  void EndRequest(RequestKey key, FinishReason reason, const absl::Status& error, TimePoint now);
  void Remove(Sequence& sequence);
  /// What its rows in running plans give does not count. Its blocks are given back when the last of them is committed.
  void LeavePlans(Sequence& sequence);
  void EraseIfEnded(RequestState& request);
  double PredictedMsPerToken() const;

  // scheduler_plan.cc
  void ExpireDeadlines(TimePoint now);
  void PlanDecodes(StepPlan& plan, TimePoint now);
  int32_t PlacesForDecodes(int32_t ready) const;
  void PlanPrefills(StepPlan& plan, TimePoint now);
  void Admit(StepPlan& plan, TimePoint now);
  bool TryAdmit(Sequence& sequence, StepPlan& plan);
  int64_t MissingBesidesRunning(const Sequence& sequence, int32_t group) const;
  bool FitsBesidesRunning(const Sequence& sequence);
  bool MakeRoom(Sequence& sequence, int32_t tokens, StepPlan& plan, TimePoint now);
  bool PreemptJuniorOf(const Sequence& sequence, TimePoint now);
  void Preempt(Sequence& victim, TimePoint now);
  /// It runs no more, and is computed again should it go on.
  void GiveUpBlocks(Sequence& sequence);
  double StepLimitMs() const;
  int32_t ChunkFor(const Sequence& sequence) const;
  bool IsPartial(const Sequence& sequence) const;
  bool IsLong(const Sequence& sequence) const;
  void CountPartial(const Sequence& sequence, int32_t more);
  bool MayBegin(const Sequence& sequence, int32_t chunk) const;
  Sequence* FirstThatMayBegin() const;
  void Schedule(Sequence& sequence, int32_t tokens, StepPlan& plan, TimePoint now);
  void AddToExecutor(Sequence& sequence, StepPlan& plan);
  void ForkAtFirstToken(Sequence& carrier, StepPlan& plan);
  int32_t SequencesOf(const Sequence& sequence) const;
  bool ScoresPrompt(const Sequence& sequence) const;
  void EnterPlan(Sequence& sequence);
  SequenceStep& AddRows(Sequence& sequence, int32_t context, int32_t tokens, StepPlan& plan);

  // scheduler_credit.cc
  /// What of its output has not been taken leaves room for another token.
  bool HasCredit(const Sequence& sequence) const;
  int32_t RunningWithCredit() const;
  bool MayBeParked(const Sequence& sequence) const;
  /// That parking may free, at most.
  int64_t BlocksWithoutCredit(int32_t group) const;
  /// Parks until no group misses a block, and nobody where that would not be enough. False: some are still missing.
  bool ParkFor(const std::function<int64_t(int32_t group)>& missing);
  /// Some sequence without credit gives up its blocks. False: none has any.
  bool ParkOne();
  /// Deliver, when its credit grew.
  void DeliverAndUnpark(Sequence& sequence, TimePoint now);

  // scheduler_ahead.cc
  bool EndsByLength(const Sequence& sequence) const;
  bool MayContinue(const Sequence& sequence) const;
  bool MayPlanAhead() const;

  // scheduler_commit.cc
  void CommitSequence(const SequenceStep& step, const SequenceResult& result, TimePoint now);
  void EndWithoutToken(Sequence& sequence, const SequenceResult& result, TimePoint now);
  void AcceptToken(Sequence& sequence, const kernels::SampleResult& token, TimePoint now);
  void CountStep(const StepPlan& plan, Duration took);
  int64_t EmptyTokens() const;
  void OutputPromptLogprobs(Sequence& sequence, const SequenceStep& step,
                            const std::vector<kernels::SampleResult>& scores, TimePoint now);
  void FinishGenerating(Sequence& sequence);
  /// Outputs what credit allows. May remove the sequence.
  void Deliver(Sequence& sequence, TimePoint now);
  SequenceOutput MakeOutput(const RequestState& request, int32_t choice, TimePoint now) const;
  void EndPlan(TimePoint now);

  // scheduler_beams.cc
  absl::Status ValidateBeams(const Request& request) const;
  std::unique_ptr<BeamSearch> MakeSearch(const Request& request) const;
  absl::Status AttachSearch(AttachedRequest attached, TimePoint now);
  void TakeCandidates(Sequence& beam, const kernels::SampleResult& drawn, TimePoint now);
  void OutputStart(const RequestState& request, TimePoint now);
  void HoldCandidates(Sequence& carrier, const kernels::SampleResult& drawn, TimePoint now);
  void AdvanceBeams(RequestState& request, TimePoint now);
  void EndSearch(RequestState& request, TimePoint now);
  void RestartSearch(RequestState& request);

  SchedulerOptions options;
  KvCache& cache;
  RolePolicy* policy;
  GrammarPool* const grammars;  ///< null: no request may have a grammar
  StepPredictor predictor;

  absl::flat_hash_map<RequestKey, std::unique_ptr<RequestState>> requests;
  absl::flat_hash_map<SequenceId, Sequence*> by_id;
  std::vector<Sequence*> running;  ///< sorted by Senior; more than max_num_seqs where some have no credit
  std::set<Sequence*, Senior> waiting;
  int64_t waiting_tokens = 0;
  std::vector<SequenceOutput> outputs;
  std::vector<SequenceId> forget;  ///< for the next plan

  std::deque<RunningPlan> plans;  ///< two at most; the last may be the one that is being made
  uint64_t step = 0;              ///< of the last plan that was given
  TimePoint committed_at{};       ///< the last plan
  // Of the plan being made.
  int32_t rows_left = 0;
  int32_t sequences_left = 0;
  int32_t prefill_left = 0;
  int32_t logit_rows_left = 0;
  double plan_ms = 0;                                       ///< it may take; 0: as long as it takes
  int32_t partial_prefills = 0, long_partial_prefills = 0;  ///< after it
  bool prefill_planned = false;
  bool preempted = false;

  uint64_t next_arrival = 1;
  uint64_t next_turn = 1;
  SequenceId next_id = 1;
  int32_t held = 0, parked = 0;
  int64_t steps_ended = 0, computed_tokens = 0;
  Duration step_time{}, prefill_time{};
  StepSizes step_sizes;
  int64_t preemptions = 0, cancelled_steps = 0, prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
};

}  // namespace baton::engine
