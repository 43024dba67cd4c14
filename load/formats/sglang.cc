#include <cmath>

#include "common/json.h"
#include "common/str_cat.h"
#include "load/bench_checks.h"
#include "load/formats/formats.h"
#include "load/report_lists.h"

namespace baton::load {
namespace {

using OrderedJson = nlohmann::ordered_json;

void AddTimes(OrderedJson& out, const std::string& key, const Statistics& values) {
  out[StrCat("mean_", key, "_ms")] = values.mean();
  out[StrCat("median_", key, "_ms")] = values.Percentile(50);
  out[StrCat("std_", key, "_ms")] = values.deviation();
  for (int percent : {90, 95, 99}) out[StrCat("p", percent, "_", key, "_ms")] = values.Percentile(percent);
}

// As its --output-details has them.
constexpr std::string_view kDetails[] = {"input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors"};

OrderedJson ResultLine(const Measured& m, const BenchOptions& o) {
  const Summary& s = m.summary;
  const double seconds = s.duration_s;
  auto rate = [seconds](int64_t count) { return seconds > 0 ? static_cast<double>(count) / seconds : 0; };
  OrderedJson out = OrderedJson::object();
  out["tag"] = o.label.empty() ? OrderedJson() : OrderedJson(o.label);
  out["backend"] = IsChat(o) ? "sglang-oai-chat" : "sglang-oai";
  out["dataset_name"] = o.dataset_name;
  // All at once is null: it writes Infinity, which is not JSON.
  out["request_rate"] = m.point.own_times                  ? OrderedJson("trace")
                        : std::isinf(m.point.request_rate) ? OrderedJson()
                                                           : OrderedJson(m.point.request_rate);
  out["max_concurrency"] = m.point.max_concurrency > 0 ? OrderedJson(m.point.max_concurrency) : OrderedJson();
  out["sharegpt_output_len"] = o.sharegpt_output_len > 0 ? OrderedJson(o.sharegpt_output_len) : OrderedJson();
  out["random_input_len"] = o.random_input_len;
  out["random_output_len"] = o.random_output_len;
  const absl::StatusOr<RangeRatio> ratio = ParseRangeRatio(o.random_range_ratio);
  out["random_range_ratio"] = ratio.ok() ? ratio->input : 0;
  out["server_info"] = OrderedJson();
  out["duration"] = seconds;
  out["completed"] = s.completed;
  out["total_input_tokens"] = out["total_input_text_tokens"] = s.input_tokens;
  out["total_input_vision_tokens"] = 0;
  out["total_output_tokens"] = s.output_tokens;
  out["total_output_tokens_retokenized"] = OrderedJson();  // nothing is tokenized here
  out["request_throughput"] = rate(s.completed);
  out["input_throughput"] = rate(s.input_tokens);
  out["output_throughput"] = rate(s.output_tokens);
  out["total_throughput"] = rate(s.input_tokens + s.output_tokens);
  AddTimes(out, "e2e_latency", s.e2el);
  AddTimes(out, "ttft", s.ttft);
  AddTimes(out, "tpot", s.tpot);
  AddTimes(out, "itl", s.itl);
  out["max_itl_ms"] = s.itl.most();
  // Requests in flight, averaged over the run: the sum of their times by its length.
  out["concurrency"] = seconds > 0 ? s.e2el.mean() * static_cast<double>(s.e2el.count()) / 1000 / seconds : 0;
  out["accept_length"] = OrderedJson();
  out["max_output_tokens_per_s"] = s.peak_tokens_per_s;
  out["max_concurrent_requests"] = s.most_in_a_second;
  AddRequestLists(out, m.run.outcomes, kDetails);
  return out;
}

}  // namespace

std::string SglangLines(const std::vector<Measured>& all, const BenchOptions& options) {
  std::string out;
  for (const Measured& m : all)
    out += ResultLine(m, options).dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
  return out;
}

}  // namespace baton::load
