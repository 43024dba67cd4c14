// A request on a pair of workers, from its reservation on the decode worker to the Attach of its ticket there.
#include <algorithm>
#include <utility>

#include "common/planted_bug.h"
#include "common/str_cat.h"
#include "proto/order_limits.h"
#include "router/request/request_flow.h"

namespace baton::router {
namespace {

/// The life of a ticket until it is attached, for a request without a deadline: the ticket's lease ends it before.
constexpr uint32_t kExpiryMs = kMostExpiryMs;

}  // namespace

void RequestFlow::PairChosen(WorkerId prefill, WorkerId decode, uint32_t local_prefill_tokens, TimePoint now) {
  if (state_ != State::kPicking) return;
  local_prefill_tokens_ = local_prefill_tokens;
  worker_ = decode;
  prefill_ = prefill;
  wait_until_.reset();
  NextAttempt();
  epoch_ = 0;
  ticket_ = true;
  state_ = State::kReserving;
  const uint32_t left = RemainingMs(now);
  Send(worker_, ReserveLeg{{request_id_, attempt_, 0}, left > 0 ? std::min(left, kExpiryMs) : kExpiryMs});
  Arm(now);
}

bool RequestFlow::IsCurrent(const LegKey& key) const {
  if (PlantedBug("stale answer taken")) return true;
  return key.attempt == attempt_ && (key.epoch == 0 ? state_ == State::kReserving : OfPrefillLeg(key));
}

void RequestFlow::Reserved(const LegKey& key, const ReserveResult& result, TimePoint now) {
  if (state_ != State::kReserving || !IsCurrent(key)) return;
  if (!result.status.ok()) {
    ticket_ = false;
    Fail failure{result.status, result.retry_after_ms, result.queue_ms};
    if (absl::IsAborted(result.status)) return TryLapsed(result.status, now);
    if (awaits_room_ && absl::IsResourceExhausted(result.status)) return TryWhereRoomIs(failure, now);
    if (WorthRetrying(result.status.code())) return TryElsewhere(failure, now);
    return FailWith(std::move(failure));
  }
  grant_ = result.grant;
  if (prompt_len_ <= grant_.cached_tokens + local_prefill_tokens_) return AttachTicket({}, now);
  SendPrefill(now);
}

void RequestFlow::SendPrefill(TimePoint now) {
  if (epoch_ == 0 || !PlantedBug("reuse epoch number")) ++epoch_;
  state_ = State::kPrefilling;
  Send(prefill_, PrefillLeg{{request_id_, attempt_, epoch_}, &grant_, RemainingMs(now)});
}

/// An answer of the leg that runs; not of one that was given up while another worker is looked for.
bool RequestFlow::OfPrefillLeg(const LegKey& key) const {
  return state_ == State::kPrefilling && prefill_.index >= 0 && key.attempt == attempt_ && key.epoch == epoch_;
}

void RequestFlow::PrefillPiece(const LegKey& key, std::string prompt_logprobs, TimePoint now) {
  if (!OfPrefillLeg(key)) return;
  last_news_ = now;
  actions_.emplace_back(EmitPromptLogprobs{std::move(prompt_logprobs), false});
}

void RequestFlow::PrefillEnded(const LegKey& key, PrefillResult result, bool scores_wanted, TimePoint now) {
  if (!OfPrefillLeg(key)) return;
  last_news_ = now;
  const size_t expected = limits_.whole ? 1 : choices_.size();
  if (result.status.ok() && result.first.size() != expected) {
    result.status = absl::InternalError(
        StrCat("the prefill worker sent ", result.first.size(), " first tokens for ", expected, " choices"));
  }
  if (!result.status.ok()) {
    const Fail failure{result.status, 0, 0};
    if (result.no_room) return TryWhereRoomIs(failure, now);
    if (absl::IsAborted(result.status)) return TryLapsed(result.status, now);
    const auto code = result.status.code();
    if (code == absl::StatusCode::kInvalidArgument || code == absl::StatusCode::kDeadlineExceeded) {
      CancelLegs();
      return FailWith(awaits_room_ && absl::IsDeadlineExceeded(result.status) ? last_failure_ : failure);
    }
    EndPrefillLeg();
    if (static_cast<int32_t>(epoch_) >= limits_.max_attempts) return AttachTicket({}, now);
    excluded_prefill_.push_back(prefill_);
    prefill_ = WorkerId{};
    actions_.emplace_back(PickPrefill{});
    return;
  }
  if (!admitted_) {
    admitted_ = true;
    actions_.emplace_back(Admitted{result.cached_tokens});
  }
  if (scores_wanted && !std::exchange(prompt_logprobs_done_, true)) actions_.emplace_back(EmitPromptLogprobs{"", true});
  if (limits_.whole) return AttachTicket(std::move(result.first), now);
  const bool over = std::all_of(result.first.begin(), result.first.end(),
                                [](const FirstToken& f) { return f.finish != FinishReason::kNone; });
  if (over) Send(worker_, CancelLeg{{request_id_, attempt_, 0}});  // nothing follows Complete
  for (const FirstToken& first : result.first) TakeFirst(first);
  if (state_ != State::kDone) AttachTicket(std::move(result.first), now);
}

void RequestFlow::TakeFirst(FirstToken first) {
  if (first.index >= choices_.size() || choices_[first.index].ended) return;
  const EndChoice end{first.index, first.finish, first.stop_token_id, first.nothing_allowed};
  if (first.nothing_allowed) return End(end);
  choices_[first.index].output.push_back(first.token_id);
  std::vector<PositionLogprobs> logprobs;
  if (first.logprobs) logprobs.push_back(*std::move(first.logprobs));
  const bool stop_token = IsStopToken(first.token_id, first);
  actions_.emplace_back(EmitTokens{first.index, {first.token_id}, std::move(logprobs), stop_token, prefill_});
  if (first.finish != FinishReason::kNone) End(end);
}

void RequestFlow::PrefillChosen(std::optional<WorkerId> prefill, TimePoint now) {
  if (state_ != State::kPrefilling || prefill_.index >= 0) return;
  if (!prefill) return AttachTicket({}, now);
  prefill_ = *prefill;
  ++retries_;
  SendPrefill(now);
}

/// All choices on the ticket's worker: with the KV of the prefill leg that drew `first`, or without one.
void RequestFlow::AttachTicket(std::vector<FirstToken> first, TimePoint now) {
  awaits_room_ = false;
  state_ = first.empty() || limits_.whole ? State::kAttached : State::kStreaming;
  shared_leg_left_ = false;
  const uint64_t gen = ++last_attach_gen_;
  for (Choice& c : choices_) {
    c.attach_gen = gen;
    c.own_leg = false;
    c.consumed = 0;
    c.credit = limits_.credit_tokens;
  }
  AttachLeg leg = AttachLegOf(std::nullopt, gen, now);
  leg.grant = &grant_;
  if (!first.empty()) {
    if (!limits_.whole) ++leg.position;
    leg.epoch = epoch_;
    leg.first = std::move(first);
  }
  SendAttach(std::move(leg));
  Arm(now);
}

void RequestFlow::EndPrefillLeg() {
  if (epoch_ > 0 && prefill_.index >= 0) Send(prefill_, CancelLeg{{request_id_, attempt_, epoch_}});
}

}  // namespace baton::router
