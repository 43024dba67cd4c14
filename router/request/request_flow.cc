#include "router/request/request_flow.h"

#include <algorithm>
#include <utility>

#include "common/str_cat.h"
#include "proto/order_limits.h"

namespace baton::router {
namespace {

constexpr int kMostLapses = 8;  // without a token between them
constexpr Duration kWaitPoll = std::chrono::milliseconds(20);
constexpr Duration kExcludedFor = std::chrono::seconds(1);  // when no other worker can take the request

}  // namespace

RequestFlow::RequestFlow(std::string request_id, uint32_t prompt_len, uint32_t choices, const FlowLimits& limits,
                         TimePoint now)
    : request_id_(std::move(request_id)), prompt_len_(prompt_len), limits_(limits), choices_(choices), last_news_(now) {
  if (limits.first_token_timeout.count() > 0 && !limits.whole) first_deadline_ = now + limits.first_token_timeout;
  if (limits.total_timeout.count() > 0) total_deadline_ = now + limits.total_timeout;
}

bool RequestFlow::WorthRetrying(absl::StatusCode code) {
  return code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kResourceExhausted ||
         code == absl::StatusCode::kDataLoss;
}

void RequestFlow::Start() {
  Arm(last_news_);
  actions_.emplace_back(PickWorker{});
}

std::string RequestFlow::LegId(std::optional<uint32_t> only_choice) const {
  return only_choice && choices_.size() > 1 ? StrCat(request_id_, "#", *only_choice) : request_id_;
}

bool RequestFlow::started_output() const {
  if (limits_.whole) return false;
  return std::any_of(choices_.begin(), choices_.end(), [](const Choice& c) { return !c.output.empty() || c.ended; });
}

bool RequestFlow::last_was_full() const { return failed_before_ && absl::IsResourceExhausted(last_failure_.status); }

bool RequestFlow::last_was_unavailable() const { return failed_before_ && absl::IsUnavailable(last_failure_.status); }

bool RequestFlow::separate_legs() const {
  return choices_.size() > 1 &&
         std::any_of(choices_.begin(), choices_.end(), [](const Choice& c) { return c.own_leg; });
}

uint32_t RequestFlow::tokens_to_prefill() const {
  size_t longest = 0;
  for (const Choice& c : choices_) {
    if (!c.ended) longest = std::max(longest, c.output.size());
  }
  return prompt_len_ + static_cast<uint32_t>(longest);
}

void RequestFlow::Send(WorkerId worker, LegOrder order) { actions_.emplace_back(SendTo{worker, std::move(order)}); }

/// An Attach from our position on: of all choices, or of one of them with its output so far.
AttachLeg RequestFlow::AttachLegOf(std::optional<uint32_t> only_choice, uint64_t attach_gen, TimePoint now) const {
  AttachLeg leg{.leg_id = LegId(only_choice), .attempt = attempt_, .attach_gen = attach_gen, .position = prompt_len_};
  leg.credit_tokens = limits_.credit_tokens;
  leg.deadline_ms = RemainingMs(now);
  if (only_choice) {
    leg.choices = {*only_choice};
    leg.output = &choices_[*only_choice].output;
    leg.position += leg.output->size();
  }
  return leg;
}

void RequestFlow::SendAttach(AttachLeg leg) {
  leg_has_tokens_ = !leg.first.empty() && !limits_.whole;
  Send(worker_, std::move(leg));
}

/// The rest of the request's total time; 0: none, or longer than workers are told of.
uint32_t RequestFlow::RemainingMs(TimePoint now) const {
  if (!total_deadline_) return 0;
  const double left = Milliseconds(*total_deadline_ - now);
  return left > kMostDeadlineMs ? 0 : static_cast<uint32_t>(std::max(1.0, left));
}

void RequestFlow::WorkerChosen(WorkerId worker, TimePoint now) {
  if (state_ != State::kPicking) return;
  worker_ = worker;
  wait_until_.reset();
  Attach(now);
}

void RequestFlow::NextAttempt() {
  if (++attempt_ > 1 && !started_output() && !awaits_room_) ++retries_;
}

void RequestFlow::Attach(TimePoint now) {
  NextAttempt();
  awaits_room_ = false;
  state_ = started_output() ? State::kStreaming : State::kAttached;
  if (!started_output()) {
    const uint64_t gen = ++last_attach_gen_;
    shared_leg_left_ = false;
    for (Choice& c : choices_) {
      c.attach_gen = gen;
      c.own_leg = false;
      c.consumed = 0;
      c.credit = limits_.credit_tokens;
    }
    SendAttach(AttachLegOf(std::nullopt, gen, now));
    return Arm(now);
  }
  ++migrations_;
  for (uint32_t i = 0; i < choices_.size(); ++i) {
    Choice& c = choices_[i];
    if (c.ended) continue;
    c.attach_gen = ++last_attach_gen_;
    c.own_leg = true;
    c.consumed = 0;
    c.credit = limits_.credit_tokens;
    SendAttach(AttachLegOf(i, c.attach_gen, now));
  }
  Arm(now);
}

void RequestFlow::NoWorker(const absl::Status& status, uint32_t retry_after_ms, bool soon, TimePoint now) {
  if (state_ != State::kPicking) return;
  if (!full_.empty()) {  // nobody else: those are asked again
    std::erase_if(excluded_, [this](WorkerId id) { return std::ranges::find(full_, id) != full_.end(); });
    full_.clear();
    state_ = State::kWaiting;
    return Arm(now);
  }
  const bool refused = failed_before_ && !awaits_room_;
  if (refused && !last_was_unavailable()) soon = false;  // a full worker's answer is the client's at once
  if (soon && limits_.failover_wait.count() > 0) {
    if (!wait_until_) wait_until_ = now + limits_.failover_wait;
    if (now < *wait_until_) {
      state_ = State::kWaiting;
      return Arm(now);
    }
  }
  if (refused) return FailWith(last_failure_);
  FailWith(Fail{status, retry_after_ms, 0});
}

void RequestFlow::News(RelayNews news, TimePoint now) {
  if (state_ != State::kAttached && state_ != State::kStreaming) return;
  if (news.index >= choices_.size()) return;
  Choice& choice = choices_[news.index];
  if (news.attach_gen != choice.attach_gen) return;
  last_news_ = now;
  if (news.finish == FinishReason::kError || news.finish == FinishReason::kAbort) {
    if (choice.ended) return;
    return Refused(news, now);
  }
  if (news.accepted && !admitted_) {
    admitted_ = true;
    actions_.emplace_back(Admitted{news.cached_tokens});
  }
  if (!prompt_logprobs_done_ && (!news.prompt_logprobs.empty() || news.prompt_logprobs_last)) {
    prompt_logprobs_done_ = news.prompt_logprobs_last;
    actions_.emplace_back(EmitPromptLogprobs{std::move(news.prompt_logprobs), news.prompt_logprobs_last});
  }
  if (choice.ended) return;
  if (!news.token_ids.empty() || news.finish != FinishReason::kNone) {
    const uint64_t expected = prompt_len_ + choice.output.size();
    if (news.position + news.token_ids.size() <= expected && news.finish == FinishReason::kNone) return;  // said twice
    if (news.position != expected) {
      return AttachAgain(news.index, StrCat("worker sent token position ", news.position, ", expected ", expected),
                         now);
    }
  }
  if (!news.token_ids.empty()) {
    state_ = State::kStreaming;
    lapses_ = 0;
    choice.output.insert(choice.output.end(), news.token_ids.begin(), news.token_ids.end());
    const auto count = static_cast<uint32_t>(news.token_ids.size());
    choice.credit -= std::min(choice.credit, count);
    const bool stop_token = IsStopToken(news.token_ids.back(), news);
    (limits_.whole ? held_ : actions_)
        .emplace_back(EmitTokens{news.index, std::move(news.token_ids), std::move(news.logprobs), stop_token, worker_});
    if (limits_.whole) Consumed(news.index, count);
    if (!std::exchange(leg_has_tokens_, true)) Arm(now);
  }
  if (news.finish == FinishReason::kNone) return;
  End({news.index, news.finish, news.stop_token_id, news.nothing_allowed});
  if (state_ != State::kDone && shared_leg_left_ && !choice.own_leg && !OthersOnSharedLeg(news.index))
    Send(worker_, CancelAttached{LegId(std::nullopt), choice.attach_gen, std::nullopt});
}

/// A message between the worker and us was lost. The worker is there, and so is its ticket: it continues from our
/// position.
void RequestFlow::AttachAgain(uint32_t index, const std::string& why, TimePoint now) {
  if (!started_output() || ++attached_again_ > limits_.max_attempts)
    return TryElsewhere(Fail{absl::InternalError(why), 0, 0}, now);
  Choice& c = choices_[index];
  if (choices_.size() > 1 && !c.own_leg) LeaveSharedLeg(index);
  c.own_leg = true;
  c.attach_gen = ++last_attach_gen_;
  c.consumed = 0;
  c.credit = limits_.credit_tokens;
  AttachLeg leg = AttachLegOf(index, c.attach_gen, now);
  if (ticket_ && choices_.size() == 1) {
    leg.grant = &grant_;
    leg.epoch = epoch_;
  }
  SendAttach(std::move(leg));
  Arm(now);
}

void RequestFlow::Refused(const RelayNews& news, TimePoint now) {
  Fail failure{news.error, news.retry_after_ms, news.queue_ms};
  if (news.finish == FinishReason::kAbort) failure.status = absl::UnavailableError("the worker aborted the request");
  if (failure.status.ok()) failure.status = absl::InternalError("the worker reported an error without a message");
  if (absl::IsAborted(failure.status)) return TryLapsed(failure.status, now);
  if (!WorthRetrying(failure.status.code())) {
    CancelLegs();
    return FailWith(std::move(failure));
  }
  TryElsewhere(failure, now);
}

void RequestFlow::WorkerLost(WorkerId worker, const absl::Status& why, TimePoint now) {
  if (worker != worker_ || state_ == State::kPicking || state_ == State::kWaiting || state_ == State::kDone) return;
  if (absl::IsCancelled(why)) return FailWith(Fail{absl::UnavailableError(why.message()), 1000, 0});
  const bool before = !started_output();
  TryElsewhere(Fail{absl::UnavailableError(StrCat("the worker was lost ",
                                                  before ? "before the first token" : "in the middle of the answer",
                                                  ": ", why.message())),
                    1000, 0, true},
               now);
}

// The current legs are given up; another worker continues, or the request fails with `failure`.
void RequestFlow::TryElsewhere(const Fail& failure, TimePoint now) {
  LeaveWorker(failure, now);
  awaits_room_ = false;
  if (static_cast<int32_t>(attempt_ - free_attempts_) >= limits_.max_attempts) return FailWith(failure);
  actions_.emplace_back(PickWorker{true});
}

// This router stood still for longer than workers keep what nobody renews. No worker failed: none is excluded, and it
// is no attempt. It stands still a few times at most: a worker that says so again and again is at fault itself.
void RequestFlow::TryLapsed(const absl::Status& why, TimePoint now) {
  if (++lapses_ > kMostLapses) {
    return TryElsewhere(Fail{absl::UnavailableError(StrCat("said ", lapses_, " times, at most ", kMostLapses,
                                                           " are believed: ", why.message())),
                             1000, 0, true},
                        now);
  }
  const WorkerId kept = worker_;
  LeaveWorker(Fail{absl::UnavailableError(why.message()), 1000, 0, true}, now);
  std::erase(excluded_, kept);
  awaits_room_ = false;
  ++free_attempts_;
  actions_.emplace_back(PickWorker{true});
}

// A full decode worker is a queue. Another worker is asked, else the same one again, for as long as the request may
// take: no worker failed, so this is no attempt and costs no budget. The computed prompt is in the prefill worker's
// cache.
void RequestFlow::TryWhereRoomIs(const Fail& failure, TimePoint now) {
  full_.push_back(worker_);
  LeaveWorker(failure, now, /*asks_again=*/true);
  awaits_room_ = true;
  ++free_attempts_;
  actions_.emplace_back(PickWorker{false});
}

void RequestFlow::LeaveWorker(const Fail& failure, TimePoint now, bool asks_again) {
  CancelLegs(asks_again);
  excluded_.push_back(worker_);
  worker_ = prefill_ = WorkerId{};
  last_failure_ = failure;
  failed_before_ = true;
  failed_at_ = now;
  held_.clear();
  for (Choice& c : choices_) {
    c.attach_gen = 0;
    if (!limits_.whole) continue;
    c.output.clear();
    c.ended = false;
  }
  state_ = State::kPicking;
  Arm(now);
}

void RequestFlow::CancelLegs(bool asks_again) {
  if (std::exchange(ticket_, false)) {
    EndPrefillLeg();
    Send(worker_, CancelLeg{{request_id_, attempt_, 0}, asks_again});
  }
  uint64_t shared_gen = 0;
  for (uint32_t i = 0; i < choices_.size(); ++i) {
    const Choice& c = choices_[i];
    if (c.ended || c.attach_gen == 0) continue;
    if (c.own_leg) {
      Send(worker_, CancelAttached{LegId(i), c.attach_gen, std::nullopt});
    } else {
      shared_gen = c.attach_gen;
    }
  }
  if (shared_gen != 0) Send(worker_, CancelAttached{LegId(std::nullopt), shared_gen, std::nullopt});
}

bool RequestFlow::OthersOnSharedLeg(uint32_t index) const {
  for (uint32_t i = 0; i < choices_.size(); ++i) {
    const Choice& c = choices_[i];
    if (i != index && !c.ended && !c.own_leg && c.attach_gen != 0) return true;
  }
  return false;
}

/// The last choice cancels the whole leg: were the cancel of an earlier choice lost, the worker would keep that choice.
void RequestFlow::LeaveSharedLeg(uint32_t index) {
  const bool whole = shared_leg_left_ && !OthersOnSharedLeg(index);
  Send(worker_,
       CancelAttached{LegId(std::nullopt), choices_[index].attach_gen, whole ? std::nullopt : std::optional(index)});
  shared_leg_left_ = true;
}

void RequestFlow::End(const EndChoice& end) {
  choices_[end.index].ended = true;
  (limits_.whole ? held_ : actions_).emplace_back(end);
  if (std::all_of(choices_.begin(), choices_.end(), [](const Choice& c) { return c.ended; })) {
    state_ = State::kDone;
    std::move(held_.begin(), held_.end(), std::back_inserter(actions_));
    actions_.emplace_back(Complete{});
  }
}

void RequestFlow::ChoiceStopped(uint32_t index) {
  if (state_ == State::kDone || choices_[index].ended) return;
  const Choice& c = choices_[index];
  if (c.attach_gen != 0 && c.own_leg) {
    Send(worker_, CancelAttached{LegId(index), c.attach_gen, std::nullopt});
  } else if (c.attach_gen != 0) {
    LeaveSharedLeg(index);
  }
  if (state_ == State::kReserving || state_ == State::kPrefilling) CancelLegs();  // nothing follows Complete
  End({index, FinishReason::kStop});
}

void RequestFlow::Consumed(uint32_t index, uint32_t tokens) {
  Choice& c = choices_[index];
  if (state_ != State::kStreaming || c.ended || c.attach_gen == 0) return;
  c.consumed += tokens;
  if (c.consumed < std::max(1u, limits_.credit_tokens / 2)) return;
  c.credit += c.consumed;
  Send(worker_, GiveCredit{LegId(c.own_leg ? std::optional(index) : std::nullopt), c.attach_gen, index,
                           std::exchange(c.consumed, 0)});
}

// No choice may send: the client takes nothing, and the worker is not to blame.
bool RequestFlow::WaitsForClient() const {
  return state_ == State::kStreaming &&
         std::all_of(choices_.begin(), choices_.end(), [](const Choice& c) { return c.ended || c.credit == 0; });
}

void RequestFlow::ClientGone() {
  if (state_ == State::kDone) return;
  if (state_ != State::kPicking && state_ != State::kWaiting) CancelLegs();
  state_ = State::kDone;
}

void RequestFlow::FailWith(Fail failure) {
  if (state_ == State::kDone) return;
  state_ = State::kDone;
  actions_.emplace_back(std::move(failure));
}

void RequestFlow::Timer(TimePoint now) {
  if (state_ == State::kDone) return;
  const bool running = state_ != State::kPicking && state_ != State::kWaiting;
  std::string over;
  if (total_deadline_ && now >= *total_deadline_) {
    over = "the request's total time is over";
  } else if (first_deadline_ && state_ != State::kStreaming && !started_output() && now >= *first_deadline_) {
    over = StrCat("no token within ", Milliseconds(limits_.first_token_timeout), " ms (--first-token-timeout-ms)");
  }
  if (!over.empty()) {
    if (running) CancelLegs();
    if (!awaits_room_) return FailWith(Fail{absl::DeadlineExceededError(over), 0, 0});
    return FailWith(
        Fail{absl::ResourceExhaustedError(StrCat(over, ", and ", last_failure_.status.message())), 1000, 0});
  }
  if (WaitsForClient()) last_news_ = now;
  if (IdleCounts() && now - last_news_ >= limits_.idle_token_timeout) {
    return TryElsewhere(
        Fail{absl::UnavailableError(StrCat("no token from the worker for ", Milliseconds(limits_.idle_token_timeout),
                                           " ms (--idle-token-timeout-ms)")),
             0, 0, true},
        now);
  }
  if (state_ == State::kWaiting) {
    state_ = State::kPicking;
    if (last_was_unavailable() && now - failed_at_ >= kExcludedFor) excluded_.clear();
    actions_.emplace_back(PickWorker{failed_before_ && !awaits_room_});
    return;
  }
  Arm(now);
}

/// The idle limit holds between two tokens of a leg. The time that a worker queues and computes before the first token
/// is judged by the link, by the worker's steps.
bool RequestFlow::IdleCounts() const {
  return state_ == State::kStreaming && leg_has_tokens_ && limits_.idle_token_timeout.count() > 0;
}

// The idle deadline moves with every token; the timer is armed for where it stands now and looks again then.
void RequestFlow::Arm(TimePoint now) {
  std::optional<TimePoint> at = total_deadline_;
  auto sooner = [&at](TimePoint t) { at = at ? std::min(*at, t) : t; };
  if (first_deadline_ && !started_output()) sooner(*first_deadline_);
  if (IdleCounts()) sooner(last_news_ + limits_.idle_token_timeout);
  if (state_ == State::kWaiting) sooner(now + kWaitPoll);
  if (at) actions_.emplace_back(ArmTimer{*at});
}

std::vector<FlowAction> RequestFlow::TakeActions() { return std::exchange(actions_, {}); }

bool RequestFlow::TakeActions(std::vector<FlowAction>& out) {
  out.clear();
  out.swap(actions_);
  return !out.empty();
}

}  // namespace baton::router
