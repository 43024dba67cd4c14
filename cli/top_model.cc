#include "cli/top_model.h"

#include <algorithm>
#include <utility>

#include "common/json.h"
#include "common/shallow_json.h"
#include "common/str_cat.h"

namespace baton::cli {
namespace {

using nlohmann::json;

std::optional<double> Number(const json& of, const char* key) {
  const auto found = of.find(key);
  return found != of.end() && found->is_number() ? std::optional(found->get<double>()) : std::nullopt;
}
/// A recording is a file like any other: what no server counts becomes the nearest that one could.
int64_t Whole(const json& of, const char* key) {
  constexpr double kMost = 1e15;
  return static_cast<int64_t>(std::clamp(Number(of, key).value_or(0), -kMost, kMost));
}
std::string Text(const json& of, const char* key) {
  const auto found = of.find(key);
  return found != of.end() && found->is_string() ? found->get<std::string>() : "";
}
const json& Part(const json& of, const char* key) {
  static const json kNone = json::object();
  const auto found = of.find(key);
  return found != of.end() && found->is_object() ? *found : kNone;
}
/// The objects of a list.
std::vector<const json*> Each(const json& of, const char* key) {
  std::vector<const json*> out;
  const auto found = of.find(key);
  if (found == of.end() || !found->is_array()) return out;
  for (const json& one : *found) {
    if (one.is_object()) out.push_back(&one);
  }
  return out;
}

TopWorker WorkerOf(const json& w) {
  const json& kv = Part(w, "kv");
  return {.name = Text(w, "name"),
          .role = Text(w, "role"),
          .state = Text(w, "state"),
          .detail = Text(w, "detail"),
          .phase = Text(w, "phase"),
          .progress = Number(w, "progress").value_or(0),
          .running = Whole(w, "running"),
          .waiting = Whole(w, "waiting"),
          .queued_tokens = Whole(w, "queued_tokens"),
          .kv_used = Whole(kv, "used"),
          .kv_reserved = Whole(kv, "reserved"),
          .kv_cached = Whole(kv, "cached"),
          .kv_blocks = Whole(kv, "blocks"),
          .step_ms = Number(w, "last_step_ms"),
          .prompt_tokens_per_s = Number(w, "prompt_tokens_per_s"),
          .generation_tokens_per_s = Number(w, "generation_tokens_per_s")};
}

TopFinished FinishedOf(const json& e, TopRequest request, double t) {
  const json& timings = Part(e, "timings");
  TopFinished f{.request = std::move(request), .reason = Text(e, "reason"), .error = Text(e, "error"), .ended = t};
  f.total_ms = Number(e, "at_ms").value_or(0);
  f.first_token_ms = Number(e, "first_token_ms").value_or(0);
  f.mean_gap_ms = Number(e, "mean_gap_ms").value_or(0);
  const char* const stages[] = {"queue_prefill_ms", "prefill_ms",      "transfer_ms",
                                "queue_decode_ms",  "first_decode_ms", "decode_ms"};
  for (size_t i = 0; i < f.stages_ms.size(); ++i) f.stages_ms[i] = Number(timings, stages[i]).value_or(0);
  return f;
}

}  // namespace

/// What each kind of event changes.
struct TopReader {
  TopModel& m;

  void State(const json& e, double t) {
    ++m.states_;
    m.status = Text(e, "status");
    m.detail = Text(e, "detail");
    m.running = Whole(e, "running");
    m.max_running = Whole(e, "max_running");
    m.texts_queued = Whole(e, "texts_queued");
    m.recomputing = Whole(e, "recomputing");
    m.requests_left_out = Whole(e, "requests_left_out");
    m.prompt_tokens_per_s = Number(e, "prompt_tokens_per_s");
    m.generation_tokens_per_s = Number(e, "generation_tokens_per_s");
    m.workers.clear();
    for (const json* w : Each(e, "workers")) m.workers.push_back(WorkerOf(*w));
    m.links.clear();
    for (const json* l : Each(e, "links")) {
      m.links.push_back({Text(*l, "from"), Text(*l, "to"), Text(*l, "transport"),
                         Number(*l, "self_test_gigabytes_per_second").value_or(0), Number(*l, "bytes_per_s")});
    }
    m.requests_.clear();
    for (const json* r : Each(e, "requests")) {
      const std::string id = Text(*r, "id");
      m.requests_[id] = {id,
                         Text(*r, "stage"),
                         Text(*r, "worker"),
                         Text(*r, "prefill_worker"),
                         t - Number(*r, "age_ms").value_or(0),
                         t - Number(*r, "stage_ms").value_or(0),
                         Whole(*r, "prompt_tokens"),
                         Whole(*r, "tokens")};
    }
  }

  void Request(const json& e, double t) {
    const std::string id = Text(e, "id"), stage = Text(e, "stage");
    TopRequest& r = m.requests_[id];
    r.id = id;
    if (r.began == 0) r.began = t - Number(e, "at_ms").value_or(0);
    if (r.stage != stage) r.stage_since = t;
    r.stage = stage;
    if (e.contains("prompt_tokens")) r.prompt_tokens = Whole(e, "prompt_tokens");
    if (e.contains("tokens") && stage == "tokens") r.tokens = Whole(e, "tokens");
    if (stage == "placed" || stage == "finished") {
      r.worker = Text(e, "worker");
      r.prefill_worker = Text(e, "prefill_worker");
    }
    if (stage != "finished") return;
    r.tokens = Whole(e, "completion_tokens");
    m.finished_.push_back(FinishedOf(e, r, t));
    if (m.finished_.size() > TopModel::kFinishedKept) m.finished_.pop_front();
    m.requests_.erase(id);
  }
};

absl::Status TopModel::Take(std::string_view line) {
  const json e = ShallowJson(line);
  const std::string kind = e.is_object() ? Text(e, "event") : "";
  const std::optional<double> t = e.is_object() ? Number(e, "t") : std::nullopt;
  if (kind.empty() || !t) return absl::InvalidArgumentError("it is no event: no JSON object with \"event\" and \"t\"");
  time_ = std::max(time_, *t);
  if (kind == "hello") server_ = StrCat(Text(e, "model"), "  ", Text(e, "version"), "  ", Text(e, "policy"));
  if (kind == "lost") lost_events_ += Whole(e, "events");
  if (kind == "state") TopReader{*this}.State(e, *t);
  if (kind == "request") TopReader{*this}.Request(e, *t);
  return absl::OkStatus();
}

std::vector<TopRequest> TopModel::Requests() const {
  std::vector<TopRequest> out;
  for (const auto& [id, request] : requests_) out.push_back(request);
  std::ranges::stable_sort(out, {}, &TopRequest::began);
  return out;
}

}  // namespace baton::cli
