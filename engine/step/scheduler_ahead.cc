// PlanAhead: the step behind the one that runs, before the tokens of that one are known.
//
// It has decodes only, each of which continues a row of the running step. It is made only when PlanStep, asked after
// the running step, would plan those same rows: else it is left to PlanStep, so that nobody's turn is put off for more
// than one step. A sequence that the running step turns out to end leaves both plans at its Commit: the row that was
// planned ahead counts for nothing, its token is dropped, its position is published nowhere, and the blocks go back
// when the device is done with it.
#include <algorithm>
#include <utility>

#include "common/check.h"
#include "engine/sampling/stop_rule.h"
#include "engine/step/scheduler_state.h"

namespace baton::engine {

/// The token that the running step draws is its last, whichever it is.
bool Scheduler::State::EndsByLength(const Sequence& s) const {
  const RequestState& r = *s.request;
  return s.length() + 1 - r.request.prompt_len >= r.request.sampling.max_tokens ||
         s.length() + 1 >= options.max_model_len;
}

/// A decode of the running step, whose next row needs nothing but the token that the step draws. Banned words and
/// grammars read the tokens themselves, on the host.
bool Scheduler::State::MayContinue(const Sequence& s) const {
  const Request& r = s.request->request;
  const SamplingParams& p = r.sampling;
  if (s.in_plans != 1 || s.last_planned != plans.back().step) return false;
  if (s.remaining() != 1 || s.length() <= r.prompt_len || !s.request->forked || s.request->beams) return false;
  if (s.grammar || p.grammar || !p.bad_words.empty() || ScoresPrompt(s)) return false;
  if (static_cast<int32_t>(s.undelivered.size()) + 1 >= options.max_undelivered_tokens) return false;
  const std::vector<int32_t> banned = BannedBeforeMinTokens(p, s.length() - r.prompt_len);
  if (!banned.empty() && !AnyTokenLeft(p.allowed_token_ids, banned, options.vocab_size)) return false;
  return !policy->HoldAfterFirstToken(r.key);
}

bool Scheduler::State::MayPlanAhead() const {
  if (plans.back().lost) return false;
  int32_t going_on = 0;
  for (const Sequence* s : running) {
    if (s->in_plans == 0 && (!HasCredit(*s) || s->sits_out())) continue;
    const bool decodes = s->in_plans > 0 && s->remaining() == 1 && s->request->forked && !s->request->beams;
    if (decodes && EndsByLength(*s)) continue;
    if (!MayContinue(*s)) return false;
    ++going_on;
  }
  return going_on > 0 && (waiting.empty() || going_on >= options.max_num_seqs);
}

StepPlan Scheduler::PlanAhead(TimePoint now) {
  State& st = *state_;
  BATON_CHECK(st.plans.size() == 1, st.plans.size(), " plans run, the last is step ", st.step);
  st.ExpireDeadlines(now);
  StepPlan plan;
  if (!st.MayPlanAhead()) return plan;
  std::vector<Sequence*> rows;
  for (Sequence* s : st.running) {
    if (s->in_plans > 0 && !st.EndsByLength(*s)) rows.push_back(s);
  }
  st.plans.push_back({.step = st.step + 1, .planned_at = now, .work = {}, .copy_sources = {}, .kept = {}});
  for (Sequence* s : rows) {
    const int32_t context = s->length();  // the position of the token to come
    // Who gets no block, and all juniors, wait for PlanStep, which can make room.
    if (!st.cache.Grow(s->kv, context + 1) ||
        !st.cache.MakeWritable(s->kv, context, context + 1, plan.copies, st.plans.back().copy_sources))
      break;
    st.AddRows(*s, context, 1, plan);
    plan.sequences.back().sample = true;
  }
  if (plan.sequences.empty()) {
    st.plans.pop_back();
    return plan;
  }
  plan.forget = std::exchange(st.forget, {});
  plan.ahead = true;
  plan.step = ++st.step;
  return plan;
}

}  // namespace baton::engine
