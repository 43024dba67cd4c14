// MeasuredRates: how fast a worker computes prompts and how long its steps take, from what its scheduler counts;
// routers predict by it. Time in which no step ran does not count: a worker that has little to do is no slower for it,
// and would get still less if it looked so. Pure.
#pragma once

#include "engine/step/scheduler.h"

namespace baton::worker {

class MeasuredRates {
 public:
  /// Takes what the scheduler has counted since the last call. The older a count, the less it weighs.
  void Take(const engine::SchedulerLoad& load);

  double prefill_tokens_per_s() const { return Ratio(tokens_, prefill_s_); }  ///< 0: none was computed yet
  double step_ms() const { return 1000 * Ratio(step_s_, steps_); }            ///< 0: none ran yet

 private:
  static double Ratio(double a, double b) { return b > 0 ? a / b : 0; }

  engine::SchedulerLoad last_;
  double tokens_ = 0, prefill_s_ = 0, steps_ = 0, step_s_ = 0;  // weighted
};

}  // namespace baton::worker
