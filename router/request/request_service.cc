#include "router/request/request_service.h"

#include <utility>

#include "common/str_cat.h"
#include "router/admission/key_account.h"
#include "router/request/best_of.h"
#include "router/request/grammar_check.h"

namespace baton::router {
namespace {

/// A client hears within a second whether its grammar can be followed.
constexpr Duration kGrammarPatience = std::chrono::milliseconds(800);

}  // namespace

void RequestHandle::ClientGone() {
  gone_ = true;
  if (call_) call_->ClientGone();
  call_.reset();
}

void RequestHandle::OutputDrained() {
  if (call_) call_->OutputDrained();
}

Readiness RequestService::ReadinessNow() const {
  if (services_.admission.draining()) {
    return Readiness{false, "draining", "", 0, StrCat(services_.admission.running(), " requests still run")};
  }
  return fleet_.ReadinessNow();
}

std::string RequestService::NameOf(const KeyAccount* owner) { return owner == nullptr ? "" : owner->name(); }

ApiError RequestService::PoolFull(const TextPool& pool) const {
  const auto queued = static_cast<int64_t>(pool.queued());
  return Overloaded(StrCat(queued, " texts wait to be tokenized, the limit is ", services_.config.tokenizer_queue,
                           ", half of it for one key"),
                    Overload{queued, services_.admission.PredictedWaitMs(), "--tokenizer-queue"});
}

// What thoughts and a grammar make together is another grammar, which nobody knows yet.
TextPool& RequestService::PoolOf(const RequestInput& input) const {
  const auto& grammar = input.sampling.grammar;
  const bool behind_thoughts = input.splits_thoughts && (grammar || input.thinking_budget);
  return behind_thoughts || (grammar && !services_.model.grammars->Knows(*grammar)) ? grammars_ : pool_;
}

std::shared_ptr<RequestHandle> RequestService::Submit(EventLoop& loop, RequestInput input,
                                                      std::shared_ptr<AnswerSink> sink) {
  auto handle = std::make_shared<RequestHandle>();
  std::unique_ptr<RequestTrail> trail;
  auto refuse = [&](const ApiError& error) {
    services_.metrics.Refused(error.code);
    if (trail) trail->End({.reason = "refused", .error = error.message});
    sink->OnFailed(error);
    return handle;
  };
  const TimePoint arrived = services_.clock.Now();
  if (services_.events != nullptr) trail = services_.events->Begin(input.request_id, arrived);
  auto place = services_.admission.Enter(input.connected, arrived, input.account);
  if (auto* error = std::get_if<ApiError>(&place)) return refuse(*error);
  const bool fcfs = services_.config.scheduling_policy == "fcfs";
  if (fcfs) input.priority = 0;
  if (input.account != nullptr) {
    if (const auto error = input.account->TakeRequest(arrived)) return refuse(*error);
    if (!fcfs) input.priority = input.account->Priority(input.priority);
    handle->account_ = input.account;
  }
  if (!ServesModel(services_.config, services_.model, input.model))
    return refuse(ModelNotFound(input.model, PublicModelNames(services_.config, services_.model)));
  auto facts = fleet_.model_facts();
  if (!facts) {
    const Readiness why = fleet_.ReadinessNow();
    return refuse(FromStatus(absl::UnavailableError(
        StrCat("No worker is ready yet: ",
               why.phase.empty() ? why.detail : StrCat(why.phase, " ", static_cast<int>(100 * why.progress), " %")))));
  }
  size_t bytes = TextBytes(input);
  if (bytes > kShortTextBytes && bytes <= kMostLookedAt && TakeSeen(services_.model, input.prompt, input.cache_salt))
    bytes = TextBytes(input);
  const KeyAccount* const owner = input.account;
  TextPool& pool = PoolOf(input);
  input.grammar_by = SteadyClock().Now() + kGrammarPatience;
  auto work = [this, handle, facts, input = std::move(input)]() mutable -> std::variant<PreparedRequest, ApiError> {
    if (handle->gone_) return FromStatus(absl::CancelledError("the client has left"));
    return Prepare(services_.model, *facts, services_.config, std::move(input));
  };
  auto then = [this, &loop, handle, arrived, place = std::move(std::get<AdmissionHold>(place)),
               trail = std::move(trail),
               sink = std::move(sink)](std::variant<PreparedRequest, ApiError> prepared) mutable {
    Begin(loop, handle, std::move(prepared), arrived, std::move(place), std::move(trail), std::move(sink));
  };
  RunText(pool, loop, bytes, owner, std::move(work), std::move(then));
  return handle;
}

void RequestService::Begin(EventLoop& loop, const std::shared_ptr<RequestHandle>& handle,
                           std::variant<PreparedRequest, ApiError> prepared, TimePoint arrived, AdmissionHold place,
                           std::unique_ptr<RequestTrail> trail, std::shared_ptr<AnswerSink> sink) {
  if (handle->gone_) return;
  auto refuse = [&](const ApiError& error) {
    services_.metrics.Refused(error.code.empty() ? "invalid" : error.code);
    if (trail) trail->End({.reason = "refused", .error = error.message});
    sink->OnFailed(error);
  };
  if (auto* error = std::get_if<ApiError>(&prepared)) return refuse(*error);
  auto& ready = std::get<PreparedRequest>(prepared);
  const auto tokens = static_cast<int64_t>(ready.generation.prompt.size());
  auto room = services_.admission.EnterTokens(tokens, services_.clock.Now(), handle->account_);
  if (auto* error = std::get_if<ApiError>(&room)) return refuse(*error);
  if (KeyAccount* account = handle->account_) {
    if (const auto error = account->TakePrompt(tokens, services_.clock.Now())) return refuse(*error);
  }
  std::vector<AdmissionHold> tickets;
  tickets.push_back(std::move(place));
  tickets.push_back(std::move(std::get<AdmissionHold>(room)));
  if (static_cast<size_t>(ready.answers) < ready.texts.size())
    sink = KeepLikeliest(std::move(sink), ready.answers, ready.shows_logprobs);
  handle->call_ = std::make_shared<RequestDriver>(services_, loop, std::move(ready.generation), std::move(ready.texts),
                                                  arrived, std::move(tickets), std::move(sink));
  handle->call_->ChargeTo(handle->account_);
  handle->call_->LeaveTrail(std::move(trail));
  handle->call_->Start();
}

}  // namespace baton::router
