#include "load/report_lists.h"

#include <algorithm>
#include <array>

#include "common/check.h"

namespace baton::load {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson Gaps(const Outcome& o) {
  OrderedJson gaps = OrderedJson::array();
  for (size_t i = 1; i < o.arrivals.size(); ++i) gaps.push_back(Seconds(o.arrivals[i] - o.arrivals[i - 1]));
  return gaps;
}

OrderedJson StagesList(const Outcome& o) {
  return o.answer.stages ? StagesJson({o.index, o.TtftMs(), o.SecondMs(), *o.answer.stages}) : OrderedJson();
}

struct List {
  std::string_view key;
  OrderedJson (*entry)(const Outcome& outcome);
};
constexpr std::array kLists = {
    List{"input_lens", [](const Outcome& o) { return OrderedJson(o.answer.prompt_tokens); }},
    List{"output_lens", [](const Outcome& o) { return OrderedJson(o.ok() ? o.OutputTokens() : 0); }},
    List{"ttfts", [](const Outcome& o) { return OrderedJson(o.TtftMs() / 1000); }},
    List{"itls", Gaps},
    List{"latencies", [](const Outcome& o) { return OrderedJson(o.E2elMs() / 1000); }},
    List{"start_times", [](const Outcome& o) { return OrderedJson(Seconds(o.sent)); }},
    List{"queue_times", [](const Outcome& o) { return OrderedJson(Seconds(o.waited)); }},
    List{"generated_texts", [](const Outcome& o) { return OrderedJson(o.answer.text); }},
    List{"errors", [](const Outcome& o) { return OrderedJson(o.error); }},
    List{"failure_kinds", [](const Outcome& o) { return OrderedJson(kFailureNames[static_cast<size_t>(o.failure)]); }},
    List{"http_statuses", [](const Outcome& o) { return OrderedJson(o.http_status); }},
    List{"due_times", [](const Outcome& o) { return OrderedJson(Seconds(o.due)); }},
    List{"cached_lens", [](const Outcome& o) { return OrderedJson(o.answer.cached_tokens); }},
    List{"counted", [](const Outcome& o) { return OrderedJson(o.answer.counted); }},
    List{"stages", StagesList}};

}  // namespace

std::span<const std::string_view> RequestListKeys() {
  static const auto keys = [] {
    std::array<std::string_view, kLists.size()> out;
    std::ranges::transform(kLists, out.begin(), &List::key);
    return out;
  }();
  return keys;
}

void AddRequestLists(OrderedJson& out, const std::vector<Outcome>& outcomes, std::span<const std::string_view> keys) {
  for (const std::string_view key : keys) {
    const auto list = std::ranges::find(kLists, key, &List::key);
    BATON_CHECK(list != kLists.end(), "no list ", key);
    OrderedJson entries = OrderedJson::array();
    for (const Outcome& o : outcomes) entries.push_back(list->entry(o));
    out[std::string(key)] = std::move(entries);
  }
}

OrderedJson StagesJson(const FirstToken& f) {
  return {{"request", f.index},
          {"ttft_ms", f.ttft_ms},
          {"queue_prefill_ms", f.stages.queue_prefill},
          {"prefill_ms", f.stages.prefill},
          {"transfer_ms", f.stages.transfer},
          {"queue_decode_ms", f.stages.queue_decode},
          {"first_decode_ms", f.stages.first_decode},
          {"router_ms", f.stages.router},
          {"lost_ms", f.stages.lost},
          {"reserve_ms", f.stages.reserve},
          {"network_ms", f.stages.network},
          {"client_ms", f.rest_ms()},
          {"second_token_ms", f.second_ms}};
}

}  // namespace baton::load
