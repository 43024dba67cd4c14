#include "router/request/request_driver.h"

#include <algorithm>
#include <utility>

#include "common/log.h"
#include "common/planted_bug.h"
#include "common/str_cat.h"
#include "router/fleet/prompt_logprobs.h"

namespace baton::router {
namespace {

using std::chrono::milliseconds;

FlowLimits FlowLimitsOf(const RouterConfig& config, const TokenizedRequest& generation) {
  FlowLimits limits;
  limits.max_attempts = config.max_attempts;
  limits.credit_tokens = static_cast<uint32_t>(config.relay_credit_tokens);
  limits.first_token_timeout = milliseconds(config.first_token_timeout_ms);
  limits.idle_token_timeout = milliseconds(config.idle_token_timeout_ms);
  limits.total_timeout = milliseconds(config.request_timeout_ms);
  if (generation.timeout && (limits.total_timeout.count() == 0 || *generation.timeout < limits.total_timeout)) {
    limits.total_timeout = *generation.timeout;
  }
  limits.failover_wait = milliseconds(config.failover_wait_ms);
  limits.whole = IsBeamSearch(generation.sampling);
  return limits;
}

}  // namespace

RequestDriver::RequestDriver(const CallServices& services, EventLoop& loop, TokenizedRequest generation,
                             std::vector<ChoiceText> texts, TimePoint arrived, std::vector<AdmissionHold> tickets,
                             std::shared_ptr<AnswerSink> sink)
    : services_(services),
      loop_(loop),
      generation_(std::move(generation)),
      flow_(generation_.request_id, static_cast<uint32_t>(generation_.prompt.size()),
            static_cast<uint32_t>(texts.size()), FlowLimitsOf(services.config, generation_), arrived),
      texts_(std::move(texts)),
      last_token_(texts_.size()),
      withheld_(texts_.size()),
      tickets_(std::move(tickets)),
      sink_(std::move(sink)),
      timer_(loop.MakeTimer()),
      arrived_(arrived),
      stages_(arrived, IsBeamSearch(generation_.sampling)) {}

void RequestDriver::Start() {
  if (trail_) trail_->Tokenized(generation_);
  flow_.Start();
  Pump();
}

void RequestDriver::ClientGone() {
  if (finished_) return;
  flow_.ClientGone();
  Pump();
  Finish("abort");
}

void RequestDriver::OutputDrained() {
  if (finished_ || !std::exchange(withholds_, false)) return;
  still_ = {};
  for (uint32_t i = 0; i < withheld_.size(); ++i) {
    if (withheld_[i] > 0) flow_.Consumed(i, std::exchange(withheld_[i], 0));
  }
  Pump();
}

void RequestDriver::OnNews(RelayNews&& news) {
  if (finished_) return;
  if (news.timings) stages_.Told(*news.timings);
  // A beam search's tokens come at the end. That it was accepted says that its prompt is computed, once more.
  if (news.accepted && IsBeamSearch(generation_.sampling)) share_.Release();
  flow_.News(std::move(news), services_.clock.Now());
  Pump();
}

void RequestDriver::OnWorkerLost(WorkerId worker, const absl::Status& why) {
  if (finished_) return;
  if (trail_) trail_->Lost(services_.workers.NameOf(worker), std::string(why.message()));
  flow_.WorkerLost(worker, why, services_.clock.Now());
  Pump();
}

void RequestDriver::OnAnswer(const LegKey& key, LegAnswer answer) {
  if (finished_ || !flow_.IsCurrent(key)) return;
  std::visit([&](auto& one) { Take(key, std::move(one)); }, answer);
  Pump();
}

void RequestDriver::Take(const LegKey& key, ReserveResult result) {
  if (result.status.ok()) stages_.Reserved(services_.clock.Now());
  if (trail_ && result.status.ok()) trail_->Reserved(result.grant.cached_tokens);
  flow_.Reserved(key, result, services_.clock.Now());
}

void RequestDriver::Take(const LegKey& key, PrefillPiece piece) {
  flow_.PrefillPiece(key, std::move(piece.prompt_logprobs), services_.clock.Now());
}

void RequestDriver::Take(const LegKey& key, PrefillResult result) {
  if (result.status.ok()) {
    stages_.Prefilled(result.timings);
    if (trail_) trail_->Prefilled(result.timings);
  }
  prefill_load_.Release();
  const bool scores = generation_.sampling.prompt_logprobs.has_value();
  flow_.PrefillEnded(key, std::move(result), scores, services_.clock.Now());
}

// Carrying out an action can cause events, whose actions come after those already here.
void RequestDriver::Pump() {
  if (std::exchange(pumping_, true)) return;
  auto self = shared_from_this();  // Finish drops the sink, which may hold the last reference
  while (flow_.TakeActions(actions_)) {
    for (FlowAction& action : actions_) {
      if (finished_) break;
      std::visit([this](auto& one) { Do(std::move(one)); }, action);
    }
  }
  pumping_ = false;
}

/// Whether the request holds a share of the retry budget, or one is free.
bool RequestDriver::TakeShare() {
  if (!share_) {
    if (auto share = services_.budget.TryTake()) share_ = *std::move(share);
  }
  return static_cast<bool>(share_);
}

/// Goes on with `then` as soon as the request holds a share of the retry budget. An earlier `then` that still
/// waits is dropped, but the request keeps its place in the line: with two places it would hold one share and wait for
/// another.
void RequestDriver::WithShare(void (RequestDriver::*then)()) {
  with_share_ = then;
  if (TakeShare()) return (this->*std::exchange(with_share_, nullptr))();
  if (std::exchange(waits_for_share_, true)) return;
  services_.budget.Wait(loop_, [weak = weak_from_this()](RetryBudget::Share share) {
    auto self = weak.lock();
    if (!self || self->finished_) return;
    self->waits_for_share_ = false;
    const auto then = std::exchange(self->with_share_, nullptr);
    if (then == nullptr) return;
    self->share_ = std::move(share);
    ((*self).*then)();
    self->Pump();
  });
}

void RequestDriver::Do(PickWorker action) {
  load_.Release();
  prefill_load_.Release();
  with_share_ = nullptr;
  if (!action.again) {
    share_.Release();
    return ChooseWorker();
  }
  // A full worker computed nothing, so there is nothing to wait for: its answer is the client's.
  if (flow_.last_was_full() && !TakeShare()) {
    return flow_.NoWorker(absl::UnavailableError("the retry budget is spent (--retry-budget)"), 1000, false,
                          services_.clock.Now());
  }
  WithShare(&RequestDriver::ChooseWorker);
}

/// `why`: the options, as they were before the choice.
void RequestDriver::NotePlacement(const RoutedTo& place, const std::string& why) const {
  if (trail_) {
    trail_->Placed(place, services_.workers.NameOf(place.worker),
                   place.prefill ? services_.workers.NameOf(place.prefill->worker) : "", flow_.attempts() + 1, why);
  }
  if (!IsLogged(LogLevel::kDebug)) return;
  LogDebug("request {}: {} tokens of prompt, {} of them cached, to {}{}", generation_.request_id,
           generation_.prompt.size(), place.predicted_cached_tokens, services_.workers.NameOf(place.worker),
           place.prefill ? StrCat(", computed by ", services_.workers.NameOf(place.prefill->worker)) : "");
}

void RequestDriver::ChooseWorker() {
  const TimePoint now = services_.clock.Now();
  const std::string why = trail_ ? trail_->Why(generation_) : "";
  absl::StatusOr<RoutedTo> place =
      services_.workers.Choose(generation_, flow_.tokens_to_prefill(), flow_.excluded(),
                               /*with_prefill=*/!flow_.started_output(), flow_.started_output() ? numerics_ : "");
  if (!place.ok()) {
    share_.Release();
    if (trail_) trail_->Waits(std::string(place.status().message()));
    return flow_.NoWorker(place.status(), 1000, services_.workers.MayComeBack(flow_.last_was_unavailable()), now);
  }
  const auto most_ms = static_cast<double>(services_.config.max_predicted_ttft_ms);
  if (most_ms > 0 && place->predicted_ttft_ms > most_ms && !placed_) {
    const auto ms = static_cast<int64_t>(place->predicted_ttft_ms);
    too_late_ = Overloaded(StrCat("the first token is predicted in ", ms, " ms, the limit is ", most_ms, " ms"),
                           Overload{services_.admission.running(), ms, "--max-predicted-ttft-ms"});
    return flow_.NoWorker(absl::ResourceExhaustedError(too_late_->message), 1000, /*soon=*/false, now);
  }
  placed_ = true;
  load_ = std::move(place->ticket);
  predicted_cached_tokens_ = place->predicted_cached_tokens;
  NotePlacement(*place, why);
  if (!place->prefill) return flow_.WorkerChosen(place->worker, now);
  prefill_load_ = std::move(place->prefill->ticket);
  flow_.PairChosen(place->prefill->worker, place->worker, place->local_prefill_tokens, now);
}

/// Another prefill leg computes the prompt again, like any other retry.
void RequestDriver::Do(PickPrefill) { WithShare(&RequestDriver::ChoosePrefill); }

void RequestDriver::ChoosePrefill() {
  absl::StatusOr<RoutedTo> place =
      services_.workers.ChoosePrefill(generation_, flow_.excluded_prefill(), decode_worker_);
  if (place.ok()) prefill_load_ = std::move(place->ticket);
  flow_.PrefillChosen(place.ok() ? std::optional(place->worker) : std::nullopt, services_.clock.Now());
}

void RequestDriver::Do(SendTo action) {
  if (const auto* reserve = std::get_if<ReserveLeg>(&action.order)) Prepare(action.worker, *reserve);
  if (const auto* prefill = std::get_if<PrefillLeg>(&action.order)) Prepare(action.worker, *prefill);
  if (const auto* attach = std::get_if<AttachLeg>(&action.order)) Prepare(action.worker, *attach);
  services_.workers.Send(action.worker, generation_, action.order, shared_from_this());
}

void RequestDriver::Prepare(WorkerId worker, const ReserveLeg&) {
  stages_.Ordered(flow_.attempts(), services_.clock.Now());
  decode_worker_ = worker;
  if (trail_) trail_->Reserving(services_.workers.NameOf(worker));
}

void RequestDriver::Prepare(WorkerId worker, const PrefillLeg&) {
  prompt_logprobs_.clear();
  prefill_worker_ = worker;
  if (trail_) trail_->Prefill(services_.workers.NameOf(worker));
}

void RequestDriver::Prepare(WorkerId worker, const AttachLeg& leg) {
  if (leg.choices.empty() && leg.first.empty())
    prompt_logprobs_.clear();  // a leg lost halfway through the scores sent some; this one sends all
  if (IsBeamSearch(generation_.sampling) && !leg.first.empty()) TookPart(prefill_worker_);  // its candidates
  attached_worker_ = worker;
  const TimePoint now = services_.clock.Now();
  stages_.Ordered(flow_.attempts(), now);
  stages_.Attached(now);
  if (!trail_) return;
  if (leg.grant != nullptr && !leg.first.empty()) {
    const auto tokens = static_cast<int64_t>(generation_.prompt.size()) - leg.grant->cached_tokens;
    trail_->Transfer(services_.workers.PathOf(prefill_worker_, worker), tokens);
  } else {
    trail_->Attached(services_.workers.NameOf(worker));
  }
}

/// Notes the numerics of a worker whose results are in the answer.
void RequestDriver::TookPart(WorkerId worker) {
  if (PlantedBug("every worker counts as alike")) return;
  const std::string numerics = services_.workers.NumericsOf(worker);
  if (numerics.empty()) return;
  if (numerics_.empty()) numerics_ = numerics;
  mixed_numerics_ |= numerics != numerics_;
}

void RequestDriver::Do(Admitted action) {
  cached_tokens_ = action.cached_tokens;
  sink_->OnAdmitted(generation_, cached_tokens_);
}

void RequestDriver::TokenTimes(size_t tokens, uint32_t index) {
  const TimePoint now = services_.clock.Now();
  if (!stages_.first_token()) {
    stages_.FirstToken(now);
    load_.PrefillDone();
    services_.metrics.FirstToken(Seconds(now - arrived_));
    times_.first_ms = Milliseconds(now - arrived_);
    if (trail_) trail_->FirstToken();
  }
  TimePoint& last = last_token_[index];
  if (last != TimePoint{}) {
    services_.metrics.InterToken(Seconds(now - last) / static_cast<double>(tokens));
    times_.gaps_ms += Milliseconds(now - last);
  }
  times_.gaps += static_cast<int64_t>(tokens) - (last == TimePoint{} ? 1 : 0);
  times_.last_ms = Milliseconds(now - arrived_);
  last = now;
}

void RequestDriver::Do(EmitTokens&& action) {
  ChoiceText& text = texts_[action.index];
  if (text.stopped()) return;
  TokenTimes(action.token_ids.size(), action.index);
  TookPart(action.drawn_by);
  if (!PlantedBug("retry budget held to the end")) share_.Release();
  ChoiceDelta delta{action.index, {}, {}, std::move(action.token_ids), std::move(action.logprobs)};
  uint32_t emitted = 0;
  for (; emitted < delta.token_ids.size() && !text.stopped(); ++emitted) {
    const bool is_stop_token = action.last_is_stop_token && emitted + 1 == delta.token_ids.size();
    const ChoiceText::Shown shown =
        text.Append(delta.token_ids[emitted], !is_stop_token || generation_.include_stop_str_in_output);
    delta.text += shown.text;
    delta.thoughts += shown.thoughts;
    if (!delta.logprobs.empty()) delta.text_ends.push_back(delta.text.size());
  }
  if (trail_) trail_->Tokens(Usage().completion_tokens);
  delta.thought_tokens = text.thought_tokens().value_or(0);
  delta.may_be_thoughts = text.may_be_thoughts();
  delta.token_ids.resize(emitted);
  if (delta.logprobs.size() > emitted) delta.logprobs.resize(emitted);
  sink_->OnDelta(std::move(delta), Usage());
  if (text.stopped()) return flow_.ChoiceStopped(action.index);
  if (sink_->UnsentBytes() > static_cast<size_t>(services_.config.write_buffer_bytes)) {
    withheld_[action.index] += emitted;
    if (!std::exchange(withholds_, true)) StandStill();
  } else {
    flow_.Consumed(action.index, emitted);
  }
}

void RequestDriver::Do(EmitPromptLogprobs action) {
  prompt_logprobs_ += action.piece;
  if (action.last) sink_->OnPromptLogprobs(DecodePromptLogprobs(std::exchange(prompt_logprobs_, {})));
}

void RequestDriver::Do(EndChoice action) {
  ChoiceText& text = texts_[action.index];
  ChoiceText::Shown tail = text.Finish();
  if (!tail.text.empty() || !tail.thoughts.empty())
    sink_->OnDelta(ChoiceDelta{action.index, std::move(tail.text), std::move(tail.thoughts)}, Usage());
  ChoiceFinish finish{action.index, action.reason};
  if (text.stopped()) {
    finish.reason = FinishReason::kStop;
    finish.stop_string = text.stop_string();
  } else if (action.stop_token_id) {
    const auto& asked = generation_.sampling.stop_token_ids;
    if (std::find(asked.begin(), asked.end(), *action.stop_token_id) != asked.end())
      finish.stop_token_id = action.stop_token_id;
  } else {
    finish.nothing_allowed = action.nothing_allowed;
  }
  sink_->OnChoiceEnd(finish);
  if (finish.reason == FinishReason::kLength) reason_ = "length";
}

// The request is over before the sink hears of it: a call of the sink from there (ClientGone) changes nothing.
void RequestDriver::Do(Complete) {
  const auto sink = sink_;
  Finish(reason_);
  sink->OnDone(RequestSummary{Usage(), stages_.Stages(), times_, mixed_numerics_});
}

void RequestDriver::Do(Fail action) {
  ApiError error = too_late_ ? *too_late_ : FromStatus(action.status, action.retry_after_ms, action.queue_ms);
  // A worker that took the request and died is a bad gateway; that there was none to take it is "unavailable".
  if (action.worker_lost) {
    error.http_status = 502;
    error.code = "worker_lost";
  }
  if (!services_.config.log_requests) LogWarning("request {} failed: {}", generation_.request_id, error.message);
  const auto sink = sink_;
  Finish("error", error.message);
  sink->OnFailed(error);
}

void RequestDriver::Do(ArmTimer action) {
  timer_->ArmAt(action.at, [weak = weak_from_this()] {
    auto self = weak.lock();
    if (!self || self->finished_) return;
    self->flow_.Timer(self->services_.clock.Now());
    self->Pump();
  });
}

RequestUsage RequestDriver::Usage() const {
  RequestUsage usage{static_cast<int64_t>(generation_.prompt.size()), 0, cached_tokens_};
  for (const ChoiceText& text : texts_) {
    usage.completion_tokens += text.tokens();
    if (text.thought_tokens()) usage.thought_tokens = usage.thought_tokens.value_or(0) + *text.thought_tokens();
  }
  return usage;
}

void RequestDriver::Finish(const char* reason, std::string_view error) {
  if (std::exchange(finished_, true)) return;
  const Duration took = services_.clock.Now() - arrived_;
  timer_->Cancel();
  load_.Release();
  prefill_load_.Release();
  share_.Release();
  if (flow_.worker().index >= 0) {
    services_.workers.Forget(flow_.worker(), flow_.LegId(std::nullopt));
    for (uint32_t i = 0; flow_.separate_legs() && i < texts_.size(); ++i) {
      services_.workers.Forget(flow_.worker(), flow_.LegId(i));
    }
  }
  const RequestUsage usage = Usage();
  FinishedRequest done{reason, usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens,
                       predicted_cached_tokens_};
  done.thought_tokens = usage.thought_tokens.value_or(0);
  for (const ChoiceText& text : texts_)
    done.longest_choice_tokens = std::max<int64_t>(done.longest_choice_tokens, text.tokens());
  done.max_tokens = generation_.sampling.max_tokens.value_or(0);
  done.n = static_cast<int64_t>(texts_.size());
  done.e2e_s = Seconds(took);
  if (const StageTimings stages = stages_.Stages(); stages.prefill_ms > 0) {
    done.queue_s = (stages.queue_prefill_ms + stages.queue_decode_ms) / 1000;
    done.prefill_s = stages.prefill_ms / 1000;
    done.decode_s = stages.decode_ms / 1000;
    done.stages = stages;
    if (stages_.computed_by_prefill())
      services_.workers.NoteHandoff(Milliseconds(stages_.reserve()) + stages.transfer_ms);
  }
  if (stages_.first_token() && usage.completion_tokens > done.n) {
    done.time_per_output_token_s = Seconds(services_.clock.Now() - *stages_.first_token()) *
                                   static_cast<double>(done.n) / static_cast<double>(usage.completion_tokens - done.n);
  }
  done.migrations = flow_.migrations();
  done.retries = flow_.retries();
  if (account_ != nullptr) account_->TakeCompletion(usage.completion_tokens, services_.clock.Now());
  services_.metrics.Finished(done);
  services_.admission.Finished(took);
  if (services_.config.log_requests) Log(reason, error, Seconds(took));
  if (services_.traces != nullptr) Trace(reason, error, took);
  if (trail_) EndTrail(reason, error);
  still_ = {};
  sink_.reset();
  tickets_.clear();
}

}  // namespace baton::router
