#include "router/request/stage_clock.h"

#include <algorithm>
#include <utility>

namespace baton::router {

void StageClock::Ordered(uint32_t attempt, TimePoint now) {
  if (!first_order_) first_order_ = now;
  if (attempt_began_ && attempt == attempt_) return;
  attempt_ = attempt;
  attempt_began_ = now;
  reserve_ = Duration{};
}

void StageClock::Reserved(TimePoint now) {
  if (attempt_began_) reserve_ = now - *attempt_began_;
}

void StageClock::Prefilled(const StageTimings& leg) { told_ = *(prefill_leg_ = leg); }

void StageClock::Told(const StageTimings& leg) {
  told_ = leg;
  if (!prefill_leg_) return;
  told_.queue_prefill_ms += prefill_leg_->queue_prefill_ms;
  told_.prefill_ms += prefill_leg_->prefill_ms;
}

void StageClock::FirstToken(TimePoint now) {
  if (first_token_) return;
  first_token_ = now;
  answered_by_ = attempt_;
  answer_began_after_ = attempt_began_.value_or(arrived_) - first_order_.value_or(arrived_);
  answer_reserve_ = reserve_;
}

StageTimings StageClock::Stages() const {
  StageTimings out = told_;
  if (!first_token_) return out;
  out.router_ms = Milliseconds(first_order_.value_or(arrived_) - arrived_);
  out.reserve_ms = Milliseconds(answer_reserve_);
  const double since_order = Milliseconds(*first_token_ - first_order_.value_or(arrived_));
  if (answered_by_ != attempt_) {  // that worker is lost, and its stages with it
    out.lost_ms = since_order - out.reserve_ms;
    return out;
  }
  out.lost_ms = Milliseconds(answer_began_after_);
  const double decode_ms = whole_ ? out.transfer_ms + out.queue_decode_ms + out.decode_ms : 0;
  out.network_ms =
      std::max(0.0, since_order - out.lost_ms - out.reserve_ms - out.queue_prefill_ms - out.prefill_ms - decode_ms);
  return out;
}

}  // namespace baton::router
