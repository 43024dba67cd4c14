#include "load/report.h"

#include <algorithm>
#include <cmath>
#include <ctime>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/json.h"
#include "common/status.h"
#include "common/str_cat.h"
#include "common/whole_file.h"
#include "load/arrivals.h"
#include "load/report_lists.h"

namespace baton::load {
namespace {

using OrderedJson = nlohmann::ordered_json;
constexpr int kLineWidth = 50;
constexpr double kManyBursts = 0.2;

struct Metric {
  const char *key, *name, *title;
  const Statistics& values;
};

std::vector<Metric> MetricsOf(const Summary& s) {
  return {{"ttft", "TTFT", "Time to First Token", s.ttft},
          {"ttst", "TTST", "Time to Second Token (after the 1st)", s.ttst},
          {"tpot", "TPOT", "Time per Output Token (excl. 1st token)", s.tpot},
          {"itl", "ITL", "Inter-token Latency", s.itl},
          {"e2el", "E2EL", "End-to-end Latency", s.e2el},
          {"client_queue_time", "Client Queue Time", "Client-side Queueing", s.queue},
          {"e2el_including_client_queue", "E2EL incl. Client Queue", "Queue-inclusive End-to-end Latency",
           s.e2el_with_queue}};
}

std::string PercentName(double percent) {
  return percent == std::floor(percent) ? StrCat(static_cast<int64_t>(percent)) : StrCat(percent);
}

std::string Ruler(const std::string& text, char fill) {
  const size_t left = (kLineWidth - std::min<size_t>(kLineWidth, text.size())) / 2;
  std::string out = std::string(left, fill) + text;
  return out + std::string(out.size() < kLineWidth ? kLineWidth - out.size() : 0, fill) + "\n";
}

std::string Row(const std::string& label, double value) { return absl::StrFormat("%-40s %-10.2f\n", label, value); }
std::string Row(const std::string& label, int64_t value) { return absl::StrFormat("%-40s %-10d\n", label, value); }

double PerSecond(const Summary& s, int64_t count) {
  return s.duration_s > 0 ? static_cast<double>(count) / s.duration_s : 0;
}

std::string StagesRow(const char* which, const FirstToken& f) {
  const Stages& t = f.stages;
  std::string out = absl::StrFormat("%s TTFT %.1f = router %.1f + ", which, f.ttft_ms, t.router);
  if (t.lost > 0) out += absl::StrFormat("lost workers %.1f + ", t.lost);
  if (t.reserve > 0) out += absl::StrFormat("reserve %.1f + ", t.reserve);
  out += absl::StrFormat("queue %.1f + prefill %.1f + network %.1f + client's side %.1f ms (request %d)\n",
                         t.queue_prefill, t.prefill, t.network, f.rest_ms(), f.index);
  if (t.ToSecond() > 0) {
    out += absl::StrFormat("  its second token came %.1f later: transfer %.1f, decode queue %.1f, first step %.1f ms\n",
                           f.second_ms, t.transfer, t.queue_decode, t.first_decode);
  }
  return out;
}

std::string DipRow(const Dip& d) {
  std::string out = absl::StrFormat("%.1f s, %s: from %.0f tok/s to %.0f (%.0f %% deep), ", Seconds(d.fault.at),
                                    d.fault.what, d.before, d.least, 100 * d.depth());
  out += d.over_after_s ? absl::StrFormat("over after %.2f s", *d.over_after_s) : "not over when the load ended";
  return out + absl::StrFormat("; %d requests ran, %d of them failed\n", d.running.size(), d.failed);
}

std::string FaultRows(const Measured& m) {
  std::string out;
  for (const Dip& d : m.dips) {
    out += DipRow(d);
    if (!m.verified) continue;
    const auto changed = std::ranges::count_if(
        d.running, [&](size_t index) { return std::ranges::count(m.verified->which, index) > 0; });
    out += absl::StrFormat("  %d of those have other bytes than when asked again\n", changed);
  }
  for (const FaultSeen& f : m.run.faults) {
    if (!f.error.empty()) out += absl::StrFormat("%.1f s, %s: not done: %s\n", Seconds(f.at), f.what, f.error);
    const bool seen = std::ranges::any_of(m.dips, [&](const Dip& d) { return d.fault.at == f.at; });
    if (f.error.empty() && !seen)
      out += absl::StrFormat("%.1f s, %s: too near to the begin or the end of the load to see a dip\n", Seconds(f.at),
                             f.what);
  }
  return out;
}

std::string VerifiedRows(const Verified& v) {
  constexpr size_t kMostNamed = 8;
  std::string out =
      StrCat("Asked again: ", v.compared, " answers, ", v.different, " different, ", v.failed,
             " without a second answer", v.unasked > 0 ? StrCat(", ", v.unasked, " not asked again") : "", "\n");
  for (size_t i = 0; i < std::min(v.which.size(), kMostNamed); ++i)
    out += StrCat("  request ", v.which[i], " differs\n");
  return out;
}

std::string Findings(const Report& r) {
  const Summary& s = r.measured.summary;
  std::string out;
  if (const RunResult& run = r.measured.run; run.interrupted) {
    out += StrCat("Interrupted: of ", run.planned(), " requests ", run.unfinished, " had no end yet and ", run.unsent,
                  " were not sent; they are in no figure.\n");
  }
  for (const auto& [kind, count] : s.failures) out += Row(StrCat("Failed, ", kind, ":"), count);
  for (const auto& [text, count] : s.first_errors) out += StrCat("  ", count, " times: ", text, "\n");
  if (s.median) out += StagesRow("Median", *s.median) + StagesRow("P99   ", *s.p99);
  out += FaultRows(r.measured);
  if (r.measured.verified) out += VerifiedRows(*r.measured.verified);
  if (s.uncounted > 0) {
    out += StrCat(s.uncounted < s.completed ? StrCat("Of ", s.completed, " answers ", s.uncounted, " came without")
                                            : std::string("The server counts no tokens, answers come without"),
                  " usage: an answer's tokens are its chunks then, ",
                  s.input_tokens > 0 ? "a prompt's are those it was made of.\n" : "a prompt's are not known.\n");
  }
  if (s.gaps_in_bursts > kManyBursts)
    out += absl::StrFormat(
        "%.0f %% of the gaps between chunks are below 0.1 ms: they came in bursts of %.1f, a burst each %.1f ms "
        "(median; p99 %.1f).\n",
        s.gaps_in_bursts * 100, s.chunks_per_burst, s.burst_gap.Percentile(50), s.burst_gap.Percentile(99));
  if (s.lag.Percentile(99) > kLateMs)
    out += absl::StrFormat(
        "This client was late: p99 %.1f ms after the schedule. Its figures are not the server's.%s\n",
        s.lag.Percentile(99), r.measured.run.real_time ? "" : " It did not run before other processes (--real-time).");
  return out;
}

void AddStatistics(OrderedJson& out, const Report& r, const std::string& key, const Statistics& values) {
  out[StrCat("mean_", key, "_ms")] = values.mean();
  out[StrCat("median_", key, "_ms")] = values.Percentile(50);
  out[StrCat("std_", key, "_ms")] = values.deviation();
  for (double percent : r.percentiles)
    out[StrCat("p", PercentName(percent), "_", key, "_ms")] = values.Percentile(percent);
}

std::string IsoTime(double since_1970_s) {
  const int64_t micros = std::llround(since_1970_s * 1e6);
  const auto seconds = static_cast<std::time_t>(micros / 1'000'000);
  std::tm day{};
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", localtime_r(&seconds, &day));
  return absl::StrFormat("%s.%06d", text, micros % 1'000'000);
}

// When a growing rate reached each whole number of requests per second: where a request was due at it.
OrderedJson RateChanges(const Report& r) {
  const std::vector<Outcome>& outcomes = r.measured.run.outcomes;
  OrderedJson out = OrderedJson::array();
  for (size_t i = 0; i < outcomes.size(); ++i) {
    const double rate = RateOf(r.options, r.measured.point.request_rate, outcomes[i].index, r.measured.run.planned());
    if (i > 0 && std::floor(rate) <= out.back()["rps"].get<double>()) continue;
    out.push_back({{"rps", i == 0 ? rate : std::floor(rate)},
                   {"timestamp", IsoTime(r.measured.run.started_at_s + Seconds(outcomes[i].sent))}});
  }
  return out;
}

void AddSetting(OrderedJson& out, const Report& r) {
  const BenchOptions& o = r.options;
  const LoadPoint& point = r.measured.point;
  out["date"] = r.measured.date;
  out["endpoint_type"] = out["backend"] = o.backend;
  out["label"] = o.label.empty() ? OrderedJson() : OrderedJson(o.label);
  out["model_id"] = r.measured.model;
  out["tokenizer_id"] = o.tokenizer.empty() ? r.measured.model : o.tokenizer;
  out["num_prompts"] = r.measured.summary.offered;
  if (!r.measured.target.empty()) out["target"] = r.measured.target;
  if (o.num_runs > 1) out["run"] = r.measured.round;
  out["started_at"] = r.measured.run.started_at_s;
  for (const std::string& one : o.metadata) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(one, absl::MaxSplits('=', 1));
    out[parts.first] = parts.second;
  }
  out["dataset_name"] = o.dataset_name;
  out["seed"] = o.seed;
  out["request_rate"] = std::isinf(point.request_rate) ? OrderedJson("inf") : OrderedJson(point.request_rate);
  if (point.own_times) out["self_timed"] = true;
  out["burstiness"] = o.burstiness;
  out["max_concurrency"] = point.max_concurrency > 0 ? OrderedJson(point.max_concurrency) : OrderedJson();
  if (o.ramp_up_strategy != "none") {
    out["ramp_up_strategy"] = o.ramp_up_strategy;
    out["ramp_up_start_rps"] = o.ramp_up_start_rps;
    out["ramp_up_end_rps"] = o.ramp_up_end_rps;
    out["rps_change_events"] = RateChanges(r);
  }
  out["real_time"] = r.measured.run.real_time;
}

void AddCounts(OrderedJson& out, const Summary& s) {
  out["duration"] = s.duration_s;
  out["offered"] = s.offered;
  out["completed"] = s.completed;
  out["failed"] = s.failed;
  out["failures"] = s.failures;
  out["total_input_tokens"] = s.input_tokens;
  out["total_output_tokens"] = s.output_tokens;
  out["total_cached_tokens"] = s.cached_tokens;
  out["output_chunks"] = s.chunks;
  out["tokens_are_chunks"] = s.uncounted > 0;
  if (s.uncounted > 0) out["answers_without_usage"] = s.uncounted;
  out["request_throughput"] = PerSecond(s, s.completed);
  out["request_goodput"] = s.good ? OrderedJson(PerSecond(s, *s.good)) : OrderedJson();
  if (s.good) {
    out["good_requests"] = *s.good;
    out["good_share_of_offered"] = s.offered > 0 ? static_cast<double>(*s.good) / static_cast<double>(s.offered) : 0;
  }
  out["output_throughput"] = PerSecond(s, s.output_tokens);
  out["total_token_throughput"] = PerSecond(s, s.input_tokens + s.output_tokens);
  out["max_output_tokens_per_s"] = s.peak_tokens_per_s;
  out["max_concurrent_requests"] = s.most_in_a_second;
  out["rtfx"] = 0.0;  // of audio, which there is none of
  out["most_requests_at_a_time"] = s.most_at_a_time;
  out["connections"] = s.connections;
  out["schedule_lag_p50_ms"] = s.lag.Percentile(50);
  out["schedule_lag_p99_ms"] = s.lag.Percentile(99);
  out["schedule_lag_max_ms"] = s.lag.most();
  out["gaps_in_bursts"] = s.gaps_in_bursts;
  out["chunks_per_burst"] = s.chunks_per_burst;
}

OrderedJson DipJson(const Dip& d) {
  return {{"at_s", Seconds(d.fault.at)},
          {"what", d.fault.what},
          {"before_tokens_per_s", d.before},
          {"least_tokens_per_s", d.least},
          {"depth", d.depth()},
          {"over_after_s", d.over_after_s ? OrderedJson(*d.over_after_s) : OrderedJson()},
          {"running", d.running.size()},
          {"failed", d.failed}};
}

}  // namespace

