#include "load/summary.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/str_cat.h"

namespace baton::load {
namespace {

constexpr size_t kMostErrorTexts = 5;
constexpr double kBurstGapMs = 0.1;

bool Good(const Outcome& o, const Goal& goal) {
  if (goal.ttft_ms && o.TtftMs() > *goal.ttft_ms) return false;
  if (goal.tpot_ms && o.TpotMs().value_or(0) > *goal.tpot_ms) return false;
  return !goal.e2el_ms || o.E2elMs() <= *goal.e2el_ms;
}

// The busiest second, by seconds since the first answered request was sent: most tokens (a chunk has its share of its
// answer's), and most requests that ran in some part of it.
void FindPeaks(const std::vector<Outcome>& outcomes, Summary& s) {
  Duration first = Duration::max();
  for (const Outcome& o : outcomes) {
    if (o.ok()) first = std::min(first, o.sent);
  }
  auto second = [first](Duration at) { return (at - first) / std::chrono::seconds(1); };
  std::map<int64_t, double> tokens;
  std::map<int64_t, int64_t> changes;  // in how many requests run, from this second on
  for (const Outcome& o : outcomes) {
    if (!o.ok() || o.arrivals.empty()) continue;
    const double each = static_cast<double>(o.OutputTokens()) / static_cast<double>(o.arrivals.size());
    for (Duration at : o.arrivals) tokens[second(at)] += each;
    ++changes[second(o.sent)];
    --changes[second(o.end) + 1];
  }
  for (const auto& [at, count] : tokens) s.peak_tokens_per_s = std::max(s.peak_tokens_per_s, count);
  int64_t running = 0;
  for (const auto& [at, change] : changes) s.most_in_a_second = std::max(s.most_in_a_second, running += change);
}

void JoinStages(const std::vector<Outcome>& outcomes, Summary& s) {
  std::vector<FirstToken> all;
  for (const Outcome& o : outcomes) {
    if (o.ok() && o.answer.stages) all.push_back({o.index, o.TtftMs(), o.SecondMs(), *o.answer.stages});
  }
  std::ranges::sort(all, {}, &FirstToken::ttft_ms);
  s.with_stages = static_cast<int64_t>(all.size());
  if (all.empty()) return;
  auto at = [&](double share) {  // nearest rank: a request, not a point between two
    return all[static_cast<size_t>(std::ceil(share * static_cast<double>(all.size()))) - 1];
  };
  s.median = at(0.5);
  s.p99 = at(0.99);
}

// The gaps of one answer, each and by burst. Returns how many bursts there were.
int64_t TakeGaps(const Outcome& o, std::vector<double>& each, std::vector<double>& by_burst) {
  if (o.arrivals.empty()) return 0;
  int64_t bursts = 1;
  Duration first = o.arrivals.front();  // of the burst
  for (size_t i = 1; i < o.arrivals.size(); ++i) {
    each.push_back(Milliseconds(o.arrivals[i] - o.arrivals[i - 1]));
    if (each.back() < kBurstGapMs) continue;
    by_burst.push_back(Milliseconds(o.arrivals[i] - first));
    first = o.arrivals[i];
    ++bursts;
  }
  return bursts;
}

void CountFailure(const Outcome& o, Summary& s) {
  ++s.failed;
  const std::string kind(kFailureNames[static_cast<size_t>(o.failure)]);
  ++s.failures[o.failure == Failure::kRefused && o.http_status != 0 ? StrCat("http_", o.http_status) : kind];
  if (s.first_errors.contains(o.error) || s.first_errors.size() < kMostErrorTexts) ++s.first_errors[o.error];
}

}  // namespace

absl::StatusOr<Goal> ParseGoal(const std::vector<std::string>& texts) {
  Goal goal;
  for (const std::string& text : texts) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
    double ms = 0;
    std::optional<double>* const field = parts.first == "ttft"   ? &goal.ttft_ms
                                         : parts.first == "tpot" ? &goal.tpot_ms
                                         : parts.first == "e2el" ? &goal.e2el_ms
                                                                 : nullptr;
    if (field == nullptr || !absl::SimpleAtod(parts.second, &ms) || !(ms >= 0))
      return absl::InvalidArgumentError(StrCat("--goodput: \"", text, "\" is not ttft:MS, tpot:MS or e2el:MS"));
    *field = ms;
  }
  return goal;
}

absl::StatusOr<std::vector<double>> ParsePercentiles(const std::string& text) {
  std::vector<double> out;
  for (const auto& one : absl::StrSplit(text, ',')) {
    double percent = 0;
    if (!absl::SimpleAtod(one, &percent) || !(percent >= 0 && percent <= 100))
      return absl::InvalidArgumentError(StrCat("--metric-percentiles: \"", text, "\" are not numbers of 0 to 100"));
    out.push_back(percent);
  }
  return out;
}

Summary Summarize(const RunResult& run, const Goal& goal) {
  Summary s;
  s.offered = static_cast<int64_t>(run.outcomes.size());
  s.duration_s = Seconds(run.duration);
  s.most_at_a_time = run.most_at_a_time;
  s.connections = run.connections;
  std::vector<double> ttft, ttst, tpot, itl, burst_gap, e2el, queue, with_queue, lag;
  int64_t good = 0, bursts = 0;
  const bool scheduled = std::ranges::any_of(run.outcomes, [](const Outcome& o) { return o.due > Duration{}; });
  for (const Outcome& o : run.outcomes) {
    if (scheduled) lag.push_back(o.LagMs());
    if (!o.ok()) {
      CountFailure(o, s);
      continue;
    }
    ++s.completed;
    good += Good(o, goal) ? 1 : 0;
    s.input_tokens += o.answer.prompt_tokens;
    s.cached_tokens += o.answer.cached_tokens;
    s.output_tokens += o.OutputTokens();
    s.chunks += static_cast<int64_t>(o.arrivals.size());
    s.uncounted += o.answer.counted ? 0 : 1;
    ttft.push_back(o.TtftMs());
    if (o.TpotMs()) tpot.push_back(*o.TpotMs());
    e2el.push_back(o.E2elMs());
    queue.push_back(Milliseconds(o.waited));
    with_queue.push_back(Milliseconds(o.end - o.sent + o.waited));
    if (o.arrivals.size() > 1) ttst.push_back(o.SecondMs());
    bursts += TakeGaps(o, itl, burst_gap);
  }
  if (goal.any()) s.good = good;
  if (!itl.empty()) s.gaps_in_bursts = 1 - static_cast<double>(burst_gap.size()) / static_cast<double>(itl.size());
  if (bursts > 0) s.chunks_per_burst = static_cast<double>(s.chunks) / static_cast<double>(bursts);
  FindPeaks(run.outcomes, s);
  s.ttft = Statistics(std::move(ttft));
  s.ttst = Statistics(std::move(ttst));
  s.tpot = Statistics(std::move(tpot));
  s.itl = Statistics(std::move(itl));
  s.burst_gap = Statistics(std::move(burst_gap));
  s.e2el = Statistics(std::move(e2el));
  s.queue = Statistics(std::move(queue));
  s.e2el_with_queue = Statistics(std::move(with_queue));
  s.lag = Statistics(std::move(lag));
  JoinStages(run.outcomes, s);
  return s;
}

}  // namespace baton::load
