#include "engine/step/scheduler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status.h"
#include "engine/step/scheduler_state.h"

namespace baton::engine {

// ---- State: what several messages need

absl::Status Scheduler::State::Validate(const Request& r) const {
  const int64_t length = static_cast<int64_t>(r.tokens.size());
  if (length == 0) return absl::InvalidArgumentError("the prompt has no tokens");
  if (r.prompt_len < 1 || r.prompt_len > length) {
    return absl::InvalidArgumentError(absl::StrCat("prompt_len ", r.prompt_len, " of ", length, " tokens"));
  }
  if (length >= options.max_model_len) {
    return absl::InvalidArgumentError(
        absl::StrCat("the prompt has ", length, " tokens, at most ", options.max_model_len - 1,
                     " and one new token fit the context length of ", options.max_model_len, " (--max-model-len)"));
  }
  BATON_RETURN_IF_ERROR(ValidateSampling(r.sampling, options.vocab_size));
  if (const int32_t most = std::max(r.sampling.logprobs, r.sampling.prompt_logprobs); most > options.max_logprobs) {
    return absl::InvalidArgumentError(absl::StrCat(most, " logprobs of a token, this worker's device gives at most ",
                                                   options.max_logprobs, " (the router's --max-logprobs allows more)"));
  }
  if (r.sampling.grammar && grammars == nullptr)
    return absl::InvalidArgumentError("grammars need a worker that has the model's tokenizer");
  for (size_t i = 0; i < r.tokens.size(); ++i) {
    if (r.tokens[i] < 0 || r.tokens[i] >= options.vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", i, " has id ", r.tokens[i], ", the vocabulary has ", options.vocab_size));
    }
  }
  const int64_t output_len = length - r.prompt_len;
  if (output_len >= r.sampling.max_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat(output_len, " tokens were generated already, max_tokens is ", r.sampling.max_tokens));
  }
  if (r.sampling.n > 1 && output_len > 0) {
    return absl::InvalidArgumentError(absl::StrCat("n = ", r.sampling.n, " choices cannot share output so far"));
  }
  if (r.sampling.use_beam_search) {
    BATON_RETURN_IF_ERROR(ValidateBeams(r));
  } else if (r.sampling.n > options.max_num_seqs) {
    return absl::InvalidArgumentError(absl::StrCat("n = ", r.sampling.n, " choices, at most ", options.max_num_seqs,
                                                   " run at once (--max-num-seqs)"));
  }
  if (Find(r.key) != nullptr) return absl::AlreadyExistsError(absl::StrCat("request ", r.key, " lives already"));
  return absl::OkStatus();
}

absl::Status Scheduler::State::CheckQueueRoom(int32_t tokens) const {
  const auto queued = static_cast<int32_t>(waiting.size());
  if (queued < options.max_waiting_requests && waiting_tokens + tokens <= options.max_waiting_tokens) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("the queue is full: ", queued, " requests with ", waiting_tokens, " tokens wait (limits ",
                   options.max_waiting_requests, " and ", options.max_waiting_tokens,
                   ", --max-waiting-requests and "
                   "--max-waiting-tokens), predicted wait ",
                   static_cast<int64_t>(static_cast<double>(waiting_tokens) * PredictedMsPerToken()), " ms"));
}

double Scheduler::State::PredictedMsPerToken() const {
  StepWork work;
  const int32_t rows = std::min(512, options.max_num_batched_tokens);
  work.Add(rows, 0);
  return predictor.Predict(work) / rows;
}

RequestState* Scheduler::State::Find(RequestKey key) const {
  const auto it = requests.find(key);
  return it == requests.end() ? nullptr : it->second.get();
}

RequestState& Scheduler::State::Register(Request request, TimePoint now) {
  auto state = std::make_unique<RequestState>();
  state->arrival = next_arrival++;
  state->arrived = now;
  state->choices.resize(static_cast<size_t>(request.sampling.n));
  for (auto& choice : state->choices) choice.credit = request.credit;
  if (request.sampling.use_beam_search) state->beams = MakeSearch(request);
  state->forked = request.sampling.n == 1 && !state->beams;
  state->request = std::move(request);
  if (!state->request.canary) prompt_tokens += state->request.prompt_len;
  RequestState& out = *state;
  requests[out.request.key] = std::move(state);
  return out;
}

