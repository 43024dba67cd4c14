#include "load/arrivals.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace baton::load {

double RateOf(const BenchOptions& o, double rate, size_t index, size_t requests) {
  if (o.ramp_up_strategy == "none") return rate;
  const double part = requests > 1 ? static_cast<double>(index) / static_cast<double>(requests - 1) : 0;
  if (o.ramp_up_strategy == "linear") return o.ramp_up_start_rps + (o.ramp_up_end_rps - o.ramp_up_start_rps) * part;
  return o.ramp_up_start_rps * std::pow(o.ramp_up_end_rps / o.ramp_up_start_rps, part);
}

std::vector<Duration> Arrivals(const BenchOptions& options, double rate, size_t requests) {
  std::vector<Duration> out(requests, Duration::zero());
  if (options.ramp_up_strategy == "none" && std::isinf(rate)) return out;
  std::mt19937_64 random(options.seed ^ 0x61727269'76616c73);
  std::gamma_distribution<double> gamma(options.burstiness, 1 / options.burstiness);
  std::vector<double> at(requests);
  double drawn = 0, meant = 0;
  for (size_t i = 0; i < requests; ++i) {
    const double mean = 1 / RateOf(options, rate, i, requests);
    meant += mean;
    drawn += gamma(random) * mean;
    at[i] = drawn;
  }
  const double stretch = drawn > 0 ? meant / drawn : 0;
  constexpr double kLatest = 9e18;  // nanoseconds: at the lowest rates a long run ends after what a Duration holds
  for (size_t i = 0; i < requests; ++i)
    out[i] = Duration(static_cast<int64_t>(std::min(at[i] * stretch * 1e9, kLatest)));
  return out;
}

std::vector<Duration> DueTimes(const BenchOptions& options, double rate, const std::vector<Prompt>& prompts) {
  if (!options.self_timed || prompts.empty() || !prompts.front().at) return Arrivals(options, rate, prompts.size());
  std::vector<Duration> due;
  for (const Prompt& prompt : prompts) due.push_back(*prompt.at);
  return due;
}

}  // namespace baton::load
