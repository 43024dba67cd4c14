#include "plan/calibration.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/json.h"
#include "common/status.h"
#include "common/str_cat.h"

namespace baton::plan {
namespace {

using Json = nlohmann::json;
constexpr size_t kFewestRequests = 8;

/// A figure as planned and as measured, ms.
struct Pair {
  double planned = 0, measured = 0;
};

struct Fit {
  double factor = 1, error_before = 0, error_after = 0;
  Range range;
};

double Error(const std::vector<Pair>& pairs, double factor) {
  double sum = 0;
  for (const Pair& p : pairs) sum += std::abs(p.planned * factor - p.measured) / p.measured;
  return pairs.empty() ? 0 : sum / static_cast<double>(pairs.size());
}

// From the first tenth to the last.
Range RangeOfUnseen(const std::vector<Pair>& pairs, double factor) {
  std::vector<double> shares;
  for (const Pair& p : pairs) shares.push_back(p.measured / (p.planned * factor));
  if (shares.empty()) return {};
  std::ranges::sort(shares);
  const size_t tenth = shares.size() / 10;
  return {shares[tenth], shares[shares.size() - 1 - tenth]};
}

// By every other pair; the error is that of the others.
Fit FitOf(const std::vector<Pair>& pairs) {
  std::vector<Pair> seen, unseen;
  for (size_t i = 0; i < pairs.size(); ++i) (i % 2 == 0 ? seen : unseen).push_back(pairs[i]);
  std::ranges::sort(seen, {}, [](const Pair& p) { return p.measured / p.planned; });
  Fit fit;
  if (!seen.empty()) fit.factor = seen[seen.size() / 2].measured / seen[seen.size() / 2].planned;
  fit.error_before = Error(unseen, 1);
  fit.error_after = Error(unseen, fit.factor);
  fit.range = RangeOfUnseen(unseen, fit.factor);
  return fit;
}

/// No run has more tokens in a request or seconds in a wait.
constexpr double kMost = 1e9;

class Details {
 public:
  explicit Details(const Json& json) : json_(json) {}
  absl::Status Check() const {
    for (const char* key : {"ttfts", "input_lens", "output_lens", "latencies"}) {
      if (!json_.is_object() || !json_.contains(key) || !json_[key].is_array())
        return absl::InvalidArgumentError(StrCat("no list \"", key, "\": `baton bench --save-detailed` writes one"));
      if (json_[key].size() != json_["ttfts"].size())
        return absl::InvalidArgumentError(
            StrCat("\"", key, "\" has ", json_[key].size(), " entries, \"ttfts\" ", json_["ttfts"].size()));
      for (size_t i = 0; i < size(); ++i) {
        if (const double value = At(key, i); !(std::abs(value) <= kMost))
          return absl::InvalidArgumentError(StrCat("\"", key, "\"[", i, "] is ", value, ": at most ", kMost));
      }
    }
    return absl::OkStatus();
  }
  size_t size() const { return json_["ttfts"].size(); }
  double At(const char* key, size_t i) const {
    return json_[key][i].is_number() ? json_[key][i].template get<double>() : 0;
  }
  /// Of that request's prompt, without its queue if the server said so.
  double PrefillMs(size_t i) const {
    if (json_.contains("stages") && json_["stages"].is_array() && i < json_["stages"].size()) {
      const Json& stages = json_["stages"][i];
      if (stages.is_object() && stages.contains("prefill_ms") && stages["prefill_ms"].is_number())
        return stages["prefill_ms"].get<double>();
    }
    return At("ttfts", i) * 1e3;
  }
  double CachedTokens(size_t i) const {
    const bool said =
        json_.contains("cached_lens") && json_["cached_lens"].is_array() && i < json_["cached_lens"].size();
    return said ? std::clamp(At("cached_lens", i), 0.0, At("input_lens", i)) : 0;
  }

