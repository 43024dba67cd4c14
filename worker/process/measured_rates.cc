#include "worker/process/measured_rates.h"

namespace baton::worker {
namespace {

constexpr double kKept = 0.8;  // of what is known, at each news

void Add(double& weighted, double news) { weighted = kKept * weighted + news; }

}  // namespace

void MeasuredRates::Take(const engine::SchedulerLoad& load) {
  if (load.computed_tokens > last_.computed_tokens) {
    Add(tokens_, static_cast<double>(load.computed_tokens - last_.computed_tokens));
    Add(prefill_s_, Seconds(load.prefill_time - last_.prefill_time));
  }
  if (load.steps_ended > last_.steps_ended) {
    Add(steps_, static_cast<double>(load.steps_ended - last_.steps_ended));
    Add(step_s_, Seconds(load.step_time - last_.step_time));
  }
  last_ = load;
}

}  // namespace baton::worker
