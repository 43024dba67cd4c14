// guidellm's report, version 2 of its schema. Its inter token latency is our TPOT until the last token, of which an
// answer's counts as often as it has gaps; its time per output token is the last one's time by all.
#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "common/json.h"
#include "common/net/address.h"
#include "common/str_cat.h"
#include "load/formats/distribution.h"
#include "load/formats/formats.h"

namespace baton::load {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Outcomes = std::vector<const Outcome*>;

/// The outcomes of one run, as it divides them; nothing is cut off at the end of ours.
struct Divided {
  Outcomes good, bad, all;
};

OrderedJson ByStatus(const OrderedJson& good, const OrderedJson& bad, const OrderedJson& all) {
  return {{"successful", good}, {"errored", bad}, {"incomplete", DistributionOf({})}, {"total", all}};
}

// The same of each status's outcomes.
template <class Make>
OrderedJson OfEachStatus(const Divided& d, const Make& make) {
  return ByStatus(make(d.good), make(d.bad), make(d.all));
}

// Values that `add` makes of each request.
template <class Add>
OrderedJson Values(const Divided& d, const Add& add) {
  return OfEachStatus(d, [&](const Outcomes& of) {
    std::vector<Weighted> values;
    for (const Outcome* o : of) add(*o, values);
    return DistributionOf(std::move(values));
  });
}

// A figure that each request has, or (nullopt) has not.
template <class Figure>
OrderedJson Of(const Divided& d, const Figure& figure) {
  return OfEachStatus(d, [&](const Outcomes& of) {
    std::vector<double> values;
    for (const Outcome* o : of) {
      if (const std::optional<double> value = figure(*o)) values.push_back(*value);
    }
    return SampleOf(std::move(values));
  });
}

// Of a request's amounts, whenever they come.
template <class Add>
OrderedJson Rate(const Divided& d, double seconds, const Add& add) {
  return OfEachStatus(d, [&](const Outcomes& of) {
    std::vector<Came> came;
    for (const Outcome* o : of) add(*o, came);
    return RateDistribution(std::move(came), 0, seconds);
  });
}

template <class Amount>
OrderedJson Running(const Divided& d, double seconds, const Amount& amount) {
  return OfEachStatus(d, [&](const Outcomes& of) {
    std::vector<Ran> ran;
    for (const Outcome* o : of) ran.push_back({Seconds(o->sent), Seconds(o->end), amount(*o)});
    return RunningDistribution(ran, 0, seconds);
  });
}

double TokensIn(const Outcome& o) { return static_cast<double>(o.answer.prompt_tokens); }
double TokensOut(const Outcome& o) { return static_cast<double>(o.OutputTokens()); }

// Prompts are counted when their first token comes, or at the end.
void AddPrompt(const Outcome& o, std::vector<Came>& out) {
  out.push_back({Seconds(o.arrivals.empty() ? o.end : o.arrivals.front()), TokensIn(o)});
}

// One token with the first chunk, the others in equal parts with the chunks behind it.
void AddAnswer(const Outcome& o, std::vector<Came>& out) {
  if (o.arrivals.size() < 2 || o.OutputTokens() < 1) {
    out.push_back({Seconds(o.arrivals.empty() ? o.end : o.arrivals.back()), TokensOut(o)});
    return;
  }
  const double each = (TokensOut(o) - 1) / static_cast<double>(o.arrivals.size() - 1);
  for (size_t i = 0; i < o.arrivals.size(); ++i) out.push_back({Seconds(o.arrivals[i]), i == 0 ? 1 : each});
}

void AddIterations(const Outcome& o, bool first, std::vector<Weighted>& out) {
  std::vector<Came> came;
  AddAnswer(o, came);
  if (came.size() < 2 && !first) return;
  for (size_t i = first ? 0 : 1; i < came.size(); ++i) out.push_back({came[i].amount});
}

void AddTimePerToken(const Outcome& o, std::vector<Weighted>& out) {
  const Duration last = o.arrivals.empty() ? o.end : o.arrivals.back();
  if (o.OutputTokens() > 0) out.push_back({Milliseconds(last - o.sent) / TokensOut(o), TokensOut(o)});
}

void AddGap(const Outcome& o, std::vector<Weighted>& out) {
  if (o.OutputTokens() < 2 || o.arrivals.empty()) return;
  const double gaps = TokensOut(o) - 1;
  out.push_back({Milliseconds(o.arrivals.back() - o.arrivals.front()) / gaps, gaps});
}

double Words(const Outcome& o) {
  double words = 0;
  bool within = false;
  for (const char c : o.answer.text) {
    const bool letter = !absl::ascii_isspace(static_cast<unsigned char>(c));
    words += letter && !within ? 1 : 0;
    within = letter;
  }
  return words;
}

// Code points of UTF-8.
double Characters(const Outcome& o) {
  return static_cast<double>(
      std::ranges::count_if(o.answer.text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

using Amount = double (*)(const Outcome& outcome);

// Amounts of each request in three ways, each amount for itself.
void AddAmounts(OrderedJson& out, const char* side, const Divided& d, double seconds,
                const std::vector<Amount>& amounts) {
  out[side] = Values(d, [&](const Outcome& o, std::vector<Weighted>& values) {
    for (const Amount amount : amounts) values.push_back({amount(o)});
  });
  out[StrCat(side, "_per_second")] = Rate(d, seconds, [&](const Outcome& o, std::vector<Came>& came) {
    for (const Amount amount : amounts) came.push_back({Seconds(o.end), amount(o)});
  });
  out[StrCat(side, "_concurrency")] = Running(d, seconds, [&](const Outcome& o) {
    double sum = 0;
    for (const Amount amount : amounts) sum += amount(o);
    return sum;
  });
}

OrderedJson Uncounted() {
  OrderedJson out = OrderedJson::object();
  for (const char* side : {"input", "output", "total"}) {
    for (const char* how : {"", "_per_second", "_concurrency"}) out[StrCat(side, how)] = nullptr;
  }
  return out;
}

// Texts; there are no pictures and sounds. Words and characters of prompts are not kept.
void AddKinds(OrderedJson& out, const Divided& d, double seconds) {
  for (const auto& [kind, parts] : std::initializer_list<std::pair<const char*, std::vector<const char*>>>{
           {"text", {"tokens", "words", "characters"}},
           {"image", {"tokens", "images", "pixels", "bytes"}},
           {"video", {"tokens", "frames", "seconds", "bytes"}},
           {"audio", {"tokens", "samples", "seconds", "bytes"}},
           {"tool_call", {"tokens", "mixed_tokens", "count"}}}) {
    for (const char* part : parts) out[kind][part] = nullptr;
  }
  OrderedJson tokens = Uncounted(), words = Uncounted(), characters = Uncounted();
  AddAmounts(tokens, "input", d, seconds, {TokensIn});
  AddAmounts(tokens, "output", d, seconds, {TokensOut});
  AddAmounts(tokens, "total", d, seconds, {TokensIn, TokensOut});
  AddAmounts(words, "output", d, seconds, {Words});
  AddAmounts(characters, "output", d, seconds, {Characters});
  out["text"] = {{"tokens", std::move(tokens)}, {"words", std::move(words)}, {"characters", std::move(characters)}};
}

void AddEnd(const Outcome& o, std::vector<Came>& out) { out.push_back({Seconds(o.end)}); }

// Whether it counts a request as good: its tpot ends with the last token, and who has no figure for one of the goals
// (nullopt) is not counted.
std::optional<bool> Keeps(const Outcome& o, const Goal& goal) {
  if ((goal.ttft_ms || goal.tpot_ms) && o.arrivals.empty()) return std::nullopt;
  if (goal.tpot_ms && o.OutputTokens() < 2) return std::nullopt;
  if (goal.ttft_ms && o.TtftMs() > *goal.ttft_ms) return false;
  if (goal.tpot_ms && Milliseconds(o.arrivals.back() - o.arrivals.front()) / (TokensOut(o) - 1) > *goal.tpot_ms)
    return false;
  return !goal.e2el_ms || o.E2elMs() <= *goal.e2el_ms;
}

// Who fails keeps no goal.
void AddGoodput(OrderedJson& out, const Divided& d, double seconds, const Goal& goal) {
  out["slo_attainment"] = out["request_goodput"] = nullptr;
  out["slo_determined_requests"] = 0;
  if (!goal.any()) return;
  Divided kept;
  size_t determined = d.bad.size();
  for (const Outcome* o : d.good) {
    const std::optional<bool> keeps = Keeps(*o, goal);
    determined += keeps ? 1 : 0;
    if (keeps.value_or(false)) kept.good.push_back(o);
  }
  if (determined == 0) return;
  kept.all = kept.good;
  out["slo_attainment"] = static_cast<double>(kept.good.size()) / static_cast<double>(determined);
  out["slo_determined_requests"] = determined;
  out["request_goodput"] = Rate(kept, seconds, AddEnd);
}

OrderedJson Metrics(const Divided& d, const Measured& m, const Goal& goal) {
  const double seconds = m.summary.duration_s;
  const auto ttft = [](const Outcome& o) { return o.arrivals.empty() ? std::nullopt : std::optional(o.TtftMs()); };
  const bool scheduled = m.point.own_times || !std::isinf(m.point.request_rate);
  OrderedJson out = OrderedJson::object();
  out["request_totals"] = {
      {"successful", d.good.size()}, {"errored", d.bad.size()}, {"incomplete", 0}, {"total", d.all.size()}};
  out["requests_per_second"] = Rate(d, seconds, AddEnd);
  out["request_concurrency"] = Running(d, seconds, [](const Outcome&) { return 1.0; });
  out["request_latency"] = Of(d, [](const Outcome& o) { return o.E2elMs() / 1000; });
  if (scheduled) {  // else there is nothing to be late for
    out["request_dispatch_delay"] = Of(d, [](const Outcome& o) { return Seconds(o.sent - o.due); });
    out["request_scheduled_latency"] = Of(d, [](const Outcome& o) { return Seconds(o.end - o.due); });
  }
  out["request_streaming_iterations_count"] =
      Of(d, [](const Outcome& o) { return static_cast<double>(o.arrivals.size()); });
  out["prompt_token_count"] = Of(d, TokensIn);
  out["output_token_count"] = Of(d, TokensOut);
  out["total_token_count"] = Of(d, [](const Outcome& o) { return TokensIn(o) + TokensOut(o); });
  out["time_to_first_token_ms"] = out["time_to_first_output_token_ms"] = Of(d, ttft);
  out["time_per_output_token_ms"] = Values(d, AddTimePerToken);
  out["inter_token_latency_ms"] = Values(d, AddGap);
  out["time_to_last_round_trip_ms"] = out["avg_round_trip_time_ms"] =
      Values(d, [](const Outcome&, std::vector<Weighted>&) {});  // of sockets that stay open
  out["prompt_tokens_per_second"] = Rate(d, seconds, AddPrompt);
  out["output_tokens_per_second"] = Rate(d, seconds, AddAnswer);
  out["tokens_per_second"] = Rate(d, seconds, [](const Outcome& o, std::vector<Came>& came) {
    AddPrompt(o, came);
    AddAnswer(o, came);
  });
  out["output_tokens_per_iteration"] =
      Values(d, [](const Outcome& o, std::vector<Weighted>& values) { AddIterations(o, true, values); });
  out["iter_tokens_per_iteration"] =
      Values(d, [](const Outcome& o, std::vector<Weighted>& values) { AddIterations(o, false, values); });
  AddKinds(out, d, seconds);
  AddGoodput(out, d, seconds, goal);
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
          {"output_metrics",
           {{"text_tokens", o.OutputTokens()}, {"text_words", Words(o)}, {"text_characters", Characters(o)}}}};
}

OrderedJson Strategy(const LoadPoint& point, const BenchOptions& o) {
  OrderedJson out = OrderedJson::object();
  if (point.own_times) {
    out = {{"type_", "trace"}, {"time_scale", 1 / o.trace_speed}, {"schedule_turn", "timestamp"}};
  } else if (!std::isinf(point.request_rate)) {
    out = {{"type_", o.burstiness > 100 ? "constant" : "poisson"}, {"rate", point.request_rate}};
  } else if (point.max_concurrency > 0) {
    out = {{"type_", "concurrent"}, {"streams", point.max_concurrency}};
  } else {
    out["type_"] = "throughput";
  }
  out["max_concurrency"] = point.max_concurrency > 0 ? OrderedJson(point.max_concurrency) : OrderedJson();
  return out;
}

OrderedJson Profile(const LoadPoint& point, const BenchOptions& o) {
  const OrderedJson strategy = Strategy(point, o);
  OrderedJson out = {{"kind", point.own_times ? OrderedJson("replay") : strategy["type_"]}};
  if (strategy.contains("time_scale")) out["time_scale"] = strategy["time_scale"];
  if (strategy.contains("rate")) out["rate"] = OrderedJson::array({strategy["rate"]});
  if (strategy.contains("streams")) out["streams"] = OrderedJson::array({strategy["streams"]});
  return out;
}

// Its goals are above 0.
OrderedJson SloOf(const Goal& goal) {
  OrderedJson out;
  for (const auto& [key, ms] :
       {std::pair{"ttft_ms", goal.ttft_ms}, {"tpot_ms", goal.tpot_ms}, {"e2el_ms", goal.e2el_ms}}) {
    if (ms) out[key] = std::max(*ms, 1e-9);
  }
  return out;
}

OrderedJson Benchmark(const Measured& m, size_t number, const BenchOptions& o) {
  const Goal goal = ParseGoal(o.goodput).value_or(Goal{});
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
  times["strategy_type"] = Strategy(m.point, o)["type_"];
  return {{"type_", "generative_benchmark"},
          {"config",
           {{"id_", StrCat("baton-", m.date, "-", number)},
            {"run_id", StrCat("baton-", m.date)},
            {"run_index", number},
            {"strategy", Strategy(m.point, o)},
            {"constraints", OrderedJson::object()},
            {"sample_size", nullptr},
            {"prefer_response_metrics", true},
            {"slo", SloOf(goal)},
            {"confidence", 0.95},
            {"profile", Profile(m.point, o)},
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
          {"metrics", Metrics(d, m, goal)},
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
          {"profile", Profile(all.front().point, o)},
          {"data",
           OrderedJson::array({{{"kind", "synthetic_text"},
                                {"prompt_tokens", o.input_len > 0 ? o.input_len : o.random_input_len},
                                {"output_tokens", o.output_len > 0 ? o.output_len : o.random_output_len}}})}}}}},
      {"benchmarks", std::move(benchmarks)}};
  return report.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace baton::load
