// PlanStep: deadlines, then decodes, then the prefill chunks of what runs, then admission.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "engine/step/scheduler_state.h"

namespace baton::engine {

namespace {
/// A prefill gets at least this much of every step, or decodes that fill max_step_ms would starve it.
constexpr int32_t kMinChunk = kUnitTokens;
}  // namespace

StepPlan Scheduler::PlanStep(TimePoint now) {
  State& st = *state_;
  BATON_CHECK(st.plans.empty(), "step ", st.step, " runs");
  st.ExpireDeadlines(now);
  StepPlan plan;
  st.plans.push_back({.step = st.step + 1, .planned_at = now, .work = {}, .copy_sources = {}, .kept = {}});
  st.rows_left = st.options.max_num_batched_tokens;
  st.sequences_left = st.options.max_num_seqs;
  st.logit_rows_left = st.options.max_logit_rows;
  st.prefill_planned = st.preempted = false;
  st.partial_prefills = st.long_partial_prefills = 0;
  for (const Sequence* s : st.running) st.CountPartial(*s, st.IsPartial(*s) ? 1 : 0);
  st.PlanDecodes(plan, now);
  st.plan_ms = st.StepLimitMs();
  st.prefill_left = st.policy->PrefillBudget(static_cast<int32_t>(plan.sequences.size()), st.rows_left);
  st.PlanPrefills(plan, now);
  if (!st.preempted) st.Admit(plan, now);
  plan.forget = std::exchange(st.forget, {});
  if (plan.empty()) {
    st.plans.pop_back();
    return plan;
  }
  plan.step = ++st.step;
  return plan;
}

void Scheduler::State::ExpireDeadlines(TimePoint now) {
  std::vector<RequestKey> late;
  for (const auto& [key, request] : requests) {
    if (request->request.deadline <= now) late.push_back(key);
  }
  std::sort(late.begin(), late.end());
  for (const RequestKey key : late) {
    const RequestState& r = *requests[key];
    const char* stage = r.started == TimePoint::max()       ? "waiting"
                        : r.first_token == TimePoint::max() ? "in prefill"
                                                            : "decoding";
    EndRequest(key, FinishReason::kError,
               absl::DeadlineExceededError(absl::StrCat("the deadline passed while ", stage, ", ",
                                                        Seconds(now - r.arrived), " s after arrival")),
               now);
  }
}

// Sequences of a step that a sequence stands for: all its request's choices, or beams, before they fork.
int32_t Scheduler::State::SequencesOf(const Sequence& s) const {
  return s.request->forked ? 1 : DecodingSequences(s.request->request.sampling);
}

bool Scheduler::State::ScoresPrompt(const Sequence& s) const {
  const Request& r = s.request->request;
  return r.sampling.prompt_logprobs >= 0 && s.prompt_scored < r.prompt_len;
}

void Scheduler::State::PlanDecodes(StepPlan& plan, TimePoint now) {
  std::vector<Sequence*> ready;
  for (Sequence* s : running) {
    if (s->remaining() == 1 && s->request->forked && HasCredit(*s) && !s->sits_out()) ready.push_back(s);
  }
  const auto room = static_cast<size_t>(std::min(PlacesForDecodes(static_cast<int32_t>(ready.size())), rows_left));
  if (ready.size() > room) {
    // Not all fit: those that waited longest, so that every sequence gets its turn.
    std::stable_sort(ready.begin(), ready.end(), [](auto* a, auto* b) { return a->turn < b->turn; });
    ready.resize(room);
    for (Sequence* s : ready) s->turn = next_turn++;
    std::sort(ready.begin(), ready.end(), Senior());
  }
  for (size_t i = 0; i < ready.size(); ++i) {
    const bool roomy = MakeRoom(*ready[i], 1, plan, now);
    // A sequence that lost its blocks to this one is among the juniors behind it.
    if (preempted) {
      ready.erase(
          std::remove_if(ready.begin() + static_cast<ptrdiff_t>(i) + 1, ready.end(),
                         [&](Sequence* s) { return std::find(running.begin(), running.end(), s) == running.end(); }),
          ready.end());
    }
    if (roomy) Schedule(*ready[i], 1, plan, now);
  }
}

// When more decode than have places, the first prefill that runs keeps its own: they would starve it.
int32_t Scheduler::State::PlacesForDecodes(int32_t ready) const {
  for (const Sequence* s : running) {
    if (!HasCredit(*s) || (s->remaining() == 1 && s->request->forked) || s->computable() == 0) continue;
    const int32_t its = SequencesOf(*s);
    return ready + its > sequences_left && its <= sequences_left / 2 ? sequences_left - its : sequences_left;
  }
  return sequences_left;
}

void Scheduler::State::PlanPrefills(StepPlan& plan, TimePoint now) {
  // By index: juniors may be preempted, and those without credit parked, which shortens the list.
  for (size_t i = 0; i < running.size() && prefill_left > 0 && sequences_left > 0; ++i) {
    Sequence& s = *running[i];
    if (s.in_plans > 0 || !HasCredit(s) || (s.remaining() == 1 && s.request->forked) || s.computable() == 0) continue;
    if (SequencesOf(s) > sequences_left || (ScoresPrompt(s) && logit_rows_left == 0)) continue;
    const int32_t chunk = ChunkFor(s);
    if (chunk == 0) return;
    if (!MayBegin(s, chunk)) continue;
    const bool roomy = MakeRoom(s, chunk, plan, now);
    i = static_cast<size_t>(std::find(running.begin(), running.end(), &s) - running.begin());
    if (roomy) Schedule(s, chunk, plan, now);
  }
}

// The time limit of a step whose decodes are planned; 0: no limit. Streams wait for the whole step, so a
// prefill beside them is cut to a short stall; where the decodes alone take that long, the prefill may take as long.
double Scheduler::State::StepLimitMs() const {
  const StepWork& work = plans.back().work;
  if (options.max_stall_ms <= 0 || work.rows == 0) return options.max_step_ms;
  return std::min(options.max_step_ms, std::max(options.max_stall_ms, 2 * predictor.Predict(work)));
}

// Tokens of `s` that this step may take: budget, step time, logits memory.
int32_t Scheduler::State::ChunkFor(const Sequence& s) const {
  int32_t most = std::min({s.computable(), prefill_left, rows_left});
  if (options.max_prefill_chunk > 0) most = std::min(most, options.max_prefill_chunk);
  if (ScoresPrompt(s)) most = std::min(most, logit_rows_left);
  if (plan_ms > 0) {
    const int32_t in_time = predictor.TokensWithin(plans.back().work, s.computed, plan_ms, most);
    most = std::max(in_time, prefill_planned ? 0 : std::min(most, kMinChunk));
  }
  // Whole units, so that the next chunk starts at one, unless that wastes most of what there is.
  const int32_t aligned = (s.computed + most) / kUnitTokens * kUnitTokens - s.computed;
  return most < s.remaining() && 2 * aligned >= most ? aligned : most;
}

bool Scheduler::State::IsPartial(const Sequence& s) const { return s.on_executor && s.remaining() > 1; }

bool Scheduler::State::IsLong(const Sequence& s) const { return s.length() > options.max_prefill_chunk; }

void Scheduler::State::CountPartial(const Sequence& s, int32_t more) {
  partial_prefills += more;
  if (IsLong(s)) long_partial_prefills += more;
}

// Whether a prompt of which nothing is computed yet may have its first `chunk`. What is computed whole is never a part,
// and the first prefill of a step always gets on, whatever others wait for.
bool Scheduler::State::MayBegin(const Sequence& s, int32_t chunk) const {
  const auto full = [](int32_t most, int32_t now) { return most > 0 && now >= most; };
  if (s.on_executor || !prefill_planned || chunk == s.remaining()) return true;
  return !full(options.max_partial_prefills, partial_prefills) &&
         !(IsLong(s) && full(options.max_long_partial_prefills, long_partial_prefills));
}

// The first that waits, but for prompts that may not begin beside those that are computed in parts. Of each the chunk
// is guessed without its cached tokens and the time.
Sequence* Scheduler::State::FirstThatMayBegin() const {
  const int32_t bound = options.max_prefill_chunk > 0 ? options.max_prefill_chunk : rows_left;
  for (Sequence* s : waiting) {
    if (MayBegin(*s, std::min({s->length(), prefill_left, rows_left, bound}))) return s;
  }
  return nullptr;
}

bool Scheduler::State::MakeRoom(Sequence& s, int32_t tokens, StepPlan& plan, TimePoint now) {
  const int32_t end = s.computed + tokens;
  for (;;) {
    if (cache.Grow(s.kv, end) && cache.MakeWritable(s.kv, s.computed, end, plan.copies, plans.back().copy_sources))
      return true;
    if (!ParkOne() && !policy->ReleasePins() && !PreemptJuniorOf(s, now)) return false;
  }
}

// The last of those that run gives up its blocks, unless `s` is the last: then it waits for its seniors.
bool Scheduler::State::PreemptJuniorOf(const Sequence& s, TimePoint now) {
  for (size_t i = running.size(); i-- > 0;) {
    Sequence* victim = running[i];
    if (victim == &s) return false;
    const RequestState& request = *victim->request;
    if (request.beams && &request == s.request) return false;  // beams go on, or are preempted, together
    const bool in_plan = request.beams ? std::any_of(request.sequences.begin(), request.sequences.end(),
                                                     [](const auto& beam) { return beam->in_plans > 0; })
                                       : victim->in_plans > 0;
    if (in_plan || victim->kv.tables.empty()) continue;
    Preempt(*victim, now);
    return true;
  }
  return false;
}

void Scheduler::State::Preempt(Sequence& victim, TimePoint now) {
  preempted = true;
  ++preemptions;
  if (policy->HandBackPreempted(victim.request->request.key, victim.computed)) {
    const absl::Status why = absl::UnavailableError("preempted: continue on another worker");
    RequestState& request = *victim.request;
    if (!request.forked || request.beams) return EndRequest(request.request.key, FinishReason::kError, why, now);
    // Not the whole request: the sequence that room is made for may be another choice of it.
    EndChoice(request, victim.choice, FinishReason::kError, why, now);
    EraseIfEnded(request);
    return;
  }
  if (victim.request->beams && victim.request->forked) return RestartSearch(*victim.request);
  GiveUpBlocks(victim);
  Enqueue(victim);
}

void Scheduler::State::GiveUpBlocks(Sequence& s) {
  LeaveQueues(s);
  s.kv.Clear();
  s.computed = 0;
  if (std::exchange(s.on_executor, false)) forget.push_back(s.id);
}

void Scheduler::State::Admit(StepPlan& plan, TimePoint now) {
  int32_t slots = options.max_num_seqs;
  for (const Sequence* s : running) slots -= HasCredit(*s) ? SequencesOf(*s) : 0;
  while (!waiting.empty() && prefill_left > 0 && rows_left > 0 && sequences_left > 0) {
    Sequence* const first = FirstThatMayBegin();
    if (first == nullptr) return;
    Sequence& s = *first;
    if (SequencesOf(s) > std::min(slots, sequences_left)) return;
    if (!TryAdmit(s, plan)) return;
    slots -= SequencesOf(s);
    const int32_t chunk = ChunkFor(s);
    if (chunk == 0 || !MayBegin(s, chunk) || !MakeRoom(s, chunk, plan, now))
      return;  // admitted all the same; its chunk comes with the next step
    Schedule(s, chunk, plan, now);
  }
}

bool Scheduler::State::TryAdmit(Sequence& s, StepPlan& plan) {
  RequestState& r = *s.request;
  PrefixMatch match;
  if (ScoresPrompt(s)) {
    match.kv = cache.Start(r.request.cache_salt, r.request.lora_digest);
  } else {
    match = cache.Match(r.request.cache_salt, r.request.lora_digest, s.tokens, s.length() - 1);
  }
  s.kv = std::move(match.kv);
  if (!FitsBesidesRunning(s)) {
    s.kv.Clear();
    return false;
  }
  s.computed = match.tokens;
  for (const BlockCopy& copy : match.copies) plan.copies.push_back(copy);
  for (BlockTable& source : match.copy_sources) plans.back().copy_sources.push_back(std::move(source));
  if (r.started == TimePoint::max()) {
    r.cached_tokens = std::min(match.tokens, r.request.prompt_len);
    if (!r.request.canary) cached_tokens += r.cached_tokens;
  }
  LeaveQueues(s);
  StartRunning(s);
  return true;
}

// All of the sequence's tokens and what running prefills still need must fit, and one block per running sequence must
// stay free: an admitted request seldom has to be preempted. Of those without credit none counts.
int64_t Scheduler::State::MissingBesidesRunning(const Sequence& s, int32_t g) const {
  const auto still_needed = [&](const Sequence& q) {
    const int32_t have = q.kv.tables[static_cast<size_t>(g)].owned();
    return std::max(0, cache.MaxBlocksOf(g, q.length(), options.max_num_batched_tokens) - have);
  };
  const auto growth = [&](const Sequence& q) { return q.request->beams ? SequencesOf(q) : 1; };
  int64_t need = still_needed(s) + growth(s) - 1;
  for (const Sequence* q : running) need += HasCredit(*q) ? growth(*q) + still_needed(*q) : 0;
  return need - cache.pool(g).available_blocks();
}

// With nobody else running the first in line is always admitted.
bool Scheduler::State::FitsBesidesRunning(const Sequence& s) {
  if (ParkFor([&](int32_t g) { return MissingBesidesRunning(s, g); })) return true;
  if (RunningWithCredit() > 0) return false;
  while (ParkOne()) {
  }
  return true;
}

void Scheduler::State::EnterPlan(Sequence& s) {
  ++s.in_plans;
  s.last_planned = plans.back().step;
  ++plans.back().living;
}

SequenceStep& Scheduler::State::AddRows(Sequence& s, int32_t context, int32_t tokens, StepPlan& plan) {
  SequenceStep& step = plan.sequences.emplace_back();
  step.id = s.id;
  step.request_key = s.request->request.key;
  step.num_tokens = tokens;
  step.context = context;
  for (const BlockTable& table : s.kv.tables) {
    // Entries behind the window are never read; any block number will do.
    auto& blocks = step.block_tables.emplace_back(table.blocks().begin(), table.blocks().end());
    std::replace(blocks.begin(), blocks.end(), kNoBlock, 0);
  }
  EnterPlan(s);
  plans.back().work.Add(tokens, context);
  plan.total_tokens += tokens;
  return step;
}

void Scheduler::State::AddToExecutor(Sequence& s, StepPlan& plan) {
  if (std::exchange(s.on_executor, true)) return;
  const Request& r = s.request->request;
  plan.add.push_back(
      {s.id, r.sequence_index + static_cast<uint32_t>(s.choice), s.tokens, r.prompt_len, r.sampling, s.grammar});
}

void Scheduler::State::Schedule(Sequence& s, int32_t tokens, StepPlan& plan, TimePoint now) {
  RequestState& r = *s.request;
  if (r.started == TimePoint::max()) r.started = now;
  CountPartial(s, (s.remaining() - tokens > 1 ? 1 : 0) - (IsPartial(s) ? 1 : 0));
  AddToExecutor(s, plan);
  SequenceStep& step = AddRows(s, s.computed, tokens, plan);
  step.sample = s.computed + tokens == s.length();
  step.prompt_logprobs = ScoresPrompt(s);
  if (step.prompt_logprobs) logit_rows_left -= tokens;
  rows_left -= tokens;
  sequences_left -= SequencesOf(s);
  const bool decode = s.remaining() == 1 && s.length() > r.request.prompt_len;
  if (!decode) {
    prefill_left -= tokens;
    prefill_planned = true;
  }
  const bool forks = step.sample && !r.forked && !r.beams;
  if (forks) ForkAtFirstToken(s, plan);
}

// n > 1: every living choice draws its first token from the carrier's last row. Their masks are there, as the carrier's
// is: who had to wait for one would compute the prompt's end again, which is on its way to a decode worker by then.
void Scheduler::State::ForkAtFirstToken(Sequence& carrier, StepPlan& plan) {
  RequestState& r = *carrier.request;
  r.forked = true;
  plan.sequences.back().sample = !r.choices[0].ended;
  const SequenceId carrier_id = carrier.id;
  for (int32_t c = 1; c < static_cast<int32_t>(r.choices.size()); ++c) {
    if (r.choices[static_cast<size_t>(c)].ended) continue;
    Sequence& s = MakeSequence(r, c, carrier.tokens, &carrier);
    s.kv = carrier.kv.Share();
    s.computed = carrier.computed;
    s.prompt_scored = r.request.prompt_len;
    EnterPlan(s);
    StartRunning(s);
    AddToExecutor(s, plan);
    SequenceStep step;
    step.id = s.id;
    step.context = s.length();
    step.sample = true;
    step.logits_from = carrier_id;
    plan.sequences.push_back(std::move(step));
  }
}

}  // namespace baton::engine
