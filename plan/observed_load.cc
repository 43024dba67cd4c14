#include "plan/observed_load.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/status.h"
#include "common/str_cat.h"

namespace baton::plan {
namespace {

// A metric's values of all labels together.
using Sums = std::map<std::string, double>;

Sums SumsOf(std::string_view text) {
  Sums sums;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    at = end + 1;
    if (line.empty() || line[0] == '#') continue;
    const size_t name_end = line.find_first_of("{ ");
    const size_t labels_end = line.find('}');
    const size_t value_at = line.find(' ', labels_end == std::string_view::npos ? 0 : labels_end);
    if (name_end == std::string_view::npos || value_at == std::string_view::npos) continue;
    const std::string value(line.substr(value_at + 1, line.find(' ', value_at + 1) - value_at - 1));
    double number = 0;
    if (absl::SimpleAtod(value, &number)) sums[std::string(line.substr(0, name_end))] += number;
  }
  return sums;
}

double Of(const Sums& sums, const std::string& name) {
  const auto found = sums.find(name);
  return found == sums.end() ? 0 : found->second;
}

std::optional<double> Mean(const Sums& sums, const std::string& name) {
  const double count = Of(sums, name + "_count");
  return count > 0 ? std::optional(Of(sums, name + "_sum") / count) : std::nullopt;
}

// Counts are from 0 to what a double counts exactly; a server that says otherwise is not believed.
absl::Status CheckCounts(const Sums& sums) {
  constexpr double kMost = 1e15;
  constexpr std::string_view kRead[] = {"vllm:request_prompt_tokens", "vllm:request_generation_tokens",
                                        "vllm:prefix_cache_", "vllm:time_to_first_token_seconds",
                                        "vllm:request_time_per_output_token_seconds"};
  for (const auto& [name, value] : sums) {
    const bool read = std::ranges::any_of(kRead, [&](std::string_view begin) { return name.starts_with(begin); });
    if (read && !(value >= 0 && value <= kMost))
      return absl::FailedPreconditionError(absl::StrFormat("%s is %g, which is no count or sum", name, value));
  }
  return absl::OkStatus();
}

// What a metric's name begins with: "sglang", "node", …
std::string KindsIn(const Sums& sums) {
  std::set<std::string> kinds;
  for (const auto& [name, value] : sums) kinds.insert(name.substr(0, name.find_first_of(":_")));
  return absl::StrJoin(kinds, ", ");
}

}  // namespace

absl::StatusOr<ObservedLoad> ReadObservedLoad(std::string_view text) {
  const Sums sums = SumsOf(text);
  if (!sums.contains("vllm:request_prompt_tokens_count")) {
    return absl::FailedPreconditionError(
        StrCat("these are not a Baton router's or vLLM's metrics: there is no vllm:request_prompt_tokens, ",
               sums.empty() ? "and nothing else" : StrCat("but names that begin with ", KindsIn(sums))));
  }
  BATON_RETURN_IF_ERROR(CheckCounts(sums));
  ObservedLoad out;
  out.requests = static_cast<int64_t>(Of(sums, "vllm:request_prompt_tokens_count"));
  const std::optional<double> isl = Mean(sums, "vllm:request_prompt_tokens"),
                              osl = Mean(sums, "vllm:request_generation_tokens");
  if (!isl || !osl || *isl < 1 || *osl < 1)
    return absl::FailedPreconditionError("no request was answered yet: there are no lengths in these metrics");
  out.isl = *isl;
  out.osl = *osl;
  for (const std::string end : {"_total", ""}) {  // older ones have no ending
    const double asked = Of(sums, "vllm:prefix_cache_queries" + end);
    if (asked > 0) out.hit_share = std::min(1.0, Of(sums, "vllm:prefix_cache_hits" + end) / asked);
  }
  if (const auto ttft = Mean(sums, "vllm:time_to_first_token_seconds")) out.ttft_ms = *ttft * 1e3;
  if (const auto tpot = Mean(sums, "vllm:request_time_per_output_token_seconds")) out.tpot_ms = *tpot * 1e3;
  return out;
}

std::string ObservedText(const ObservedLoad& load) {
  std::string out =
      absl::StrFormat("%d requests were seen: prompts of %.0f tokens, %.1f %% of them cached, answers of %.0f",
                      load.requests, load.isl, 100 * load.hit_share, load.osl);
  if (load.ttft_ms) absl::StrAppendFormat(&out, "; TTFT %.1f ms", *load.ttft_ms);
  if (load.tpot_ms) absl::StrAppendFormat(&out, "; TPOT %.2f ms", *load.tpot_ms);
  return out + " (means)\n";
}

}  // namespace baton::plan