Sequence& Scheduler::State::MakeSequence(RequestState& request, int32_t choice, std::vector<int32_t> tokens,
                                         const Sequence* like) {
  auto sequence = std::make_unique<Sequence>();
  sequence->id = next_id++;
  sequence->request = &request;
  sequence->choice = choice;
  sequence->tokens = std::move(tokens);
  const Request& r = request.request;
  if (r.sampling.grammar && like != nullptr) sequence->grammar = grammars->Fork(*like->grammar);
  if (r.sampling.grammar && !sequence->grammar)
    sequence->grammar =
        grammars->Follow(r.sampling.grammar, {sequence->tokens.begin() + r.prompt_len, sequence->tokens.end()});
  by_id[sequence->id] = sequence.get();
  request.sequences.push_back(std::move(sequence));
  return *request.sequences.back();
}

void Scheduler::State::Enqueue(Sequence& s) {
  s.phase = Sequence::Phase::kWaiting;
  waiting.insert(&s);
  waiting_tokens += s.length();
}

void Scheduler::State::StartRunning(Sequence& s) {
  s.phase = Sequence::Phase::kRunning;
  running.insert(std::upper_bound(running.begin(), running.end(), &s, Senior()), &s);
}

void Scheduler::State::LeaveQueues(Sequence& s) {
  if (s.phase == Sequence::Phase::kWaiting) {
    waiting.erase(&s);
    waiting_tokens -= s.length();
  } else if (s.phase == Sequence::Phase::kRunning) {
    running.erase(std::find(running.begin(), running.end(), &s));
  } else if (s.phase == Sequence::Phase::kParked) {
    --parked;
  } else if (s.phase == Sequence::Phase::kHeld) {
    --held;
  }
  s.phase = Sequence::Phase::kFinished;
}

void Scheduler::State::LeavePlans(Sequence& s) {
  if (s.in_plans == 0) return;
  for (RunningPlan& plan : plans) {
    if (plan.Holds(s)) --plan.living;
    if (plan.step == s.last_planned) plan.kept.push_back(std::exchange(s.kv, {}));
  }
  s.in_plans = 0;
}

// Takes the sequence out of everything. Its blocks go now, or at Commit when a running plan uses them.
void Scheduler::State::Remove(Sequence& s) {
  LeaveQueues(s);
  if (s.on_executor) forget.push_back(s.id);
  by_id.erase(s.id);
  auto& list = s.request->sequences;
  const auto it = std::find_if(list.begin(), list.end(), [&](const auto& p) { return p.get() == &s; });
  std::unique_ptr<Sequence> owned = std::move(*it);
  list.erase(it);
  LeavePlans(*owned);
}

void Scheduler::State::EraseIfEnded(RequestState& request) {
  if (request.sequences.empty()) requests.erase(request.request.key);
}

void Scheduler::State::EndChoice(RequestState& request, int32_t choice, FinishReason reason, const absl::Status& error,
                                 TimePoint now) {
  auto& state = request.choices[static_cast<size_t>(choice)];
  if (state.ended) return;
  state.ended = true;
  SequenceOutput out = MakeOutput(request, choice, now);
  const bool all_ended =
      std::all_of(request.choices.begin(), request.choices.end(), [](const auto& c) { return c.ended; });
  // Before the fork one sequence carries all choices: it goes with the last of them. So does one that scores the prompt
  // in the running plan: the scores are another choice's news. Beams are nobody's own.
  for (size_t i = request.sequences.size(); i-- > 0;) {
    Sequence& s = *request.sequences[i];
    const bool own = s.choice == choice && request.forked && !request.beams;
    if (own) out.position = s.length() - static_cast<int32_t>(s.undelivered.size());
    const bool needed = s.in_plans > 0 && ScoresPrompt(s);
    if (all_ended ? s.phase != Sequence::Phase::kHeld : own && !needed) Remove(s);
  }
  out.finish = reason;
  out.error = error;
  outputs.push_back(std::move(out));
}

void Scheduler::State::EndRequest(RequestKey key, FinishReason reason, const absl::Status& error, TimePoint now) {
  RequestState* request = Find(key);
  if (request == nullptr) return;
  for (int32_t c = 0; c < static_cast<int32_t>(request->choices.size()); ++c)
    EndChoice(*request, c, reason, error, now);
  EraseIfEnded(*request);
}

// ---- Scheduler

