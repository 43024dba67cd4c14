// When requests are sent: offsets from the start, never falling. The same seed gives the same schedule.
#pragma once

#include <vector>

#include "common/clock.h"
#include "load/bench_options.h"
#include "load/prompts.h"

namespace baton::load {

/// Requests per second at which request `index` of `requests` comes: `rate`, or what the ramp has grown to.
double RateOf(const BenchOptions& options, double rate, size_t index, size_t requests);

/// Gaps are drawn from a gamma distribution with shape `burstiness` around 1/rate, and stretched together so that the
/// whole takes what the rates say: a run of N requests at rate r lasts N/r. With a ramp the rate grows from request to
/// request, whatever `rate` is. An infinite rate gives zeros.
std::vector<Duration> Arrivals(const BenchOptions& options, double rate, size_t requests);
/// When each prompt is due: a trace's at their own times, unless --no-self-timed.
std::vector<Duration> DueTimes(const BenchOptions& options, double rate, const std::vector<Prompt>& prompts);

}  // namespace baton::load
