#include "load/bench_checks.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_split.h"
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

}  // namespace

absl::Status CheckBench(const BenchOptions& options) {
  BATON_RETURN_IF_ERROR(CheckShownMetrics(options.percentile_metrics));
  BATON_RETURN_IF_ERROR(CheckMetadata(options.metadata));
  return CheckLengths(options);
}

}  // namespace baton::load