Scheduler::Scheduler(const SchedulerOptions& options, KvCache& cache, RolePolicy& policy, GrammarPool* grammars)
    : state_(std::make_unique<State>(options, cache, policy, grammars)) {
  BATON_CHECK(options.max_num_seqs > 0 && options.max_num_batched_tokens > 0 && options.max_model_len > 1);
  BATON_CHECK(options.max_logit_rows > 0 && options.max_undelivered_tokens > 0);
  for (int32_t g = 0; g < cache.num_groups(); ++g) {
    const int32_t need = cache.MaxBlocksOf(g, options.max_model_len, options.max_num_batched_tokens) + 1;
    BATON_CHECK(cache.pool(g).num_blocks() >= need, "KV group ", g, " has ", cache.pool(g).num_blocks(),
                " blocks, one sequence of ", options.max_model_len, " tokens needs ", need);
  }
}

void Scheduler::UsePolicy(RolePolicy& policy) { state_->policy = &policy; }
Scheduler::~Scheduler() = default;

absl::Status Scheduler::AddRequest(Request request, TimePoint now) {
  BATON_RETURN_IF_ERROR(state_->Validate(request));
  BATON_RETURN_IF_ERROR(state_->CheckQueueRoom(static_cast<int32_t>(request.tokens.size())));
  if (request.deadline <= now) return absl::DeadlineExceededError("the deadline passed before the request was queued");
  std::vector<int32_t> tokens = std::move(request.tokens);
  RequestState& state = state_->Register(std::move(request), now);
  state_->Enqueue(state_->MakeSequence(state, 0, std::move(tokens)));
  return absl::OkStatus();
}

absl::Status Scheduler::AttachRequest(AttachedRequest attached, TimePoint now) {
  State& st = *state_;
  BATON_RETURN_IF_ERROR(st.Validate(attached.request));
  const auto length = static_cast<int32_t>(attached.request.tokens.size());
  for (int32_t g = 0; g < st.cache.num_groups(); ++g) {
    const bool has_tables = attached.kv.tables.size() == static_cast<size_t>(st.cache.num_groups());
    if (has_tables && st.cache.BlocksNeeded(attached.kv, g, length) == 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the KV handed over does not cover ", length, " tokens in group ", g));
  }
  if (attached.request.sampling.use_beam_search) return st.AttachSearch(std::move(attached), now);
  const uint32_t base = attached.request.sequence_index;
  for (const FirstToken& first : attached.first) {
    const uint32_t choice = first.sequence_index - base;
    if (choice >= static_cast<uint32_t>(attached.request.sampling.n) || first.token < 0 ||
        first.token >= st.options.vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat("first token ", first.token, " of choice ", first.sequence_index));
    }
  }
  if (attached.first.empty()) return absl::InvalidArgumentError("a handoff without first tokens");
  std::vector<int32_t> tokens = std::move(attached.request.tokens);
  st.cache.Publish(attached.kv, tokens, length);
  RequestState& state = st.Register(std::move(attached.request), now);
  state.forked = true;
  for (auto& choice : state.choices) choice.ended = true;
  for (const FirstToken& first : attached.first) {
    const auto choice = static_cast<int32_t>(first.sequence_index - base);
    if (!std::exchange(state.choices[static_cast<size_t>(choice)].ended, false)) continue;  // named twice
    std::vector<int32_t> with_first = tokens;
    with_first.push_back(first.token);
    Sequence& s = st.MakeSequence(state, choice, std::move(with_first));
    s.kv = attached.kv.Share();
    s.computed = length;
    s.prompt_scored = state.request.prompt_len;
    st.StartRunning(s);
    s.end = DecideStop(state.request.sampling, first.token, s.length() - state.request.prompt_len, s.length(),
                       st.options.max_model_len);
    if (s.end.reason == FinishReason::kNone) continue;
    st.FinishGenerating(s);
    st.Deliver(s, now);
  }
  st.EraseIfEnded(state);
  return absl::OkStatus();
}

bool Scheduler::Cancel(RequestKey key, TimePoint now) {
  if (state_->Find(key) == nullptr) return false;
  state_->EndRequest(key, FinishReason::kAbort, absl::OkStatus(), now);
  return true;
}

