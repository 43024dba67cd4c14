// Commit: KV becomes published, tokens become output, what ended gives its blocks back.
#include <algorithm>
#include <utility>

#include "common/check.h"
#include "engine/step/scheduler_state.h"

namespace baton::engine {

void Scheduler::State::CountStep(const StepPlan& plan, Duration took) {
  predictor.Observe(plans.front().work, Milliseconds(took));
  int64_t of_prompts = 0;
  for (const SequenceStep& step : plan.sequences) {
    const auto it = by_id.find(step.id);
    if (it != by_id.end() && it->second->request->request.canary) return;  // too small to tell a speed
    const bool decodes =
        it != by_id.end() && step.num_tokens == 1 && step.context >= it->second->request->request.prompt_len;
    if (!decodes) of_prompts += step.num_tokens;
  }
  ++steps_ended;
  step_sizes.Count(plan.total_tokens);
  step_time += took;
  computed_tokens += of_prompts;
  if (of_prompts > 0) prefill_time += took;
}

std::vector<SequenceOutput> Scheduler::Commit(const StepPlan& plan, const StepResult& result, TimePoint now) {
  State& st = *state_;
  BATON_CHECK(!st.plans.empty() && plan.step == st.plans.front().step, "step ", plan.step, " is not the oldest of ",
              st.plans.size(), " that run, the last being ", st.step);
  BATON_CHECK(result.step == plan.step, "result of step ", result.step, " for ", plan.step);
  BATON_CHECK(result.cancelled || result.sequences.size() == plan.sequences.size(), result.sequences.size(),
              " results for ", plan.sequences.size(), " sequences");
  if (result.cancelled) ++st.cancelled_steps;
  if (result.cancelled) st.plans.back().lost = true;
  if (!result.cancelled && !plan.sequences.empty())
    st.CountStep(plan, now - std::max(st.plans.front().planned_at, st.committed_at));
  static const SequenceResult kNothing;
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const SequenceStep& step = plan.sequences[i];
    const auto it = st.by_id.find(step.id);
    if (it == st.by_id.end()) continue;  // ended meanwhile
    Sequence& s = *it->second;
    RequestState& request = *s.request;
    if (s.in_plans == 0) continue;  // the token of the step before was its last
    --s.in_plans;
    if (request.choices[static_cast<size_t>(s.choice)].ended && request.forked && !request.beams) {
      // It carried the prefill of a choice that was cancelled before it had a token.
      if (!result.cancelled && step.prompt_logprobs)
        st.OutputPromptLogprobs(s, step, result.sequences[i].prompt_logprobs, now);
      st.Remove(s);
    } else if (result.cancelled || result.sequences[i].no_token == NoToken::kMaskIsLate) {
      // The unit at the border holds rows of a step that does not count; its digest starts over with its first token.
      s.computed = std::min(s.computed, step.context) / kUnitTokens * kUnitTokens;
    } else {
      BATON_CHECK(result.sequences[i].id == step.id);
      st.CommitSequence(step, result.sequences[i], now);
    }
    st.EraseIfEnded(request);
  }
  st.EndPlan(now);
  return TakeOutputs();
}

std::vector<SequenceOutput> Scheduler::CommitFailure(const StepPlan& plan, const absl::Status& error, TimePoint now) {
  State& st = *state_;
  BATON_CHECK(!st.plans.empty() && plan.step == st.plans.front().step, "step ", plan.step, " is not the oldest of ",
              st.plans.size(), " that run, the last being ", st.step);
  for (const SequenceStep& step : plan.sequences) {
    const auto it = st.by_id.find(step.id);
    if (it == st.by_id.end()) continue;
    if (it->second->in_plans == 0) continue;
    RequestState& request = *it->second->request;
    --it->second->in_plans;
    if (!request.forked || request.beams) {
      st.EndRequest(request.request.key, FinishReason::kError, error, now);
      continue;
    }
    if (request.choices[static_cast<size_t>(it->second->choice)].ended) {
      st.Remove(*it->second);
    } else {
      st.EndChoice(request, it->second->choice, FinishReason::kError, error, now);
    }
    st.EraseIfEnded(request);
  }
  st.EndPlan(now);
  return TakeOutputs();
}

