#include "load/bench_checks.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/json.h"
#include "common/shallow_json.h"
#include "common/status.h"
#include "load/dataset_line.h"

namespace baton::load {
namespace {

absl::Status CheckShownMetrics(const std::string& text) {
  constexpr std::string_view kNames[] = {
      "ttft", "ttst", "tpot", "itl", "e2el", "client_queue_time", "e2el_including_client_queue"};
  for (const std::string& one : std::vector<std::string>(absl::StrSplit(text, ','))) {
    if (std::ranges::find(kNames, one) == std::end(kNames))
      return absl::InvalidArgumentError(StrCat("--percentile-metrics: \"", one,
                                               "\" is not ttft, ttst, tpot, itl, e2el, client_queue_time or "
                                               "e2el_including_client_queue"));
  }
  return absl::OkStatus();
}

absl::Status CheckMetadata(const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    if (equals == 0 || equals == std::string::npos)
      return absl::InvalidArgumentError(StrCat("--metadata: \"", text, "\" is not KEY=VALUE"));
  }
  return absl::OkStatus();
}

absl::Status CheckLengths(const BenchOptions& o) {
  const std::pair<std::string_view, int64_t> lengths[] = {
      {"input-len", o.input_len},
      {"output-len", o.output_len},
      {"random-input-len", o.random_input_len},
      {"random-output-len", o.random_output_len},
      {"random-prefix-len", o.random_prefix_len},
      {"prefix-repetition-prefix-len", o.prefix_repetition_prefix_len},
      {"prefix-repetition-suffix-len", o.prefix_repetition_suffix_len},
      {"prefix-repetition-output-len", o.prefix_repetition_output_len},
      {"sonnet-input-len", o.sonnet_input_len},
      {"sonnet-output-len", o.sonnet_output_len},
      {"sonnet-prefix-len", o.sonnet_prefix_len},
      {"sharegpt-output-len", o.sharegpt_output_len},
      {"custom-output-len", o.custom_output_len},
      {"trace-block-size", o.trace_block_size}};
  for (const auto& [flag, tokens] : lengths) {
    if (tokens > kMostTokensOfALine)
      return absl::InvalidArgumentError(StrCat("--", flag, " ", tokens, ": at most ", kMostTokensOfALine));
  }
  return absl::OkStatus();
}

// A number, or a text that says one, as scripts write it; nullopt: it is neither, or lies elsewhere.
std::optional<double> RatioOf(const nlohmann::json& value) {
  double ratio = 0;
  if (value.is_number()) ratio = value.get<double>();
  if (value.is_string() && !absl::SimpleAtod(value.get_ref<const std::string&>(), &ratio)) return std::nullopt;
  if (!value.is_number() && !value.is_string()) return std::nullopt;
  return ratio >= 0 && ratio <= 0.999 ? std::optional(ratio) : std::nullopt;
}

}  // namespace

absl::StatusOr<RangeRatio> ParseRangeRatio(const std::string& text) {
  const nlohmann::json object = ShallowJson(text);
  const bool each = object.is_object() && object.size() == 2 && object.contains("input") && object.contains("output");
  const std::optional<double> input = RatioOf(each ? object["input"] : nlohmann::json(text));
  const std::optional<double> output = each ? RatioOf(object["output"]) : input;
  if (input && output) return RangeRatio{*input, *output};
  return absl::InvalidArgumentError(
      StrCat("--random-range-ratio: \"", text,
             "\" is not a number from 0 to 0.999, nor {\"input\": NUMBER, \"output\": NUMBER} of such"));
}

absl::Status CheckBench(const BenchOptions& options) {
  BATON_RETURN_IF_ERROR(ParseRangeRatio(options.random_range_ratio).status());
  BATON_RETURN_IF_ERROR(CheckShownMetrics(options.percentile_metrics));
  BATON_RETURN_IF_ERROR(CheckMetadata(options.metadata));
  return CheckLengths(options);
}

}  // namespace baton::load
