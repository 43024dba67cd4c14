#include "router/request/canary_request.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "router/request/model_text.h"

namespace baton::router {
namespace {

constexpr int32_t kPromptTokens = 5, kAnswerTokens = 3;  // together less than a unit of the prefix cache

TokenizedRequest GenerationOf(const CanaryLegs& legs) {
  TokenizedRequest out;
  out.request_id = legs.request_id;
  out.canary = true;
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < kPromptTokens; ++i) prompt.push_back((i + 3) % std::max(1, legs.vocab_size));
  out.prompt = std::move(prompt);
  out.sampling = ResolveSampling({}, {});
  out.sampling.temperature = 0.0F;
  out.sampling.max_tokens = kAnswerTokens;
  out.sampling.ignore_eos = true;
  out.sampling.seed = 0;
  out.priority = std::numeric_limits<int32_t>::min();
  return out;
}

FlowLimits Limits() {
  FlowLimits limits;
  limits.max_attempts = 1;
  limits.total_timeout = CanaryRequest::kMostTime;
  return limits;
}

}  // namespace

std::shared_ptr<CanaryRequest> CanaryRequest::Start(Workers& workers, EventLoop& loop, const Clock& clock,
                                                    const CanaryLegs& legs, Done done) {
  std::shared_ptr<CanaryRequest> self(new CanaryRequest(workers, loop, clock, legs, std::move(done)));
  self->flow_.Start();
  self->Pump();
  return self;
}

CanaryRequest::CanaryRequest(Workers& workers, EventLoop& loop, const Clock& clock, const CanaryLegs& legs, Done done)
    : workers_(workers),
      loop_(loop),
      clock_(clock),
      legs_(legs),
      generation_(GenerationOf(legs)),
      flow_(legs.request_id, kPromptTokens, 1, Limits(), clock.Now()),
      timer_(loop.MakeTimer()),
      done_(std::move(done)) {}

void CanaryRequest::OnNews(RelayNews&& news) {
  if (!done_) return;
  if (legs_.prefill && news.timings && news.timings->prefill_ms > 0)
    seen_ = absl::UnavailableError("the KV did not come: the decode worker computed the prompt again");
  flow_.News(std::move(news), clock_.Now());
  Pump();
}

void CanaryRequest::OnAnswer(const LegKey& key, LegAnswer answer) {
  if (!done_ || !flow_.IsCurrent(key)) return;
  if (auto* reserved = std::get_if<ReserveResult>(&answer)) flow_.Reserved(key, *reserved, clock_.Now());
  if (auto* prefilled = std::get_if<PrefillResult>(&answer)) {
    // The flow would let the decode worker compute the prompt: an answer, but none through both.
    if (!prefilled->status.ok() && !prefilled->no_room) return GiveUp(prefilled->status);
    flow_.PrefillEnded(key, std::move(*prefilled), /*scores_wanted=*/false, clock_.Now());
  }
  Pump();
}

void CanaryRequest::GiveUp(const absl::Status& status) {
  flow_.ClientGone();
  Pump();
  Finish(status);
}

void CanaryRequest::OnWorkerLost(WorkerId worker, const absl::Status& why) {
  if (!done_) return;
  flow_.WorkerLost(worker, why, clock_.Now());
  Pump();
}

void CanaryRequest::Pump() {
  for (auto actions = flow_.TakeActions(); !actions.empty(); actions = flow_.TakeActions()) {
    for (const FlowAction& action : actions) std::visit([this](const auto& one) { Do(one); }, action);
  }
}

/// Asked for again, where a worker has no room for its KV yet: then there is no other, and the same is asked later.
void CanaryRequest::Do(const PickWorker&) {
  const TimePoint now = clock_.Now();
  picked_ = !picked_;
  if (!picked_) return flow_.NoWorker(absl::UnavailableError("there is no other worker"), 0, false, now);
  if (legs_.prefill) return flow_.PairChosen(*legs_.prefill, legs_.decode, /*local_prefill_tokens=*/0, now);
  flow_.WorkerChosen(legs_.decode, now);
}

void CanaryRequest::Do(const PickPrefill&) { flow_.PrefillChosen(std::nullopt, clock_.Now()); }

void CanaryRequest::Do(const SendTo& action) {
  workers_.Send(action.worker, generation_, action.order, shared_from_this());
}

void CanaryRequest::Do(const Complete&) { Finish(seen_); }

void CanaryRequest::Do(const Fail& action) { Finish(seen_.ok() ? action.status : seen_); }

void CanaryRequest::Do(const ArmTimer& action) {
  timer_->ArmAt(action.at, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr || !self->done_) return;
    self->flow_.Timer(self->clock_.Now());
    self->Pump();
  });
}

void CanaryRequest::Finish(const absl::Status& status) {
  if (!done_) return;
  timer_->Cancel();
  workers_.Forget(legs_.decode, generation_.request_id);
  std::exchange(done_, nullptr)(status);
}

}  // namespace baton::router
