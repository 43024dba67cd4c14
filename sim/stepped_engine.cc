#include "sim/stepped_engine.h"

#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace baton::engine {
namespace {

std::string ResultText(const kernels::SampleResult& r) {
  const auto one = [](const kernels::TokenLogprob& l) {
    uint32_t bits;
    std::memcpy(&bits, &l.logprob, 4);
    return absl::StrCat(l.token, "/", absl::Hex(bits), "/", l.rank);
  };
  std::string text = absl::StrCat(" ", r.token, "(", one(r.chosen));
  for (const auto& l : r.top) absl::StrAppend(&text, ",", one(l));
  return text + ")";
}

}  // namespace

std::string Answer::Text() const {
  std::string text = "tokens";
  for (const auto& t : tokens) text += ResultText(t);
  text += " prompt";
  for (const auto& t : prompt_logprobs) text += ResultText(t);
  return absl::StrCat(text, " finish ", static_cast<int>(finish), " stop ", stop_token.value_or(-1),
                      nothing_allowed ? " nothing allowed " : " ", error.ToString());
}

SteppedEngine::SteppedEngine(SteppedEngineOptions options, RolePolicy* policy, StepChannel* channel)
    : fake_(std::make_unique<FakeModel>(options.layout, options.numerics, options.heads)),
      fake_ops_(MakeFakeOps({}, options.later ? fake_.get() : nullptr)) {
  Build(std::move(options), policy, *fake_, *fake_ops_, channel);
}

SteppedEngine::SteppedEngine(SteppedEngineOptions options, RolePolicy* policy, Model& model, kernels::Ops& ops,
                             StepChannel* channel) {
  Build(std::move(options), policy, model, ops, channel);
}

void SteppedEngine::Build(SteppedEngineOptions options, RolePolicy* policy, Model& model, kernels::Ops& ops,
                          StepChannel* channel) {
  options.scheduler.vocab_size = model.config().vocab_size;
  ahead_ = options.ahead;
  memory_ = KvMemory::Create(options.layout, options.num_blocks, ops).value();
  KvCache::Options cache_options;
  cache_options.enable_prefix_caching = options.prefix_caching;
  cache_options.model_digest = "test";
  cache_ = std::make_unique<KvCache>(options.layout, options.num_blocks, hasher_, cache_options);
  scheduler_ = std::make_unique<Scheduler>(options.scheduler, *cache_, policy != nullptr ? *policy : default_policy_,
                                           options.grammars.get());
  grammars_ = std::move(options.grammars);
  executor_ = std::make_unique<Executor>(model, *memory_, ops, nullptr, channel);
}

bool SteppedEngine::Begin() {
  if (given_.empty()) Give(scheduler_->PlanStep(now));
  if (given_.empty()) return false;
  if (!given_.front().enqueued) Enqueue(given_.front());
  if (executor_->Ready()) given_.front().result = executor_->Await();
  if (ahead_ && given_.size() == 1) {
    Give(scheduler_->PlanAhead(now));
    if (given_.size() == 2) ++steps_ahead;
    if (given_.size() == 2 && given_.back().plan.step % 2 == 0) Enqueue(given_.back());
  }
  plan_ = given_.front().plan;
  return true;
}

void SteppedEngine::Give(StepPlan plan) {
  Collect(scheduler_->TakeOutputs());
  scheduler_->CheckInvariants();
  if (!plan.empty()) given_.push_back({.plan = std::move(plan)});
}

void SteppedEngine::Enqueue(Given& given) {
  executor_->ClearCancel();
  if (executor_->under_way() > 0 && std::exchange(cancel_behind, false)) executor_->Cancel();
  executor_->Enqueue(given.plan);
  given.enqueued = true;
}

void SteppedEngine::Finish() {
  now += std::chrono::microseconds(static_cast<int64_t>(1000 * (0.5 + ms_per_row * plan_.total_tokens)));
  Given& given = given_.front();
  const absl::StatusOr<StepResult> result = given.result ? *std::move(given.result) : executor_->Await();
  given_.pop_front();
  Collect(result.ok() ? scheduler_->Commit(plan_, *result, now)
                      : scheduler_->CommitFailure(plan_, result.status(), now));
  scheduler_->CheckInvariants();
  BATON_CHECK(scheduler_->OwnedBlocks(0) + pinned == cache_->pool(0).total_owners(), scheduler_->OwnedBlocks(0),
              " owned, ", pinned, " pinned, ", cache_->pool(0).total_owners(), " in the pool");
}

bool SteppedEngine::Step() {
  if (!Begin()) return false;
  Finish();
  return true;
}

void SteppedEngine::RunAll(int max_steps) {
  while (!scheduler_->Idle()) {
    BATON_CHECK(Step() || scheduler_->Idle(), "nothing to run, but requests live");
    BATON_CHECK(--max_steps > 0, "no end");
  }
  Step();  // the last forgets
}

void SteppedEngine::Collect(std::vector<SequenceOutput> outputs) {
  for (SequenceOutput& o : outputs) {
    Answer& a = answers[{o.key, o.sequence_index}];
    BATON_CHECK(a.finish == FinishReason::kNone, "request ", o.key, " ended twice");
    if (!o.tokens.empty()) {
      if (a.first_position < 0) a.first_position = o.position;
      BATON_CHECK(o.position == a.first_position + static_cast<int32_t>(a.tokens.size()), "request ", o.key,
                  ": position ", o.position, " after ", a.tokens.size(), " tokens from ", a.first_position);
    }
    if (!o.prompt_logprobs.empty()) {
      BATON_CHECK(a.tokens.empty(), "request ", o.key, ": prompt logprobs after the first token");
      if (a.first_score < 0) a.first_score = o.prompt_logprobs_position;
      BATON_CHECK(o.prompt_logprobs_position == a.first_score + static_cast<int32_t>(a.prompt_logprobs.size()),
                  "request ", o.key, ": scores of ", o.prompt_logprobs_position, " after ", a.prompt_logprobs.size(),
                  " from ", a.first_score);
    }
    for (auto& t : o.tokens) a.tokens.push_back(std::move(t));
    for (auto& t : o.prompt_logprobs) a.prompt_logprobs.push_back(std::move(t));
    a.finish = o.finish;
    a.stop_token = o.stop_token;
    a.nothing_allowed = o.nothing_allowed;
    a.error = o.error;
    a.cached_tokens = o.cached_tokens;
    a.timings = o.timings;
  }
}

std::vector<int32_t> RandomTokens(uint64_t seed, int32_t length, int32_t vocab) {
  std::mt19937_64 rng(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(length));
  for (int32_t& t : tokens) t = static_cast<int32_t>(rng() % static_cast<uint64_t>(vocab));
  return tokens;
}

Request MakeRequest(RequestKey key, std::vector<int32_t> prompt, int32_t max_tokens) {
  Request r;
  r.key = key;
  r.prompt_len = static_cast<int32_t>(prompt.size());
  r.tokens = std::move(prompt);
  r.sampling.temperature = 0;
  r.sampling.max_tokens = max_tokens;
  return r;
}

}  // namespace baton::engine