void Scheduler::State::EndPlan(TimePoint now) {
  plans.pop_front();
  committed_at = now;
}

void Scheduler::State::CommitSequence(const SequenceStep& step, const SequenceResult& result, TimePoint now) {
  Sequence& s = *by_id[step.id];
  s.computed = step.context + step.num_tokens;
  cache.Publish(s.kv, s.tokens, s.computed);
  if (step.prompt_logprobs) OutputPromptLogprobs(s, step, result.prompt_logprobs, now);
  // Back to a unit's start: that is where a cancelled step starts over.
  cache.ReleaseBehindWindow(s.kv, s.computed / kUnitTokens * kUnitTokens);
  if (result.no_token != NoToken::kNone) return EndWithoutToken(s, result, now);
  BATON_CHECK(result.sampled == step.sample, "sequence ", s.id, " sampled ", result.sampled);
  if (!step.sample) return;
  if (s.request->beams) return TakeCandidates(s, result.token, now);
  AcceptToken(s, result.token, now);
}

// Its grammar has failed, or leaves nothing to draw.
void Scheduler::State::EndWithoutToken(Sequence& s, const SequenceResult& result, TimePoint now) {
  if (result.no_token == NoToken::kGrammarFailed)
    return EndChoice(*s.request, s.choice, FinishReason::kError, result.error, now);
  s.end.reason = FinishReason::kStop;
  s.end.nothing_allowed = result.no_token == NoToken::kNothingAllowed;
  s.ends_behind_tokens = true;
  s.computed = s.length() - 1;  // no token came after what is computed
  FinishGenerating(s);
  Deliver(s, now);
}

void Scheduler::State::OutputPromptLogprobs(Sequence& s, const SequenceStep& step,
                                            const std::vector<kernels::SampleResult>& scores, TimePoint now) {
  // Row i scores the prompt token at context + i + 1. After a preemption rows come again: only new ones go out.
  const int32_t first = step.context + 1;
  const int32_t known = std::max(0, s.prompt_scored - first);
  const auto count = static_cast<int32_t>(scores.size());
  if (known >= count) return;
  // Of the first choice that lives, should the carrier's own have been cancelled.
  const auto& choices = s.request->choices;
  const auto living = std::find_if(choices.begin(), choices.end(), [](const auto& c) { return !c.ended; });
  if (living == choices.end()) return;
  SequenceOutput out = MakeOutput(*s.request, static_cast<int32_t>(living - choices.begin()), now);
  out.prompt_logprobs_position = first + known;
  out.prompt_logprobs.assign(scores.begin() + known, scores.end());
  s.prompt_scored = first + count;
  outputs.push_back(std::move(out));
}

void Scheduler::State::AcceptToken(Sequence& s, const kernels::SampleResult& token, TimePoint now) {
  RequestState& r = *s.request;
  s.tokens.push_back(token.token);
  s.undelivered.push_back(token);
  if (!r.request.canary) ++generated_tokens;
  if (r.first_token == TimePoint::max()) r.first_token = now;
  s.end =
      DecideStop(r.request.sampling, token.token, s.length() - r.request.prompt_len, s.length(), options.max_model_len);
  if (s.end.reason == FinishReason::kNone && policy->HoldAfterFirstToken(r.request.key)) {
    s.end.reason = FinishReason::kHeld;
  }
  if (s.end.reason != FinishReason::kNone) FinishGenerating(s);
  Deliver(s, now);
}

