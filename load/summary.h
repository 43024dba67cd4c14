// What a run showed: figures over its outcomes. Failures are counted by kind and are in no figure of time; goodput is
// of all that were offered.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "load/outcome.h"
#include "load/run.h"
#include "load/statistics.h"

namespace baton::load {

/// What --goodput asks of a request; nullopt: nothing.
struct Goal {
  std::optional<double> ttft_ms, tpot_ms, e2el_ms;
  bool any() const { return ttft_ms || tpot_ms || e2el_ms; }
};
/// {"ttft:200", "tpot:50"}. InvalidArgument names the text.
absl::StatusOr<Goal> ParseGoal(const std::vector<std::string>& texts);
/// "50,99.9". InvalidArgument names the text.
absl::StatusOr<std::vector<double>> ParsePercentiles(const std::string& text);

/// One request's time to its first token, and from there to its second, beside the server's stages, ms. What those
/// leave over is the client's side: its way to the router, and itself.
struct FirstToken {
  size_t index = 0;
  double ttft_ms = 0;
  double second_ms = 0;
  Stages stages;
  double rest_ms() const { return ttft_ms - stages.ToFirst(); }
};

/// A client that is later than this at p99 measures itself, not the server.
inline constexpr double kLateMs = 5;

struct Summary {
  int64_t offered = 0, completed = 0, failed = 0;
  std::map<std::string, int64_t> failures;      ///< by kind
  std::map<std::string, int64_t> first_errors;  ///< text → how often, of the first few texts
  double duration_s = 0;
  int64_t input_tokens = 0, output_tokens = 0, cached_tokens = 0;
  int64_t chunks = 0;
  int64_t uncounted = 0;        ///< answers of which the server counted nothing: their tokens are their chunks
  std::optional<int64_t> good;  ///< with a goal
  int most_at_a_time = 0;
  int64_t most_in_a_second = 0;  ///< that ran in some part of the busiest second
  int64_t connections = 0;
  double peak_tokens_per_s = 0;  ///< of the busiest second
  Statistics ttft{{}}, ttst{{}}, tpot{{}}, itl{{}}, e2el{{}}, queue{{}}, e2el_with_queue{{}}, lag{{}};
  double gaps_in_bursts = 0;  ///< share of gaps below 0.1 ms: ITL says nothing then
  Statistics burst_gap{{}};   ///< from a burst's first chunk to the next one's; a burst has no gap of 0.1 ms or more
  double chunks_per_burst = 0;
  /// The very requests at p50 and p99 of TTFT, of those with stages.
  int64_t with_stages = 0;
  std::optional<FirstToken> median, p99;
};

Summary Summarize(const RunResult& run, const Goal& goal);

}  // namespace baton::load
