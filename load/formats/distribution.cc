#include "load/formats/distribution.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "load/formats/confidence.h"

namespace baton::load {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr double kTogether = 1e-4;  ///< seconds: what comes within them has come at once

constexpr std::pair<const char*, double> kShares[] = {{"p001", 0.001}, {"p01", 0.01}, {"p05", 0.05},  {"p10", 0.1},
                                                      {"p25", 0.25},   {"p50", 0.5},  {"p75", 0.75},  {"p90", 0.9},
                                                      {"p95", 0.95},   {"p99", 0.99}, {"p999", 0.999}};

OrderedJson JsonOf(const std::optional<Interval>& interval) {
  return interval ? OrderedJson{{"lower", interval->lower}, {"upper", interval->upper}} : OrderedJson();
}

// One entry for each value, in order; values that hold for no time are none, unless all are.
std::vector<Weighted> Combined(std::vector<Weighted> values) {
  double sum = 0;
  for (const Weighted& v : values) sum += v.weight;
  std::ranges::sort(values, {}, &Weighted::value);
  std::vector<Weighted> out;
  for (const Weighted& v : values) {
    const double weight = sum > 1e-6 ? v.weight : 1;
    if (!out.empty() && out.back().value == v.value) {
      out.back().weight += weight;
    } else {
      out.push_back({v.value, weight});
    }
  }
  std::erase_if(out, [](const Weighted& v) { return v.weight <= 0; });
  return out;
}

// What comes at once is one, at the first one's time.
std::vector<Came> Merged(std::vector<Came> came) {
  std::ranges::stable_sort(came, {}, &Came::at_s);
  std::vector<Came> out;
  for (const Came& c : came) {
    if (!out.empty() && c.at_s - out.back().at_s <= kTogether) {
      out.back().amount += c.amount;
    } else {
      out.push_back(c);
    }
  }
  return out;
}

}  // namespace

OrderedJson DistributionOf(std::vector<Weighted> values, std::optional<int64_t> count) {
  double weights = 0, sum = 0, squares = 0;
  for (const Weighted& v : values) weights += v.weight;
  const int64_t seen = count.value_or(std::llround(weights));
  const std::vector<Weighted> sorted = Combined(std::move(values));
  weights = 0;
  for (const Weighted& v : sorted) {
    weights += v.weight;
    sum += v.value * v.weight;
  }
  const double mean = weights > 0 ? sum / weights : 0;
  for (const Weighted& v : sorted) squares += (v.value - mean) * (v.value - mean) * v.weight;
  const double variance = weights > 0 ? squares / weights : 0;
  const auto at = [&](double share) {  // the least value that so much of the weight does not lie above
    double below = 0;
    for (const Weighted& v : sorted) {
      below += v.weight;
      if (below >= share * weights * (1 - 1e-12)) return v.value;
    }
    return sorted.empty() ? 0 : sorted.back().value;
  };
  OrderedJson percentiles = OrderedJson::object();
  for (const auto& [name, share] : kShares) percentiles[name] = at(share);
  const auto mode = std::ranges::max_element(sorted, {}, &Weighted::weight);
  return {{"mean", mean},
          {"median", at(0.5)},
          {"mode", mode == sorted.end() ? 0 : mode->value},
          {"variance", variance},
          {"std_dev", std::sqrt(variance)},
          {"min", sorted.empty() ? 0 : sorted.front().value},
          {"max", sorted.empty() ? 0 : sorted.back().value},
          {"count", seen},
          {"total_sum", mean * static_cast<double>(seen)},
          {"percentiles", std::move(percentiles)},
          {"pdf", nullptr},
          {"mean_ci", nullptr},
          {"percentile_cis", nullptr}};
}

OrderedJson SampleOf(std::vector<double> values) {
  std::vector<Weighted> each;
  each.reserve(values.size());
  for (const double value : values) each.push_back({value});
  OrderedJson out = DistributionOf(std::move(each));
  if (values.size() < 2) return out;
  std::ranges::sort(values);
  out["mean_ci"] = JsonOf(MeanInterval(out["mean"].get<double>(), out["std_dev"].get<double>(), values.size()));
  OrderedJson intervals = OrderedJson::object();
  for (const auto& [name, share] : kShares) intervals[name] = JsonOf(QuantileInterval(values, share));
  out["percentile_cis"] = std::move(intervals);
  return out;
}

OrderedJson RateDistribution(std::vector<Came> came, double from_s, double to_s) {
  double all = 0;
  for (const Came& c : came) all += c.amount;
  came.push_back({from_s, 0});
  came.push_back({to_s, 0});
  came = Merged(std::move(came));
  std::vector<Weighted> rates;
  for (size_t i = 0; came.size() > 1 && i < came.size(); ++i) {
    const double before = i > 0 ? came[i - 1].at_s : came[i].at_s;
    const double after = i + 1 < came.size() ? came[i + 1].at_s : came[i].at_s;
    const double held = std::max((after - before) / 2, 1e-6);
    rates.push_back({came[i].amount / held, held});
  }
  return DistributionOf(std::move(rates), std::llround(all));
}

OrderedJson RunningDistribution(const std::vector<Ran>& ran, double from_s, double to_s) {
  std::vector<Came> changes = {{from_s, 0}, {to_s, 0}};
  for (const Ran& r : ran) {
    changes.push_back({r.from_s, r.amount});
    changes.push_back({r.to_s, -r.amount});
  }
  changes = Merged(std::move(changes));
  std::vector<Weighted> levels;
  double level = 0;
  for (size_t i = 0; i + 1 < changes.size(); ++i) {
    level += changes[i].amount;
    levels.push_back({std::max(0.0, level), changes[i + 1].at_s - changes[i].at_s});
  }
  return DistributionOf(std::move(levels), std::ssize(ran));
}

}  // namespace baton::load