 private:
  const Json& json_;
};

// A prompt alone, in chunks.
double PrefillMs(const StepTimes& times, int64_t cached, int64_t tokens, int64_t chunk) {
  double seconds = 0;
  for (int64_t at = std::min(cached, tokens - 1); at < tokens; at += chunk) {
    const int64_t fresh = std::min(chunk, tokens - at);
    seconds += times.Of(StepRows{.fresh = fresh, .context = at, .logits = at + fresh == tokens}).seconds;
  }
  return seconds * 1e3;
}

}  // namespace

absl::StatusOr<Calibration> Calibrate(const std::string& bench, const worker::WorkerConfig& config,
                                      const MemoryPlan& plan, const Machine& machine, int workers) {
  const Json json = Json::parse(bench, nullptr, /*allow_exceptions=*/false);
  const Details details(json);
  BATON_RETURN_IF_ERROR(details.Check());
  double busy_s = 0, last_s = 0;  // of all requests together: how many run at a time
  for (size_t i = 0; i < details.size(); ++i) busy_s += details.At("latencies", i);
  if (json.contains("duration") && json["duration"].is_number()) last_s = json["duration"].get<double>();
  const auto at_a_time = static_cast<int64_t>(std::lround(last_s > 0 ? std::min(busy_s / last_s / workers, kMost) : 1));
  const StepTimes times(plan, machine);
  std::vector<Pair> prefills, steps;
  for (size_t i = 0; i < details.size(); ++i) {
    const auto input = static_cast<int64_t>(details.At("input_lens", i)),
               output = static_cast<int64_t>(details.At("output_lens", i));
    const double ttft_s = details.At("ttfts", i), latency_s = details.At("latencies", i);
    if (input < 1 || ttft_s <= 0 || latency_s < ttft_s) continue;  // it failed
    prefills.push_back(
        {PrefillMs(times, static_cast<int64_t>(details.CachedTokens(i)), input, config.max_num_batched_tokens),
         details.PrefillMs(i)});
    if (output < 2) continue;
    const StepRows rows{.sequences = std::max<int64_t>(1, at_a_time), .context = input + output / 2};
    steps.push_back({times.Of(rows).seconds * 1e3, (latency_s - ttft_s) / static_cast<double>(output - 1) * 1e3});
  }
  std::erase_if(prefills, [](const Pair& p) { return p.measured <= 0; });
  std::erase_if(steps, [](const Pair& p) { return p.measured <= 0; });
  if (prefills.size() < kFewestRequests || steps.size() < kFewestRequests)
    return absl::InvalidArgumentError(StrCat(prefills.size(), " prompts and ", steps.size(),
                                             " answers of two tokens or more were measured, at least ", kFewestRequests,
                                             " are needed"));
  const Fit prefill = FitOf(prefills), step = FitOf(steps);
  return Calibration{.prefill_factor = prefill.factor,
                     .decode_factor = step.factor,
                     .ttft_error_before = prefill.error_before,
                     .ttft_error_after = prefill.error_after,
                     .tpot_error_before = step.error_before,
                     .tpot_error_after = step.error_after,
                     .ttft_range = prefill.range,
                     .tpot_range = step.range,
                     .requests = static_cast<int64_t>(prefills.size())};
}

std::string CalibrationText(const Calibration& c) {
  return absl::StrFormat(
      "calibrated by %d requests: prompts take %.2f times the roofline, decode steps %.2f times (of `baton sim`: "
      "--prefill-factor %.4f --decode-factor %.4f)\n"
      "mean error over requests that were not calibrated by: TTFT %.0f %% before, %.0f %% after; TPOT %.0f %% before, "
      "%.0f %% after\n",
      c.requests, c.prefill_factor, c.decode_factor, c.prefill_factor, c.decode_factor, 100 * c.ttft_error_before,
      100 * c.ttft_error_after, 100 * c.tpot_error_before, 100 * c.tpot_error_after);
}

}  // namespace baton::plan