bool Scheduler::CancelSequence(RequestKey key, uint32_t sequence_index, TimePoint now) {
  RequestState* request = state_->Find(key);
  if (request == nullptr) return false;
  const uint32_t choice = sequence_index - request->request.sequence_index;
  if (choice >= request->choices.size() || request->choices[choice].ended) return false;
  state_->EndChoice(*request, static_cast<int32_t>(choice), FinishReason::kAbort, absl::OkStatus(), now);
  state_->EraseIfEnded(*request);
  return true;
}

void Scheduler::CancelAll(TimePoint now) {
  std::vector<RequestKey> keys;
  for (const auto& [key, request] : state_->requests) keys.push_back(key);
  std::sort(keys.begin(), keys.end());
  for (const RequestKey key : keys) {
    Cancel(key, now);
    ReleaseHeld(key);
  }
}

void Scheduler::SetCredit(RequestKey key, uint32_t sequence_index, int32_t position, TimePoint now) {
  RequestState* request = state_->Find(key);
  if (request == nullptr) return;
  const uint32_t choice = sequence_index - request->request.sequence_index;
  if (choice >= request->choices.size() || request->choices[choice].credit >= position) return;
  request->choices[choice].credit = position;
  if (!request->forked) return;
  for (const auto& s : request->sequences) {
    if (s->choice != static_cast<int32_t>(choice)) continue;
    state_->DeliverAndUnpark(*s, now);
    break;
  }
  state_->EraseIfEnded(*request);
}

const SequenceKv* Scheduler::Kv(RequestKey key) const {
  const RequestState* request = state_->Find(key);
  if (request == nullptr) return nullptr;
  for (const auto& s : request->sequences) {
    if (!s->kv.tables.empty()) return &s->kv;
  }
  return nullptr;
}

bool Scheduler::ReleaseHeld(RequestKey key) {
  RequestState* request = state_->Find(key);
  if (request == nullptr) return false;
  bool any = false;
  for (size_t i = request->sequences.size(); i-- > 0;) {
    if (request->sequences[i]->phase != Sequence::Phase::kHeld) continue;
    state_->Remove(*request->sequences[i]);
    any = true;
  }
  state_->EraseIfEnded(*request);
  return any;
}

absl::Status Scheduler::BindForHandoff(SequenceKv& prefix, int32_t tokens) {
  State& st = *state_;
  const auto need = [&](int32_t g) { return st.cache.BlocksNeededBeyond(prefix, g, tokens - 1, tokens); };
  const auto free = [&](int32_t g) { return st.cache.pool(g).available_blocks() - st.RunningWithCredit(); };
  if (!st.ParkFor([&](int32_t g) { return need(g) - free(g); })) {
    int32_t g = 0;
    while (need(g) <= free(g)) ++g;
    return absl::ResourceExhaustedError(absl::StrCat("need ", need(g), " KV blocks of group ", g, ", ",
                                                     std::max(0, free(g)), " free beside one per running sequence"));
  }
  st.cache.SkipBehindWindow(prefix, tokens - 1);
  prefix.handed_over_tokens = tokens - 1;
  BATON_CHECK(st.cache.Grow(prefix, tokens));
  return absl::OkStatus();
}

std::shared_ptr<AnswerGrammar> Scheduler::BeginGrammar(std::shared_ptr<const Grammar> grammar) {
  return state_->grammars == nullptr ? nullptr : state_->grammars->Follow(std::move(grammar), {});
}

std::vector<SequenceOutput> Scheduler::TakeOutputs() { return std::exchange(state_->outputs, {}); }

bool Scheduler::RunningPlanAbandoned() const {
  return !state_->plans.empty() &&
         std::ranges::all_of(state_->plans, [](const auto& plan) { return plan.living == 0; });
}

TimePoint Scheduler::NextDeadline() const {
  TimePoint next = TimePoint::max();
  for (const auto& [key, request] : state_->requests) {
    const bool lives =
        std::any_of(request->choices.begin(), request->choices.end(), [](const auto& c) { return !c.ended; });
    if (lives) next = std::min(next, request->request.deadline);
  }
  return next;
}

bool Scheduler::Idle() const {
  for (const auto& [key, request] : state_->requests) {
    for (const auto& s : request->sequences) {
      if (s->phase != Sequence::Phase::kHeld) return false;
    }
  }
  return state_->plans.empty();
}

KvCache& Scheduler::cache() { return state_->cache; }
const SchedulerOptions& Scheduler::options() const { return state_->options; }

}  // namespace baton::engine