std::string ReportText(const Report& r) {
  const Summary& s = r.measured.summary;
  const LoadPoint& point = r.measured.point;
  std::string out = Ruler(" Serving Benchmark Result ", '=');
  out += Row("Successful requests:", s.completed) + Row("Failed requests:", s.failed);
  if (point.max_concurrency > 0) out += Row("Maximum request concurrency:", point.max_concurrency);
  if (!std::isinf(point.request_rate)) out += Row("Request rate configured (RPS):", point.request_rate);
  out += Row("Benchmark duration (s):", s.duration_s);
  out += Row("Total input tokens:", s.input_tokens) + Row("Total generated tokens:", s.output_tokens);
  out += Row("Request throughput (req/s):", PerSecond(s, s.completed));
  if (s.good) {
    out += Row("Request goodput (req/s):", PerSecond(s, *s.good));
    out += Row("Good of all offered (%):",
               s.offered > 0 ? 100.0 * static_cast<double>(*s.good) / static_cast<double>(s.offered) : 0);
  }
  out += Row("Output token throughput (tok/s):", PerSecond(s, s.output_tokens));
  out += Row("Peak output token throughput (tok/s):", s.peak_tokens_per_s);
  out += Row("Peak concurrent requests:", s.most_in_a_second);
  out += Row("Most requests at a time:", static_cast<int64_t>(s.most_at_a_time));
  out += Row("Total token throughput (tok/s):", PerSecond(s, s.input_tokens + s.output_tokens));
  out += Row("Schedule lag P99 (ms):", s.lag.Percentile(99));
  const std::vector<std::string> shown = absl::StrSplit(r.options.percentile_metrics, ',');
  for (const Metric& m : MetricsOf(s)) {
    if (std::ranges::count(shown, m.key) == 0) continue;
    out += Ruler(m.title, '-');
    out += Row(StrCat("Mean ", m.name, " (ms):"), m.values.mean());
    out += Row(StrCat("Median ", m.name, " (ms):"), m.values.Percentile(50));
    for (double p : r.percentiles)
      out += Row(StrCat("P", PercentName(p), " ", m.name, " (ms):"), m.values.Percentile(p));
  }
  const std::string findings = Findings(r);
  if (!findings.empty()) out += Ruler("Findings", '-') + findings;
  return out + Ruler("", '=');
}

