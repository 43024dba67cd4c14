// guidellm's report, version 2 of its schema. Its inter token latency is our TPOT until the last token; its time per
// output token is the last one's time by all; percentiles of rates are those of the seconds of the run.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "common/net/address.h"
#include "common/str_cat.h"
#include "load/formats/formats.h"

namespace baton::load {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Outcomes = std::vector<const Outcome*>;

double MostFrequent(std::vector<double> values) {
  std::ranges::sort(values);
  double best = values.front();
  size_t most = 0;
  for (size_t i = 0; i < values.size();) {
    const auto end = static_cast<size_t>(std::ranges::upper_bound(values, values[i]) - values.begin());
    if (end - i > most) {
      most = end - i;
      best = values[i];
    }
    i = end;
  }
  return best;
}

OrderedJson DistributionOf(const std::vector<double>& values) {
  const Statistics s(values);
  const double variance = s.deviation() * s.deviation();
  OrderedJson percentiles = OrderedJson::object();
  for (const auto& [name, percent] : {std::pair{"p001", 0.1},
                                      {"p01", 1.0},
                                      {"p05", 5.0},
                                      {"p10", 10.0},
                                      {"p25", 25.0},
                                      {"p50", 50.0},
                                      {"p75", 75.0},
                                      {"p90", 90.0},
                                      {"p95", 95.0},
                                      {"p99", 99.0},
                                      {"p999", 99.9}})
    percentiles[name] = s.Percentile(percent);
  return {{"mean", s.mean()},
          {"median", s.Percentile(50)},
          {"mode", values.empty() ? 0 : MostFrequent(values)},
          {"variance", variance},
          {"std_dev", s.deviation()},
          {"min", s.Percentile(0)},
          {"max", s.most()},
          {"count", values.size()},
          {"total_sum", s.mean() * static_cast<double>(values.size())},
          {"percentiles", std::move(percentiles)}};
}

/// The outcomes of one run, as it divides them; nothing is cut off at the end of ours.
struct Divided {
  Outcomes good, bad, all;
};

OrderedJson ByStatus(const OrderedJson& good, const OrderedJson& bad, const OrderedJson& all) {
  return {{"successful", good}, {"errored", bad}, {"incomplete", DistributionOf({})}, {"total", all}};
}

// A figure of each request that has it.
template <class Figure>
OrderedJson Of(const Divided& d, const Figure& figure) {
  auto values = [&](const Outcomes& of) {
    std::vector<double> out;
    for (const Outcome* o : of) {
      if (const std::optional<double> value = figure(*o)) out.push_back(*value);
    }
    return DistributionOf(out);
  };
  return ByStatus(values(d.good), values(d.bad), values(d.all));
}

// The part of a second that belongs to the run.
double Within(double seconds, size_t second) { return std::min(1.0, seconds - static_cast<double>(second)); }

// An amount of each request, which comes at its end, per second of the run: the mean is the whole amount by the time.
template <class Amount>
OrderedJson Rate(const Divided& d, double seconds, const Amount& amount) {
  auto rates = [&](const Outcomes& of) {
    std::vector<double> by_second(static_cast<size_t>(std::ceil(std::max(seconds, 1e-9))));
    double sum = 0;
    for (const Outcome* o : of) {
      const auto second = static_cast<size_t>(std::max(0.0, Seconds(o->end)));
      by_second[std::min(second, by_second.size() - 1)] += amount(*o);
      sum += amount(*o);
    }
    for (size_t s = 0; s < by_second.size(); ++s) by_second[s] /= std::max(Within(seconds, s), 1e-9);
    OrderedJson out = DistributionOf(by_second);
    out["mean"] = seconds > 0 ? sum / seconds : 0;
    out["count"] = of.size();
    return out;
  };
  return ByStatus(rates(d.good), rates(d.bad), rates(d.all));
}

// Requests that run, over the run: each second's mean.
OrderedJson Running(const Divided& d, double seconds) {
  auto running = [&](const Outcomes& of) {
    std::vector<double> by_second(static_cast<size_t>(std::ceil(std::max(seconds, 1e-9))));
    for (const Outcome* o : of) {
      const double begin = Seconds(o->sent), end = Seconds(o->end);
      for (auto s = static_cast<size_t>(std::max(0.0, begin)); s < by_second.size() && static_cast<double>(s) < end;
           ++s)
        by_second[s] += std::min(end, static_cast<double>(s + 1)) - std::max(begin, static_cast<double>(s));
    }
    for (size_t s = 0; s < by_second.size(); ++s) by_second[s] /= std::max(Within(seconds, s), 1e-9);
    return DistributionOf(by_second);
  };
  return ByStatus(running(d.good), running(d.bad), running(d.all));
}

OrderedJson Metrics(const Divided& d, const Summary& s) {
  const double seconds = s.duration_s;
  auto if_begun = [](double (Outcome::*figure)() const) {
    return [figure](const Outcome& o) -> std::optional<double> {
      return o.arrivals.empty() ? std::nullopt : std::optional((o.*figure)());
    };
  };
  auto prompt = [](const Outcome& o) { return static_cast<double>(o.answer.prompt_tokens); };
  auto answer = [](const Outcome& o) { return static_cast<double>(o.OutputTokens()); };
  auto both = [=](const Outcome& o) { return prompt(o) + answer(o); };
  auto some = [](auto amount) { return [amount](const Outcome& o) { return std::optional<double>(amount(o)); }; };
  OrderedJson out = OrderedJson::object();
  out["request_totals"] = {
      {"successful", d.good.size()}, {"errored", d.bad.size()}, {"incomplete", 0}, {"total", d.all.size()}};
  out["requests_per_second"] = Rate(d, seconds, [](const Outcome&) { return 1.0; });
  out["request_concurrency"] = Running(d, seconds);
  out["request_latency"] = Of(d, [](const Outcome& o) { return std::optional(o.E2elMs() / 1000); });
  out["request_dispatch_delay"] = Of(d, [](const Outcome& o) { return std::optional(Seconds(o.sent - o.due)); });
  out["request_streaming_iterations_count"] =
      Of(d, [](const Outcome& o) { return std::optional(static_cast<double>(o.arrivals.size())); });
  out["prompt_token_count"] = Of(d, some(prompt));
  out["output_token_count"] = Of(d, some(answer));
  out["total_token_count"] = Of(d, some(both));
  out["time_to_first_token_ms"] = out["time_to_first_output_token_ms"] = Of(d, if_begun(&Outcome::TtftMs));
  out["time_per_output_token_ms"] = Of(d, [](const Outcome& o) -> std::optional<double> {
    if (o.OutputTokens() < 1 || o.arrivals.empty()) return std::nullopt;
    return Milliseconds(o.arrivals.back() - o.sent) / static_cast<double>(o.OutputTokens());
  });
  out["inter_token_latency_ms"] = Of(d, [](const Outcome& o) -> std::optional<double> {
    if (o.OutputTokens() < 2 || o.arrivals.empty()) return std::nullopt;
    return Milliseconds(o.arrivals.back() - o.arrivals.front()) / static_cast<double>(o.OutputTokens() - 1);
  });
  out["time_to_last_round_trip_ms"] = out["avg_round_trip_time_ms"] =
      Of(d, [](const Outcome&) { return std::optional<double>(); });  // of sockets that stay open
  out["prompt_tokens_per_second"] = Rate(d, seconds, prompt);
  out["output_tokens_per_second"] = Rate(d, seconds, answer);
  out["tokens_per_second"] = Rate(d, seconds, both);
  out["output_tokens_per_iteration"] = out["iter_tokens_per_iteration"] = Of(d, [](const Outcome& o) {
    return o.arrivals.empty()
               ? std::nullopt
               : std::optional(static_cast<double>(o.OutputTokens()) / static_cast<double>(o.arrivals.size()));
  });
  for (const auto& [kind, parts] : std::initializer_list<std::pair<const char*, std::vector<const char*>>>{
           {"text", {"tokens", "words", "characters"}},
           {"image", {"tokens", "images", "pixels", "bytes"}},
           {"video", {"tokens", "frames", "seconds", "bytes"}},
           {"audio", {"tokens", "samples", "seconds", "bytes"}},
           {"tool_call", {"tokens", "mixed_tokens", "count"}}}) {
    for (const char* part : parts) out[kind][part] = nullptr;  // texts are counted above; there is nothing else
  }
  if (s.good) {
    out["slo_attainment"] = d.good.empty() ? 0 : static_cast<double>(*s.good) / static_cast<double>(d.good.size());
    out["slo_determined_requests"] = d.good.size();
  }
  return out;
}

OrderedJson RequestEntry(const Outcome& o, size_t number, double start) {
  auto at = [start](Duration offset) { return start + Seconds(offset); };
  OrderedJson timings = {{"targeted_start", at(o.due)},
                         {"request_start", at(o.sent)},
                         {"request_iterations", o.arrivals.size()},
                         {"token_iterations", o.arrivals.size()},
                         {"resolve_start", at(o.sent)},
                         {"request_end", at(o.end)},
                         {"resolve_end", at(o.end)}};
  if (!o.arrivals.empty()) {
    timings["first_request_iteration"] = timings["first_token_iteration"] = timings["first_output_token_iteration"] =
        at(o.arrivals.front());
    timings["last_request_iteration"] = timings["last_token_iteration"] = at(o.arrivals.back());
  }
  const std::string id = StrCat("request-", number);
  return {{"type_", "generative_request_stats"},
          {"request_id", id},
          {"output", o.answer.text},
          {"info",
           {{"request_id", id},
            {"status", o.ok() ? "completed" : "errored"},
            {"scheduler_start_time", start},
            {"timings", std::move(timings)},
            {"error", o.ok() ? OrderedJson() : OrderedJson(o.error)}}},
          {"input_metrics", {{"text_tokens", o.answer.prompt_tokens}, {"cached_tokens", o.answer.cached_tokens}}},
          {"output_metrics", {{"text_tokens", o.OutputTokens()}}}};
}

OrderedJson Strategy(const LoadPoint& point, double burstiness) {
  const bool open = !std::isinf(point.request_rate);
  OrderedJson out =
      open ? OrderedJson{{"type_", burstiness > 100 ? "constant" : "poisson"}, {"rate", point.request_rate}}
           : OrderedJson{{"type_", point.max_concurrency > 0 ? "concurrent" : "throughput"}};
  if (!open && point.max_concurrency > 0) out["streams"] = point.max_concurrency;
  out["max_concurrency"] = point.max_concurrency > 0 ? OrderedJson(point.max_concurrency) : OrderedJson();
  return out;
}

OrderedJson Profile(const LoadPoint& point, double burstiness) {
  const OrderedJson strategy = Strategy(point, burstiness);
  OrderedJson out = {{"kind", strategy["type_"]}};
  if (strategy.contains("rate")) out["rate"] = OrderedJson::array({strategy["rate"]});
  if (strategy.contains("streams")) out["streams"] = OrderedJson::array({strategy["streams"]});
  return out;
}

OrderedJson Benchmark(const Measured& m, size_t number, const BenchOptions& o) {
  const double start = m.run.started_at_s, end = start + m.summary.duration_s;
  Divided d;
  OrderedJson good = OrderedJson::array(), bad = OrderedJson::array();
  double late = 0, took = 0, waited = 0;
  for (const Outcome& one : m.run.outcomes) {
    d.all.push_back(&one);
    (one.ok() ? d.good : d.bad).push_back(&one);
    (one.ok() ? good : bad).push_back(RequestEntry(one, d.all.size() - 1, start));
    late += Seconds(one.sent - one.due);
    took += Seconds(one.end - one.sent);
    waited += Seconds(one.waited);
  }
  const auto count = static_cast<double>(std::max<size_t>(1, d.all.size()));
  const OrderedJson totals = {
      {"successful", d.good.size()}, {"errored", d.bad.size()}, {"incomplete", 0}, {"total", d.all.size()}};
  OrderedJson times = {{"start_time", start},
                       {"request_start_time", start},
                       {"measure_start_time", start},
                       {"measure_end_time", end},
                       {"request_end_time", end},
                       {"end_time", end},
                       {"requests_made", totals},
                       {"generation_delay", DistributionOf({})},
                       {"queued_time_avg", waited / count}};
  for (const char* zero : {"resolve_start_delay_avg", "resolve_targeted_start_delay_avg", "request_start_delay_avg",
                           "resolve_end_delay_avg", "finalized_delay_avg", "processed_delay_avg"})
    times[zero] = 0.0;  // stages of its own scheduler, which ours has not
  times["request_targeted_start_delay_avg"] = late / count;
  times["request_time_avg"] = times["resolve_time_avg"] = took / count;
  times["strategy_type"] = Strategy(m.point, o.burstiness)["type_"];
  return {{"type_", "generative_benchmark"},
          {"config",
           {{"id_", StrCat("baton-", m.date, "-", number)},
            {"run_id", StrCat("baton-", m.date)},
            {"run_index", number},
            {"strategy", Strategy(m.point, o.burstiness)},
            {"constraints", OrderedJson::object()},
            {"profile", Profile(m.point, o.burstiness)},
            {"requests", {{"dataset_name", o.dataset_name}}},
            {"backend", {{"kind", "openai_http"}, {"target", o.base_url}, {"model", m.model}}},
            {"environment", {{"tool", "baton bench"}}}}},
          {"scheduler_state",
           {{"num_processes", 1},
            {"start_time", start},
            {"end_time", end},
            {"created_requests", d.all.size()},
            {"processed_requests", d.all.size()},
            {"successful_requests", d.good.size()},
            {"errored_requests", d.bad.size()}}},
          {"scheduler_metrics", std::move(times)},
          {"metrics", Metrics(d, m.summary)},
          {"requests",
           {{"successful", std::move(good)}, {"errored", std::move(bad)}, {"incomplete", OrderedJson::array()}}}};
}

}  // namespace

std::string GuidellmReport(const std::vector<Measured>& all, const BenchOptions& o) {
  OrderedJson benchmarks = OrderedJson::array();
  for (const Measured& m : all) benchmarks.push_back(Benchmark(m, benchmarks.size(), o));
  const OrderedJson report = {
      {"metadata",
       {{"version", 2}, {"guidellm_version", "0.8.1"}, {"python_version", ""}, {"platform", "baton bench"}}},
      {"config",
       {{"metadata", {{"labels", {{"dataset", o.dataset_name}, {"label", o.label}}}}},
        {"spec",
         {{"backend",
           {{"kind", "openai_http"},
            {"target", o.base_url.empty() ? StrCat("http://", net::JoinHostPort(o.host, o.port)) : o.base_url},
            {"model", all.front().model}}},
          {"profile", Profile(all.front().point, o.burstiness)},
          {"data",
           OrderedJson::array({{{"kind", "synthetic_text"},
                                {"prompt_tokens", o.input_len > 0 ? o.input_len : o.random_input_len},
                                {"output_tokens", o.output_len > 0 ? o.output_len : o.random_output_len}}})}}}}},
      {"benchmarks", std::move(benchmarks)}};
  return report.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace baton::load
