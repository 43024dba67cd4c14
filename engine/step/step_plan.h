// The one message between the scheduler and its ranks: what a step computes. Enough for every rank: ranks keep the
// tokens and sampling state of the sequences they were told of, the scheduler keeps everything else.
//
// A plan is made on the scheduler thread (PlanStep), run on the executor thread (Execute), and its result becomes
// visible on the scheduler thread (Commit). Blocks of a running plan stay pinned until its Commit. Two plans may run at
// once, one behind the other (PlanAhead).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/cache/block_copy.h"
#include "engine/sampling/answer_grammar.h"
#include "engine/sampling/sampling_params.h"
#include "kernels/ops.h"

namespace baton::engine {

/// A sequence on this worker: one choice of one request. Never reused within a worker's incarnation.
using SequenceId = uint64_t;

/// A sequence the executor has not seen, or has forgotten after a preemption.
struct NewSequence {
  SequenceId id = 0;
  uint32_t sequence_index = 0;  ///< of the n choices; keys the RNG
  std::vector<int32_t> tokens;  ///< prompt, and tokens generated so far (recovery, recompute, migration)
  int32_t prompt_len = 0;       ///< of `tokens`; the rest counts as output for penalties, min_tokens and RNG position
  SamplingParams sampling;
  std::shared_ptr<AnswerGrammar> grammar{};  ///< null: none
};

/// One sequence's share of a step: rows [row, row + num_tokens) hold positions [context, context + num_tokens).
struct SequenceStep {
  SequenceId id = 0;
  uint64_t request_key = 0;  ///< of its request, for LayerObserver
  int32_t num_tokens = 0;
  int32_t context = 0;                             ///< tokens whose KV was there before this step
  std::vector<std::vector<int32_t>> block_tables;  ///< per KV group: every block of the sequence, by position
  bool sample = false;                             ///< the last row's logits give the next token
  /// ≠ 0: has no rows of its own (num_tokens = 0) and samples from the last row of that sequence of this step: the
  /// choices of n > 1 draw their first tokens from one prefill.
  SequenceId logits_from = 0;
  bool prompt_logprobs = false;  ///< score the rows' next prompt tokens
};

struct StepPlan {
  uint64_t step = 0;               ///< consecutive from 1
  std::vector<SequenceId> forget;  ///< sequences that ended or were preempted: drop their state
  std::vector<NewSequence> add;
  std::vector<BlockCopy> copies;        ///< before anything else
  std::vector<SequenceStep> sequences;  ///< decodes first, then prefill chunks
  int32_t total_tokens = 0;
  /// Made while the step before it ran: every row is the position behind one of that step's, and takes the token drawn
  /// there. Nothing of it counts when nothing of that step did.
  bool ahead = false;
  bool empty() const { return sequences.empty() && forget.empty() && copies.empty(); }
};

/// The reason for which a sequence that was to draw a token has none.
enum class NoToken : uint8_t {
  kNone,
  kMaskIsLate,      ///< its rows are computed again when the mask is there
  kGrammarEnded,    ///< its text may end here, and the rest is not allowed: the answer ends, before min_tokens too
  kNothingAllowed,  ///< by grammar, allowed_token_ids, bad_words and min_tokens together: the answer ends
  kGrammarFailed,   ///< `error` says why
};

/// The results of Execute, in the order of StepPlan::sequences.
struct SequenceResult {
  SequenceId id = 0;
  bool sampled = false;
  NoToken no_token = NoToken::kNone;                   ///< when not sampled, though it was to be
  absl::Status error;                                  ///< of kGrammarFailed
  kernels::SampleResult token;                         ///< when sampled
  std::vector<kernels::SampleResult> prompt_logprobs;  ///< one per scored row
};

struct StepResult {
  uint64_t step = 0;
  bool cancelled = false;  ///< stopped between layers; nothing of the step counts
  std::vector<SequenceResult> sequences;
};

}  // namespace baton::engine
