// The report files of inference-perf: its "stage" is a run of ours, its times are seconds, and its shares of a goal are
// of answered requests.
#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "common/json.h"
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

// What it calls the kinds of a failure, of which it makes labels.
std::string ErrorType(const Outcome& o) {
  switch (o.failure) {
    case Failure::kNone: return "";
    case Failure::kRefused: return o.http_status > 0 ? StrCat("HTTP Error ", o.http_status) : "RpcError";
    case Failure::kConnect: return "ClientConnectorError";
    case Failure::kTimeout: return "TimeoutError";
    case Failure::kBroken: return "ClientPayloadError";
    case Failure::kError: return "InBandError";
    case Failure::kMalformed: return "InvalidResponseError";
  }
  return "";
}

// What the server said of it: a refusal's status is its label.
std::string ErrorMessage(const Outcome& o) {
  const std::string status = StrCat("HTTP ", o.http_status, ": ");
  return o.error.starts_with(status) ? o.error.substr(status.size()) : o.error;
}

std::string ErrorLabel(const Outcome& o, const std::string& message) {
  if (o.failure == Failure::kTimeout) return "Timeout";
  if (o.failure == Failure::kConnect) return "Connection Error";
  if (o.failure != Failure::kRefused || o.http_status == 0) return absl::AsciiStrToLower(ErrorType(o));
  constexpr std::pair<int, const char*> kOfStatus[] = {{429, "Rate Limit"},
                                                       {500, "Internal Server Error"},
                                                       {502, "Bad Gateway"},
                                                       {503, "Service Unavailable"},
                                                       {504, "Gateway Timeout"}};
  constexpr std::pair<const char*, const char*> kOfText[] = {{"maximum context", "Context Window"},
                                                             {"context length", "Context Window"},
                                                             {"max_tokens", "Context Window"},
                                                             {"invalid json", "Invalid JSON"},
                                                             {"timed out", "Timeout"},
                                                             {"model not found", "Model Not Found"}};
  const auto status = std::ranges::find(kOfStatus, o.http_status, [](const auto& one) { return one.first; });
  if (status != std::end(kOfStatus)) return StrCat(o.http_status, " - ", status->second);
  const std::string said = absl::AsciiStrToLower(message);
  const auto text = std::ranges::find_if(kOfText, [&](const auto& one) { return said.find(one.first) != said.npos; });
  return StrCat(o.http_status, " - ", text != std::end(kOfText) ? text->second : "other");
}

// The most frequent label first, each with its first hundred messages, of which none stands twice.
OrderedJson ByLabel(const std::vector<const Outcome*>& failed) {
  constexpr size_t kMostMessages = 100;
  struct Label {
    std::string name;
    int64_t count = 0;
    std::vector<std::string> messages{};
  };
  std::vector<Label> labels;
  for (const Outcome* o : failed) {
    std::string message = ErrorMessage(*o);
    const std::string name = ErrorLabel(*o, message);
    auto label = std::ranges::find(labels, name, &Label::name);
    if (label == labels.end()) label = labels.insert(label, {name});
    ++label->count;
    if (label->messages.size() < kMostMessages && std::ranges::find(label->messages, message) == label->messages.end())
      label->messages.push_back(std::move(message));
  }
  std::ranges::stable_sort(labels, std::ranges::greater(), &Label::count);
  OrderedJson out = OrderedJson::object();
  for (const Label& label : labels) {
    OrderedJson messages = OrderedJson::array();
    for (const std::string& message : label.messages) messages.push_back({{"message", message}});
    out[label.name] = {{"count", label.count}, {"messages", std::move(messages)}};
  }
  return out;
}

OrderedJson Failures(const std::vector<const Outcome*>& failed) {
  return {{"count", failed.size()},
          {"request_latency", Each(failed, [](const Outcome& o) { return o.E2elMs() / 1000; })},
          {"prompt_tokens", Tokens(failed, true)},
          {"by_label", ByLabel(failed)}};
}

// Of the answered requests, over the `seconds` that they took. Its times to tokens are of what came in several pieces.
OrderedJson Goodput(const std::vector<const Outcome*>& answered, const Goal& goal, double seconds) {
  int64_t good = 0, first = 0, per_token = 0, whole = 0;
  double tokens = 0;
  for (const Outcome* o : answered) {
    const bool pieces = o->arrivals.size() > 1;
    const bool keeps_first = goal.ttft_ms && pieces && o->TtftMs() <= *goal.ttft_ms;
    const bool keeps_per_token =
        goal.tpot_ms && pieces && o->OutputTokens() > 1 &&
        Milliseconds(o->arrivals.back() - o->arrivals.front()) / (AnswerTokens(*o) - 1) <= *goal.tpot_ms;
    const bool keeps_whole = goal.e2el_ms && o->E2elMs() <= *goal.e2el_ms;
    first += keeps_first ? 1 : 0;
    per_token += keeps_per_token ? 1 : 0;
    whole += keeps_whole ? 1 : 0;
    if ((goal.ttft_ms && !keeps_first) || (goal.tpot_ms && !keeps_per_token) || (goal.e2el_ms && !keeps_whole))
      continue;
    ++good;
    tokens += PromptTokens(*o) + AnswerTokens(*o);
  }
  const auto percent = [&](int64_t count) {
    return 100.0 * static_cast<double>(count) / static_cast<double>(answered.size());
  };
  OrderedJson out = {{"goodput_percentage", percent(good)},
                     {"request_goodput", seconds > 0 ? static_cast<double>(good) / seconds : 0},
                     {"token_goodput", seconds > 0 ? tokens / seconds : 0},
                     {"good_requests", good},
                     {"total_requests", answered.size()}};
  if (goal.ttft_ms) out["ttft_attainment_percentage"] = percent(first);
  if (goal.tpot_ms) out["tpot_attainment_percentage"] = percent(per_token);
  if (goal.e2el_ms) out["request_latency_attainment_percentage"] = percent(whole);
  return out;
}

