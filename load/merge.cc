#include "load/merge.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "common/foreign_text.h"
#include "common/json.h"
#include "common/open_to_read.h"
#include "common/shallow_json.h"
#include "common/status.h"
#include "common/str_cat.h"
#include "load/report_lists.h"

namespace baton::load {
namespace {

using Json = nlohmann::json;

Duration FromSeconds(double seconds) { return Duration(static_cast<int64_t>(std::llround(seconds * 1e9))); }

Failure FailureNamed(const std::string& name) {
  const auto found = std::ranges::find(kFailureNames, name);
  return static_cast<Failure>(found == kFailureNames.end() ? size_t{5}
                                                           : static_cast<size_t>(found - kFailureNames.begin()));
}

std::optional<Stages> StagesOfReport(const Json& json) {
  if (!json.is_object()) return std::nullopt;
  const auto get = [&](const char* key) { return json.value(key, 0.0); };
  return Stages{.queue_prefill = get("queue_prefill_ms"),
                .prefill = get("prefill_ms"),
                .transfer = get("transfer_ms"),
                .queue_decode = get("queue_decode_ms"),
                .first_decode = get("first_decode_ms"),
                .router = get("router_ms"),
                .lost = get("lost_ms"),
                .reserve = get("reserve_ms"),
                .network = get("network_ms")};
}

/// Times of a run longer than eleven days are a file's fault.
constexpr double kMostSeconds = 1e6;

/// One file's run. The accessors of Json throw where a value has another type: Check finds that.
class FileRun {
 public:
  FileRun(std::string name, Json json) : name_(std::move(name)), json_(std::move(json)) {}

  absl::Status Check() const {
    if (!json_.is_object()) return Wrong("it is not the JSON object of a run");
    for (const std::string_view key : RequestListKeys()) {
      const auto list = json_.find(std::string(key));
      if (list == json_.end() || !list->is_array())
        return Wrong(StrCat("it has no list \"", key, "\" (was it written with --save-detailed by this version?)"));
      if (list->size() != count())
        return Wrong(StrCat("\"", key, "\" has ", list->size(), " entries, \"start_times\" ", count()));
    }
    try {
      static_cast<void>(StrCat(started_at(), model(), rate(), limit(), connections(), self_timed(), interrupted(),
                               LeftOut("unfinished"), LeftOut("unsent")));
      std::vector<FaultSeen> faults;
      AddFaults({}, faults);
      for (const FaultSeen& fault : faults) BATON_RETURN_IF_ERROR(CheckTime("faults", Seconds(fault.at)));
      for (size_t i = 0; i < count(); ++i) BATON_RETURN_IF_ERROR(CheckRequest(i));
    } catch (const Json::exception& e) {
      return Wrong(e.what());
    }
    return absl::OkStatus();
  }

  size_t count() const { return json_.contains("start_times") ? json_["start_times"].size() : 0; }
  const std::string& name() const { return name_; }
  double started_at() const { return json_.at("started_at").get<double>(); }
  double ended_at() const {
    double last = 0;
    for (size_t i = 0; i < count(); ++i)
      last = std::max(last, json_["start_times"][i].get<double>() + json_["latencies"][i].get<double>());
    return started_at() + last;
  }
  std::string model() const { return json_.value("model_id", ""); }
  double rate() const { return json_.at("request_rate").is_number() ? json_["request_rate"].get<double>() : kInfinite; }
  int64_t limit() const {
    return json_.at("max_concurrency").is_number() ? json_["max_concurrency"].get<int64_t>() : 0;
  }
  int64_t connections() const { return json_.value("connections", int64_t{0}); }
  bool self_timed() const { return json_.value("self_timed", false); }
  bool interrupted() const { return json_.value("interrupted", false); }
  /// Requests that an interrupted run says nothing else of, by "unfinished" or "unsent".
  int64_t LeftOut(const char* key) const {
    return interrupted() ? std::clamp<int64_t>(json_.value(key, int64_t{0}), 0, int64_t{1} << 40) : 0;
  }
  absl::Status Wrong(const std::string& what) const {
    return absl::InvalidArgumentError(StrCat("--merge: ", name_, ": ", Printable(what, 300)));
  }

  Outcome OutcomeAt(size_t i, Duration shift) const {
    const auto number = [&](const char* key) { return FromSeconds(json_[key][i].get<double>()); };
    Outcome o;
    o.due = shift + number("due_times");
    o.sent = shift + number("start_times");
    o.waited = number("queue_times");
    o.end = o.sent + number("latencies");
    const Json& gaps = json_["itls"][i];
    Duration at = o.sent + number("ttfts");
    if (at > o.sent || !gaps.empty()) o.arrivals.push_back(at);
    for (const Json& gap : gaps) o.arrivals.push_back(at += FromSeconds(gap.get<double>()));
    o.failure = FailureNamed(json_["failure_kinds"][i].get<std::string>());
    o.http_status = json_["http_statuses"][i].get<int>();
    o.error = json_["errors"][i].get<std::string>();
    o.answer.text = json_["generated_texts"][i].get<std::string>();
    o.answer.prompt_tokens = json_["input_lens"][i].get<int64_t>();
    o.answer.completion_tokens = json_["output_lens"][i].get<int64_t>();
    o.answer.cached_tokens = json_["cached_lens"][i].get<int64_t>();
    o.answer.counted = json_["counted"][i].get<bool>();
    o.answer.stages = StagesOfReport(json_["stages"][i]);
    return o;
  }

  void AddFaults(Duration shift, std::vector<FaultSeen>& out) const {
    for (const Json& fault : json_.value("faults", Json::array()))
      out.push_back({shift + FromSeconds(fault.at("at_s").get<double>()), fault.at("what").get<std::string>(),
                     fault.at("error").get<std::string>()});
  }