// No more steps. The blocks go back at once (they stay readable in the cache), unless they are held for the handoff.
void Scheduler::State::FinishGenerating(Sequence& s) {
  LeaveQueues(s);
  if (s.end.reason == FinishReason::kHeld) {
    s.phase = Sequence::Phase::kHeld;
    ++held;
  } else {
    LeavePlans(s);
    s.kv.Clear();
  }
  if (std::exchange(s.on_executor, false)) forget.push_back(s.id);
}

void Scheduler::State::Deliver(Sequence& s, TimePoint now) {
  RequestState& r = *s.request;
  auto& choice = r.choices[static_cast<size_t>(s.choice)];
  if (choice.ended) return;
  const int32_t first = s.length() - static_cast<int32_t>(s.undelivered.size());
  const int32_t count = std::clamp(choice.credit - first, 0, s.length() - first);
  const bool ends = s.end.reason != FinishReason::kNone && first + count == s.length();
  if (count == 0 && !ends) return;
  SequenceOutput out = MakeOutput(r, s.choice, now);
  out.position = first;
  if (count == s.length() - first) {
    out.tokens = std::exchange(s.undelivered, {});
  } else {
    out.tokens.assign(s.undelivered.begin(), s.undelivered.begin() + count);
    s.undelivered.erase(s.undelivered.begin(), s.undelivered.begin() + count);
  }
  if (ends && s.ends_behind_tokens &&
      !out.tokens.empty()) {  // the last token would be taken for one that ends the text
    outputs.push_back(std::move(out));
    out = MakeOutput(r, s.choice, now);
    out.position = s.length();
  }
  if (ends) {
    out.finish = s.end.reason;
    out.stop_token = s.end.stop_token;
    out.nothing_allowed = s.end.nothing_allowed;
    choice.ended = true;
  }
  outputs.push_back(std::move(out));
  if (ends && s.phase != Sequence::Phase::kHeld) Remove(s);
}

SequenceOutput Scheduler::State::MakeOutput(const RequestState& r, int32_t choice, TimePoint now) const {
  SequenceOutput out;
  out.key = r.request.key;
  out.sequence_index = r.request.sequence_index + static_cast<uint32_t>(choice);
  out.position = r.request.prompt_len;
  out.cached_tokens = r.cached_tokens;
  out.timings.total = now - r.arrived;
  const bool started = r.started != TimePoint::max();
  out.timings.queued = (started ? r.started : now) - r.arrived;
  if (started) out.timings.prefill = (r.first_token != TimePoint::max() ? r.first_token : now) - r.started;
  return out;
}

// What blocks were taken for and do not hold yet. A block of several owners is full, or its next token gets a copy.
int64_t Scheduler::State::EmptyTokens() const {
  int64_t empty = 0;
  for (const auto& [id, s] : by_id) {
    if (s->kv.tables.empty()) continue;
    const BlockPool& pool = cache.pool(0);
    const BlockTable& table = s->kv.tables[0];
    const int64_t capacity = int64_t{table.size()} * pool.tokens_per_block();
    if (table.owned() > 0 && pool.owners(table.blocks().back()) == 1)
      empty += std::max<int64_t>(0, capacity - s->computed);
  }
  return empty;
}

