#include "load/load_points.h"

#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/status.h"
#include "common/str_cat.h"

namespace baton::load {
namespace {

constexpr size_t kMostPoints = 1000;

absl::Status WrongList(std::string_view flag, std::string_view text, std::string_view what) {
  return absl::InvalidArgumentError(StrCat("--", flag, ": \"", text, "\" is not ", what, ", or several with commas"));
}

absl::StatusOr<std::vector<double>> Rates(const std::string& text) {
  std::vector<double> out;
  for (const auto& one : absl::StrSplit(text, ',')) {
    double rate = 0;
    if (!absl::SimpleAtod(one, &rate) || !(rate >= 1e-6))
      return WrongList("request-rate", text, "a number of requests per second above 0, or inf");
    out.push_back(rate);
  }
  return out;
}

absl::StatusOr<std::vector<int64_t>> Limits(const std::string& text) {
  std::vector<int64_t> out;
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  for (const std::string& one : parts) {
    const absl::StatusOr<int64_t> limit = ParseQuantity(one);
    if (!limit.ok() || *limit < 0) return WrongList("max-concurrency", text, "a number of requests (0: no limit)");
    out.push_back(*limit);
  }
  return out;
}

}  // namespace

absl::StatusOr<std::vector<LoadPoint>> PointsOf(const BenchOptions& o) {
  BATON_ASSIGN_OR_RETURN(const std::vector<double> rates, Rates(o.request_rate));
  BATON_ASSIGN_OR_RETURN(const std::vector<int64_t> limits, Limits(o.max_concurrency));
  const bool ramp = o.ramp_up_strategy != "none";
  if (ramp && (o.ramp_up_start_rps <= 0 || o.ramp_up_end_rps <= 0))
    return absl::InvalidArgumentError(
        StrCat("--ramp-up-strategy ", o.ramp_up_strategy, " needs --ramp-up-start-rps and --ramp-up-end-rps above 0"));
  if (ramp && (rates.size() > 1 || !std::isinf(rates.front())))
    return absl::InvalidArgumentError(
        "--ramp-up-strategy and --request-rate both say when requests come: leave one out");
  const bool own_times = KeepsOwnTimes(o);
  if (own_times && (ramp || rates.size() > 1 || !std::isinf(rates.front())))
    return absl::InvalidArgumentError(
        StrCat("--dataset-name ", o.dataset_name, " has times of its own, and ",
               ramp ? StrCat("--ramp-up-strategy ", o.ramp_up_strategy) : StrCat("--request-rate ", o.request_rate),
               " others: --no-self-timed gives up the trace's, --trace-speed changes them"));
  if (rates.size() * limits.size() > kMostPoints)
    return absl::InvalidArgumentError(StrCat("--request-rate and --max-concurrency ask for ",
                                             rates.size() * limits.size(), " loads, ", kMostPoints, " are measured"));
  std::vector<LoadPoint> out;
  for (const double rate : rates) {
    for (const int64_t limit : limits) out.push_back({rate, limit, own_times});
  }
  return out;
}

std::string PointName(const LoadPoint& point) {
  const std::string limit = point.max_concurrency > 0 ? StrCat(point.max_concurrency, " at a time") : "";
  if (point.own_times) return StrCat("at its own times", limit.empty() ? "" : ", ", limit);
  if (std::isinf(point.request_rate)) return limit.empty() ? "all at once" : limit;
  return StrCat(point.request_rate, "/s", limit.empty() ? "" : ", ", limit);
}

}  // namespace baton::load
