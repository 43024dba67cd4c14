// StageClock: where a request's time goes, from what the router sees (orders out, answers in) and what workers measured
// of their legs. Pure: it is told every moment. Its stages up to the first token add up to the time to the first token:
//   router + lost + reserve + queue_prefill + prefill + network.
// The last is what the others leave over, because clocks of two machines cannot be compared, only spans of time.
#pragma once

#include <optional>

#include "common/clock.h"
#include "router/request_types.h"

namespace baton::router {

class StageClock {
 public:
  /// `whole`: all tokens come at the end (a beam search), so that decode is a part of the time to the first one.
  explicit StageClock(TimePoint arrived, bool whole = false) : arrived_(arrived), whole_(whole) {}

  /// An order that begins or continues attempt `attempt` is on its way.
  void Ordered(uint32_t attempt, TimePoint now);
  /// The attempt's decode worker gave a ticket.
  void Reserved(TimePoint now);
  /// A prefill leg of the attempt has ended well; `leg`: its own stages.
  void Prefilled(const StageTimings& leg);
  /// The attempt's sequence was attached to its decode worker.
  void Attached(TimePoint now) { attached_ = now; }
  /// An attached leg told its stages, with its last token.
  void Told(const StageTimings& leg);
  /// The first token came; later calls change nothing.
  void FirstToken(TimePoint now);

  /// All that is known by now. Without a first token, router and network are 0.
  StageTimings Stages() const;
  Duration reserve() const { return reserve_; }  ///< of the latest attempt
  bool computed_by_prefill() const { return prefill_leg_.has_value(); }

  TimePoint arrived() const { return arrived_; }
  std::optional<TimePoint> first_order() const { return first_order_; }
  std::optional<TimePoint> first_token() const { return first_token_; }
  std::optional<TimePoint> attached() const { return attached_; }  ///< the latest time

 private:
  const TimePoint arrived_;
  const bool whole_;
  uint32_t attempt_ = 0;
  std::optional<TimePoint> first_order_, attempt_began_, attached_, first_token_;
  Duration reserve_{};
  std::optional<StageTimings> prefill_leg_;
  StageTimings told_;
  /// Of the attempt that the first token came from.
  uint32_t answered_by_ = 0;
  Duration answer_began_after_{}, answer_reserve_{};
};

}  // namespace baton::router
