// Distributions as guidellm makes them: of values with weights, by nearest rank; rates and requests that run hold for
// as long as they do. Pure; times are seconds from the start of a run.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/json.h"

namespace baton::load {

struct Weighted {
  double value = 0;
  double weight = 1;
};

/// An amount that comes at a moment.
struct Came {
  double at_s = 0;
  double amount = 1;
};

/// What runs between two moments.
struct Ran {
  double from_s = 0, to_s = 0;
  double amount = 1;
};

/// Mean, mode, percentiles and the like. `count`: how many were seen; nullopt: the sum of the weights. Where the mean
/// and the percentiles lie is null: values with weights are no sample.
nlohmann::ordered_json DistributionOf(std::vector<Weighted> values, std::optional<int64_t> count = std::nullopt);

/// The same of one value a request, and with 95 % confidence where the mean (`mean_ci`) and the percentiles
/// (`percentile_cis`) of all such requests lie; null where the values are too few to say so.
nlohmann::ordered_json SampleOf(std::vector<double> values);

/// Amounts per second from `from_s` to `to_s`: each holds half way to its neighbours. Of those that come within 0.1 ms
/// one is made. The mean is the whole amount by the whole time.
nlohmann::ordered_json RateDistribution(std::vector<Came> came, double from_s, double to_s);

/// How much ran at a time from `from_s` to `to_s`.
nlohmann::ordered_json RunningDistribution(const std::vector<Ran>& ran, double from_s, double to_s);

}  // namespace baton::load