SchedulerLoad Scheduler::Load() const {
  const State& st = *state_;
  SchedulerLoad load;
  load.running_sequences = st.RunningWithCredit();
  load.unread_sequences = static_cast<int32_t>(st.running.size()) - load.running_sequences + st.parked;
  load.waiting_requests = static_cast<int32_t>(st.waiting.size());
  load.waiting_tokens = st.waiting_tokens;
  for (const Sequence* s : st.running) load.prefill_tokens_left += s->remaining() > 1 ? s->remaining() : 0;
  const double tokens = static_cast<double>(load.waiting_tokens + load.prefill_tokens_left);
  load.predicted_wait = std::chrono::nanoseconds(static_cast<int64_t>(tokens * st.PredictedMsPerToken() * 1e6));
  for (int32_t g = 0; g < st.cache.num_groups(); ++g) {
    const BlockPool& pool = st.cache.pool(g);
    load.used_blocks.push_back(pool.used_blocks());
    load.total_blocks.push_back(pool.num_blocks());
    load.cached_blocks.push_back(pool.cached_free_blocks());
    load.shared_blocks += pool.shared_blocks();
  }
  load.empty_tokens = st.EmptyTokens();
  load.step_sizes = st.step_sizes;
  load.steps = static_cast<int64_t>(st.step);
  load.steps_ended = st.steps_ended;
  load.computed_tokens = st.computed_tokens;
  load.step_time = st.step_time;
  if (!st.plans.empty()) {
    const double ms = st.predictor.Predict(st.plans.front().work);
    load.predicted_step = std::chrono::nanoseconds(static_cast<int64_t>(ms * 1e6));
  }
  load.prefill_time = st.prefill_time;
  load.preemptions = st.preemptions;
  load.cancelled_steps = st.cancelled_steps;
  load.prompt_tokens = st.prompt_tokens;
  load.cached_tokens = st.cached_tokens;
  load.generated_tokens = st.generated_tokens;
  load.held_requests = st.held;
  return load;
}

int64_t Scheduler::OwnedBlocks(int32_t group) const {
  const auto g = static_cast<size_t>(group);
  int64_t owned = 0;
  const auto count = [&](const SequenceKv& kv) { owned += kv.tables.empty() ? 0 : kv.tables[g].owned(); };
  for (const auto& [id, s] : state_->by_id) count(s->kv);
  for (const RunningPlan& plan : state_->plans) {
    for (const SequenceKv& kv : plan.kept) count(kv);
    for (const BlockTable& t : plan.copy_sources) owned += t.group() == group ? t.owned() : 0;
  }
  return owned;
}

void Scheduler::CheckInvariants() const {
  const State& st = *state_;
  st.cache.CheckInvariants();
  for (int32_t g = 0; g < st.cache.num_groups(); ++g) {
    BATON_CHECK(OwnedBlocks(g) <= st.cache.pool(g).total_owners(), OwnedBlocks(g), " owners here, ",
                st.cache.pool(g).total_owners(), " in the pool");
  }
  BATON_CHECK(std::is_sorted(st.running.begin(), st.running.end(), Senior()));
  int64_t waiting_tokens = 0;
  size_t sequences = 0, queued = 0;
  int32_t parked = 0;
  for (const auto& [key, request] : st.requests) {
    BATON_CHECK(!request->sequences.empty(), "request ", key, " has ended");
    for (const auto& s : request->sequences) {
      ++sequences;
      BATON_CHECK(s->computed < s->length() || s->candidates);
      BATON_CHECK(st.by_id.at(s->id) == s.get());
      if (s->phase == Sequence::Phase::kRunning || s->phase == Sequence::Phase::kWaiting) ++queued;
      const bool waits = s->phase == Sequence::Phase::kWaiting, is_parked = s->phase == Sequence::Phase::kParked;
      parked += is_parked;
      if (!waits && !is_parked) continue;
      waiting_tokens += waits ? s->length() : 0;
      BATON_CHECK(s->kv.tables.empty() && s->computed == 0 && !s->on_executor, "sequence ", s->id, " waits with KV");
      BATON_CHECK(waits ? st.HasCredit(*s) : !s->undelivered.empty(), "sequence ", s->id, " has ",
                  s->undelivered.size(), " undelivered tokens and is ", waits ? "queued" : "parked");
    }
  }
  BATON_CHECK(sequences == st.by_id.size() && queued == st.running.size() + st.waiting.size());
  BATON_CHECK(parked == st.parked, parked, " are parked, ", st.parked, " kept");
  BATON_CHECK(waiting_tokens == st.waiting_tokens, waiting_tokens, " tokens wait, ", st.waiting_tokens, " kept");
}

}  // namespace baton::engine
