// The report files of inference-perf: its "stage" is a run of ours, its times are seconds, and its shares of a goal are
// of answered requests.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "common/str_cat.h"
#include "load/formats/formats.h"

namespace baton::load {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson Summarized(std::vector<double> values) {
  if (values.empty()) return {};
  const Statistics s(std::move(values));
  OrderedJson out = {{"mean", s.mean()}, {"min", s.Percentile(0)}, {"max", s.most()}};
  for (double percent : {0.1, 1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9})
    out[percent == 50 ? std::string("median") : StrCat("p", percent)] = s.Percentile(percent);
  return out;
}

template <class Value>
OrderedJson Each(const std::vector<const Outcome*>& of, const Value& value) {
  std::vector<double> values;
  for (const Outcome* o : of) values.push_back(value(*o));
  return Summarized(std::move(values));
}

double Sum(const std::vector<const Outcome*>& of, double (*value)(const Outcome&)) {
  return std::accumulate(of.begin(), of.end(), 0.0, [value](double sum, const Outcome* o) { return sum + value(*o); });
}

double PromptTokens(const Outcome& o) { return static_cast<double>(o.answer.prompt_tokens); }
double CachedTokens(const Outcome& o) { return static_cast<double>(o.answer.cached_tokens); }
double AnswerTokens(const Outcome& o) { return static_cast<double>(o.OutputTokens()); }

OrderedJson Latencies(const std::vector<const Outcome*>& answered) {
  std::vector<double> per_token, first, gaps;
  for (const Outcome* o : answered) {
    if (o->arrivals.size() < 2) continue;  // it takes these of what came in several pieces only
    first.push_back(o->TtftMs() / 1000);
    if (o->OutputTokens() > 1)
      per_token.push_back(Seconds(o->arrivals.back() - o->arrivals.front()) / (AnswerTokens(*o) - 1));
    for (size_t i = 1; i < o->arrivals.size(); ++i) gaps.push_back(Seconds(o->arrivals[i] - o->arrivals[i - 1]));
  }
  return {
      {"request_latency", Each(answered, [](const Outcome& o) { return o.E2elMs() / 1000; })},
      {"normalized_time_per_output_token",
       Each(answered, [](const Outcome& o) { return o.OutputTokens() > 0 ? o.E2elMs() / 1000 / AnswerTokens(o) : 0; })},
      {"time_per_output_token", Summarized(std::move(per_token))},
      {"time_to_first_token", Summarized(std::move(first))},
      {"inter_token_latency", Summarized(std::move(gaps))}};
}

OrderedJson Tokens(const std::vector<const Outcome*>& of, bool prompt) {
  auto* const value = prompt ? PromptTokens : AnswerTokens;
  OrderedJson out = {{"total", Sum(of, value)}};
  if (prompt) {
    out["cached"] = Sum(of, CachedTokens);
    out["uncached"] = std::max(0.0, Sum(of, PromptTokens) - Sum(of, CachedTokens));
  }
  if (!of.empty()) out.update(Each(of, value));
  return out;
}

OrderedJson Throughput(const std::vector<const Outcome*>& answered, double seconds) {
  auto rate = [seconds](double amount) { return seconds > 0 ? amount / seconds : 0; };
  const double in = Sum(answered, PromptTokens), out = Sum(answered, AnswerTokens);
  return {{"input_tokens_per_sec", rate(in)},
          {"output_tokens_per_sec", rate(out)},
          {"total_tokens_per_sec", rate(in + out)},
          {"requests_per_sec", rate(static_cast<double>(answered.size()))},
          {"images_per_sec", 0.0},
          {"videos_per_sec", 0.0},
          {"audios_per_sec", 0.0}};
}

OrderedJson Failures(const std::vector<const Outcome*>& failed) {
  OrderedJson labels = OrderedJson::object();
  for (const Outcome* o : failed) {
    const std::string label = o->http_status > 0 && o->failure == Failure::kRefused
                                  ? StrCat(o->http_status, " - other")
                                  : std::string(kFailureNames[static_cast<size_t>(o->failure)]);
    labels[label] = labels.value(label, 0) + 1;
  }
  return {{"count", failed.size()},
          {"request_latency", Each(failed, [](const Outcome& o) { return o.E2elMs() / 1000; })},
          {"prompt_tokens", Tokens(failed, true)},
          {"by_label", std::move(labels)}};
}

/// `runs`: one of them for a stage, all for the summary.
OrderedJson SummaryOf(const std::vector<const Measured*>& runs) {
  std::vector<const Outcome*> all, answered, failed;
  std::vector<double> lags;
  double seconds = 0, sending = 0;
  int64_t good = 0;
  for (const Measured* m : runs) {
    Duration first = Duration::max(), last = Duration::min(), end = Duration::min();
    for (const Outcome& o : m->run.outcomes) {
      all.push_back(&o);
      (o.ok() ? answered : failed).push_back(&o);
      lags.push_back(Seconds(o.sent - o.due));
      first = std::min(first, o.sent);
      last = std::max(last, o.sent);
      end = std::max(end, o.end);
    }
    if (m->run.outcomes.empty()) continue;
    seconds += Seconds(end - first);
    sending += Seconds(last - first);
    good += m->summary.good.value_or(0);
  }
  OrderedJson load = {{"count", all.size()}, {"schedule_delay", Summarized(std::move(lags))}};
  if (runs.size() == 1) {
    const LoadPoint& point = runs.front()->point;
    const double achieved = sending > 0 ? static_cast<double>(all.size()) / sending : 0;
    load["send_duration"] = sending;
    load["requested_rate"] = std::isinf(point.request_rate) ? achieved : point.request_rate;
    load["achieved_rate"] = achieved;
    if (point.max_concurrency > 0) load["concurrency"] = point.max_concurrency;
  }
  const auto uncounted = std::ranges::count_if(answered, [](const Outcome* o) { return !o->answer.counted; });
  OrderedJson successes = {{"count", answered.size()},
                           {"latency", Latencies(answered)},
                           {"throughput", Throughput(answered, seconds)},
                           {"prompt_tokens", Tokens(answered, true)},
                           {"output_len", Each(answered, AnswerTokens)},
                           {"output_tokens", Tokens(answered, false)},
                           {"token_count_mismatches", 0},
                           {"client_fallback_requests", {{"prompt", uncounted}, {"output", uncounted}}}};
  if (runs.front()->summary.good && !answered.empty()) {
    successes["goodput_metrics"] = {
        {"good_requests", good},
        {"total_requests", answered.size()},
        {"goodput_percentage", 100.0 * static_cast<double>(good) / static_cast<double>(answered.size())},
        {"request_goodput", seconds > 0 ? static_cast<double>(good) / seconds : 0}};
  }
  return {{"benchmark_time_seconds", seconds},
          {"load_summary", std::move(load)},
          {"successes", std::move(successes)},
          {"failures", Failures(failed)}};
}

// Of one offered request; times are seconds of the run's own clock, from its begin.
OrderedJson RequestReport(const Outcome& o, size_t stage) {
  OrderedJson times = OrderedJson::array();
  for (Duration at : o.arrivals) times.push_back(Seconds(at));
  return {{"stage_id", stage},
          {"scheduled_time", Seconds(o.due)},
          {"start_time", Seconds(o.sent)},
          {"end_time", Seconds(std::max(o.end, o.sent))},
          {"info",
           {{"request_metrics", {{"text", {{"input_tokens", o.answer.prompt_tokens}}}}},
            {"response_metrics",
             {{"output_tokens", o.OutputTokens()},
              {"output_token_times", std::move(times)},
              {"server_usage", o.answer.counted
                                   ? OrderedJson{{"prompt_tokens", o.answer.prompt_tokens},
                                                 {"completion_tokens", o.answer.completion_tokens},
                                                 {"prompt_tokens_details", {{"cached_tokens", o.answer.cached_tokens}}}}
                                   : OrderedJson()}}}}},
          {"error", o.ok() ? OrderedJson()
                           : OrderedJson{{"error_type", kFailureNames[static_cast<size_t>(o.failure)]},
                                         {"error_msg", o.error}}}};
}

std::string FileText(const OrderedJson& json) {
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace

std::map<std::string, std::string> InferencePerfFiles(const std::vector<Measured>& all, const BenchOptions&) {
  std::map<std::string, std::string> out;
  std::vector<const Measured*> runs;
  OrderedJson requests = OrderedJson::array();
  for (const Measured& m : all) {
    out[StrCat("stage_", runs.size(), "_lifecycle_metrics.json")] = FileText(SummaryOf({&m}));
    for (const Outcome& o : m.run.outcomes) requests.push_back(RequestReport(o, runs.size()));
    runs.push_back(&m);
  }
  out["summary_lifecycle_metrics.json"] = FileText(SummaryOf(runs));
  out["per_request_lifecycle_metrics.json"] = FileText(requests);
  return out;
}

}  // namespace baton::load