 private:
  absl::Status CheckTime(std::string_view key, double seconds) const {
    if (seconds >= 0 && seconds <= kMostSeconds) return absl::OkStatus();
    return Wrong(StrCat("\"", key, "\" has ", seconds, " s, which is not between 0 and ", kMostSeconds));
  }
  absl::Status CheckRequest(size_t i) const {
    for (const char* key : {"due_times", "start_times", "queue_times", "ttfts", "latencies"})
      BATON_RETURN_IF_ERROR(CheckTime(key, json_[key][i].get<double>()));
    for (const Json& gap : json_["itls"][i]) BATON_RETURN_IF_ERROR(CheckTime("itls", gap.get<double>()));
    for (const char* key : {"input_lens", "output_lens", "cached_lens"}) {
      if (const double n = json_[key][i].get<double>(); !(n >= 0 && n <= 1e9))
        return Wrong(StrCat("\"", key, "\" has ", n, " tokens, which is not between 0 and 1e+09"));
    }
    static_cast<void>(OutcomeAt(i, {}));
    return absl::OkStatus();
  }

  static constexpr double kInfinite = std::numeric_limits<double>::infinity();

  std::string name_;
  Json json_;
};

int MostAtATime(const std::vector<Outcome>& outcomes) {
  std::vector<std::pair<Duration, int>> changes;  // an end before a begin at the same time
  for (const Outcome& o : outcomes) {
    changes.emplace_back(o.sent, 1);
    changes.emplace_back(o.end, -1);
  }
  std::ranges::sort(changes);
  int now = 0, most = 0;
  for (const auto& [at, change] : changes) most = std::max(most, now += change);
  return most;
}

absl::StatusOr<Measured> Together(const std::vector<FileRun>& runs, const Goal& goal) {
  Measured out{.model = runs.front().model(), .point = {0, 0}};
  double start = runs.front().started_at();
  for (const FileRun& run : runs) start = std::min(start, run.started_at());
  bool limited = true, self_timed = true;
  for (const FileRun& run : runs) {
    if (run.model() != out.model)
      return run.Wrong(StrCat("its model is ", run.model(), ", that of the first file ", out.model));
    if (!(run.started_at() - start <= kMostSeconds))
      return run.Wrong(StrCat("it began ", run.started_at() - start, " s after the first one"));
    const Duration shift = FromSeconds(run.started_at() - start);
    for (size_t i = 0; i < run.count(); ++i) {
      out.run.outcomes.push_back(run.OutcomeAt(i, shift));
      out.run.outcomes.back().index = out.run.outcomes.size() - 1;
    }
    run.AddFaults(shift, out.run.faults);
    out.run.connections += run.connections();
    out.run.interrupted |= run.interrupted();
    out.run.unfinished += run.LeftOut("unfinished");
    out.run.unsent += run.LeftOut("unsent");
    out.point.request_rate += run.rate();
    out.point.max_concurrency += run.limit();
    limited = limited && run.limit() > 0;
    self_timed = self_timed && run.self_timed();
  }
  if (!limited) out.point.max_concurrency = 0;
  out.point.own_times = self_timed;
  out.run.started_at_s = start;
  for (const Outcome& o : out.run.outcomes) out.run.duration = std::max(out.run.duration, o.end);
  out.run.most_at_a_time = MostAtATime(out.run.outcomes);
  out.summary = Summarize(out.run, goal);
  for (const FaultSeen& fault : out.run.faults) {
    const std::optional<Dip> dip = FindDip(out.run.outcomes, out.run.duration, fault);
    if (dip && fault.error.empty()) out.dips.push_back(*dip);
  }
  return out;
}

// Generators that run together overlap; where they do not, nothing is measured of their load.
std::string Apart(std::vector<const FileRun*> runs) {
  std::ranges::stable_sort(runs, {}, [](const FileRun* run) { return run->started_at(); });
  double ended = runs.front()->ended_at();
  for (const FileRun* run : runs) {
    if (run->started_at() > ended)
      return StrCat("--merge: ", run->name(), " began ", run->started_at() - ended,
                    " s after those before it had ended: were they to run together, then a machine's clock is wrong");
    ended = std::max(ended, run->ended_at());
  }
  return "";
}

}  // namespace

absl::StatusOr<Measured> MergeTexts(const std::vector<std::pair<std::string, std::string>>& files, const Goal& goal,
                                    std::string* note) {
  std::vector<FileRun> runs;
  for (const auto& [name, text] : files) {
    runs.emplace_back(name, ShallowJson(text));
    BATON_RETURN_IF_ERROR(runs.back().Check());
  }
  if (runs.empty()) return absl::InvalidArgumentError("--merge: no file");
  size_t requests = 0;
  for (const FileRun& run : runs) requests += run.count();
  if (requests == 0) return runs.front().Wrong("no file has a request");
  if (note != nullptr) {
    std::vector<const FileRun*> all;
    for (const FileRun& run : runs) all.push_back(&run);
    *note = Apart(std::move(all));
  }
  return Together(runs, goal);
}

absl::StatusOr<Measured> Merge(const std::vector<std::string>& files, const Goal& goal, std::string* note) {
  std::vector<std::pair<std::string, std::string>> texts;
  for (const std::string& file : files) {
    BATON_ASSIGN_OR_RETURN(std::ifstream in, OpenToRead(file, "--merge"));
    texts.emplace_back(file, std::string(std::istreambuf_iterator<char>(in), {}));
  }
  return MergeTexts(texts, goal, note);
}

}  // namespace baton::load