std::string ReportJson(const Report& r) {
  const Summary& s = r.measured.summary;
  OrderedJson out = OrderedJson::object();
  AddSetting(out, r);
  AddCounts(out, s);
  if (r.measured.run.interrupted) {
    out["interrupted"] = true;
    out["unfinished"] = r.measured.run.unfinished;
    out["unsent"] = r.measured.run.unsent;
  }
  for (const Metric& m : MetricsOf(s)) AddStatistics(out, r, m.key, m.values);
  AddStatistics(out, r, "burst_gap", s.burst_gap);
  out["requests_with_stages"] = s.with_stages;
  if (s.median) out["ttft_stages"] = {{"p50", StagesJson(*s.median)}, {"p99", StagesJson(*s.p99)}};
  if (const std::optional<Verified>& v = r.measured.verified) {
    out["verified"] = {
        {"compared", v->compared}, {"different", v->different}, {"failed", v->failed}, {"which", v->which}};
    if (v->unasked > 0) out["verified"]["unasked"] = v->unasked;
  }
  if (!r.measured.run.faults.empty()) out["faults"] = out["dips"] = OrderedJson::array();
  for (const FaultSeen& f : r.measured.run.faults)
    out["faults"].push_back({{"at_s", Seconds(f.at)}, {"what", f.what}, {"error", f.error}});
  for (const Dip& d : r.measured.dips) out["dips"].push_back(DipJson(d));
  constexpr std::string_view kAlways[] = {"latencies", "queue_times"};  // as people know it
  AddRequestLists(out, r.measured.run.outcomes,
                  r.options.save_detailed ? RequestListKeys() : std::span<const std::string_view>(kAlways));
  return out.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

std::string ResultFileName(const Report& r) {
  const BenchOptions& o = r.options;
  const Measured& m = r.measured;
  const std::string model = m.model.substr(m.model.rfind('/') + 1);
  std::string rate = std::isinf(m.point.request_rate) ? "inf" : StrCat(m.point.request_rate);
  if (o.ramp_up_strategy != "none")
    rate = StrCat("ramp-up-", o.ramp_up_strategy, "-", o.ramp_up_start_rps, "qps-", o.ramp_up_end_rps);
  const int64_t limit = m.point.max_concurrency;
  const std::string name = StrCat(o.label.empty() ? o.backend : o.label, m.target.empty() ? "" : StrCat("-", m.target),
                                  "-", rate, "qps", limit > 0 ? StrCat("-concurrency", limit) : "",
                                  o.num_runs > 1 ? StrCat("-run", m.round) : "", "-", model, "-", m.date, ".json");
  return absl::StrReplaceAll(name, {{"/", "_"}});  // of a label: it is no folder
}

absl::Status WriteResult(const Report& r, const std::string& path, bool append) {
  if (!append) return WriteWhole({{path, ReportJson(r)}});
  BATON_ASSIGN_OR_RETURN(GrowingFile file, GrowingFile::Open(path, /*keep=*/true));
  return file.Add(ReportJson(r));
}

}  // namespace baton::load