// Texts have none of these.
void AddMedia(OrderedJson& out, const std::vector<const Outcome*>& answered) {
  out["request_size_bytes"] = nullptr;  // not kept
  const OrderedJson none = Each(answered, [](const Outcome&) { return 0.0; });
  out["image"] = {{"count", none}, {"pixels", nullptr}, {"bytes", nullptr}, {"aspect_ratio", nullptr}};
  out["video"] = {
      {"count", none}, {"frames", nullptr}, {"pixels", nullptr}, {"bytes", nullptr}, {"aspect_ratio", nullptr}};
  out["audio"] = {{"count", none}, {"seconds", nullptr}, {"bytes", nullptr}};
}

/// `runs`: one of them for a stage, all for the summary.
OrderedJson SummaryOf(const std::vector<const Measured*>& runs, const Goal& goal) {
  std::vector<const Outcome*> all, answered, failed;
  std::vector<double> lags;
  double seconds = 0, sending = 0, answering = 0;
  for (const Measured* m : runs) {
    Duration first = Duration::max(), last = Duration::min(), end = Duration::min();
    Duration first_answered = Duration::max(), end_answered = Duration::min();
    for (const Outcome& o : m->run.outcomes) {
      all.push_back(&o);
      (o.ok() ? answered : failed).push_back(&o);
      lags.push_back(Seconds(o.sent - o.due));
      first = std::min(first, o.sent);
      last = std::max(last, o.sent);
      end = std::max(end, o.end);
      if (!o.ok()) continue;
      first_answered = std::min(first_answered, o.sent);
      end_answered = std::max(end_answered, o.end);
    }
    if (m->run.outcomes.empty()) continue;
    seconds += Seconds(end - first);
    sending += Seconds(last - first);
    if (end_answered > first_answered) answering += Seconds(end_answered - first_answered);
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
  AddMedia(successes, answered);
  if (goal.any() && !answered.empty()) successes["goodput_metrics"] = Goodput(answered, goal, answering);
  return {{"benchmark_time_seconds", seconds},
          {"load_summary", std::move(load)},
          {"successes", std::move(successes)},
          {"failures", Failures(failed)}};
}

// Of one offered request; times are seconds of the run's own clock, from its begin.
OrderedJson RequestReport(const Outcome& o, size_t stage) {
  OrderedJson times = OrderedJson::array();
  for (Duration at : o.arrivals) times.push_back(Seconds(at));
  return {
      {"stage_id", stage},
      {"scheduled_time", Seconds(o.due)},
      {"start_time", Seconds(o.sent)},
      {"end_time", Seconds(std::max(o.end, o.sent))},
      {"request", nullptr},  // not kept
      {"response", o.answer.text},
      {"info",
       {{"input_tokens", o.answer.prompt_tokens},
        {"request_metrics", {{"text", {{"input_tokens", o.answer.prompt_tokens}}}}},
        {"response_metrics",
         {{"output_tokens", o.OutputTokens()},
          {"output_token_times", std::move(times)},
          {"server_usage", o.answer.counted
                               ? OrderedJson{{"prompt_tokens", o.answer.prompt_tokens},
                                             {"completion_tokens", o.answer.completion_tokens},
                                             {"prompt_tokens_details", {{"cached_tokens", o.answer.cached_tokens}}}}
                               : OrderedJson()}}}}},
      {"error", o.ok() ? OrderedJson() : OrderedJson{{"error_type", ErrorType(o)}, {"error_msg", ErrorMessage(o)}}}};
}

std::string FileText(const OrderedJson& json) {
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace

std::map<std::string, std::string> InferencePerfFiles(const std::vector<Measured>& all, const BenchOptions& options) {
  const Goal goal = ParseGoal(options.goodput).value_or(Goal{});
  std::map<std::string, std::string> out;
  std::vector<const Measured*> runs;
  OrderedJson requests = OrderedJson::array();
  for (const Measured& m : all) {
    out[StrCat("stage_", runs.size(), "_lifecycle_metrics.json")] = FileText(SummaryOf({&m}, goal));
    for (const Outcome& o : m.run.outcomes) requests.push_back(RequestReport(o, runs.size()));
    runs.push_back(&m);
  }
  out["summary_lifecycle_metrics.json"] = FileText(SummaryOf(runs, goal));
  out["per_request_lifecycle_metrics.json"] = FileText(requests);
  return out;
}

}  // namespace baton::load
