// Routing quality: a public trace replayed in virtual time against simulated workers, chosen by the router's own index,
// rule and load tickets. A worker prefills one prompt after the other at a fixed rate, keeps the blocks of prompts in
// an LRU pool, and takes 20 ms per output token, which only counts as a running request.
//   bench_routing --trace mooncake_conversation_trace.jsonl [--workers 8] [--blocks 4096] [--load 0.9] [--lambda 0,1,3]
//   [--json FILE]
// The trace has a line per request: timestamp (ms), input_length, output_length, hash_ids (of 512-token blocks, each
// standing for all before it). Load: of all workers, if nothing were cached.
#include <algorithm>
#include <cstdio>
#include <deque>
#include <fstream>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/strings/str_split.h"
#include "bench/lib/flags.h"
#include "bench/lib/measure.h"
#include "common/check.h"
#include "common/str_cat.h"
#include "router/index/worker_prefixes.h"
#include "router/policy/load_share.h"
#include "router/policy/policies.h"

namespace baton::bench {
namespace {

using namespace baton::router;

constexpr uint32_t kBlockTokens = 512;
constexpr double kDecodeStep_s = 0.020;

struct Request {
  double at_s = 0;
  uint32_t input = 0, output = 0;  // tokens
  std::vector<uint64_t> blocks;
};

std::vector<Request> ReadTrace(const std::string& path) {
  std::ifstream in(path);
  BATON_CHECK(in.good(), "cannot read ", path);
  std::vector<Request> trace;
  for (std::string line; std::getline(in, line);) {
    const nlohmann::json json = nlohmann::json::parse(line);
    Request& r = trace.emplace_back();
    r.at_s = json["timestamp"].get<double>() / 1000;
    r.input = json["input_length"], r.output = json["output_length"];
    for (const uint64_t id : json["hash_ids"]) r.blocks.push_back((id + 1) * 0x9E3779B97F4A7C15ull);  // spread
  }
  return trace;
}

/// The prompt blocks that a worker holds; tells the index what comes and goes.
class BlockPool {
 public:
  BlockPool(int worker, size_t capacity, WorkerPrefixes& index) : worker_(worker), capacity_(capacity), index_(index) {}

  size_t Held(const std::vector<uint64_t>& blocks) const {
    size_t n = 0;
    while (n < blocks.size() && where_.contains(blocks[n])) ++n;
    return n;
  }
  /// All are most recent now, the first one most of all; what is too much goes.
  void Keep(const std::vector<uint64_t>& blocks) {
    for (size_t i = blocks.size(); i-- > 0;) {
      auto [at, is_new] = where_.try_emplace(blocks[i]);
      if (!is_new) recent_.erase(at->second);
      at->second = recent_.insert(recent_.begin(), blocks[i]);
    }
    index_.Store(worker_, blocks);
    while (where_.size() > capacity_) {
      const uint64_t oldest = recent_.back();
      index_.Remove(worker_, {&oldest, 1});
      where_.erase(oldest);
      recent_.pop_back();
    }
  }

 private:
  const int worker_;
  const size_t capacity_;
  WorkerPrefixes& index_;
  std::list<uint64_t> recent_;
  std::unordered_map<uint64_t, std::list<uint64_t>::iterator> where_;
};

struct Outcome {
  std::vector<double> ttft_s;
  std::vector<double> work_tokens;  // [workers] computed
  size_t blocks = 0, hits = 0;
};

struct Setting {
  size_t workers = 8, blocks = 4096;
  double tokens_per_s = 0;  // of a worker's prefill
};

class Replay {
 public:
  Replay(const std::vector<Request>& trace, const Setting& setting, Scorer& scorer)
      : trace_(trace), setting_(setting), scorer_(scorer), index_(int64_t{256} << 20) {
    workers_.reserve(setting.workers);
    for (size_t w = 0; w < setting.workers; ++w) {
      workers_.push_back(
          {BlockPool(static_cast<int>(w), setting.blocks, index_), std::make_shared<OutstandingLoad>(clock_)});
    }
    tickets_.resize(trace.size());
    out_.work_tokens.resize(setting.workers);
  }

  Outcome Run() {
    for (size_t i = 0; i < trace_.size(); ++i) {
      RunUntil(trace_[i].at_s);
      Arrive(i, trace_[i].at_s);
    }
    RunUntil(1e18);
    return std::move(out_);
  }

 private:
  struct Worker {
    BlockPool pool;
    std::shared_ptr<OutstandingLoad> load;
    std::deque<size_t> waiting{};  // requests; the first one is being prefilled
  };

  void RunUntil(double until_s) {
    while (!events_.empty() && events_.begin()->first <= until_s) {
      auto event = events_.extract(events_.begin());
      SetTime(event.key());
      event.mapped()(event.key());
    }
  }

  void SetTime(double now_s) {
    const TimePoint now{std::chrono::duration_cast<Duration>(std::chrono::duration<double>(now_s))};
    clock_.Advance(now - clock_.Now());
  }

  void Arrive(size_t i, double now_s) {
    SetTime(now_s);
    const Request& r = trace_[i];
    const WorkerPrefixes::Depths depths = index_.Match(r.blocks, WorkerSet::All());
    std::vector<Candidate> candidates(workers_.size());
    for (size_t w = 0; w < workers_.size(); ++w) {
      Candidate& c = candidates[w];
      c.id = {static_cast<int32_t>(w), 1};
      const OutstandingLoad& load = *workers_[w].load;
      c.queued_tokens = load.QueuedTokens(setting_.tokens_per_s);
      c.running = load.requests();
      c.max_num_seqs = 256;
      c.prefill_tokens_per_s = setting_.tokens_per_s;
      c.decode_step_ms = 1000 * kDecodeStep_s;
      c.cached_tokens = std::min(std::max(depths[w], load.UnitsUnderWay(r.blocks)) * kBlockTokens, r.input - 1);
    }
    const size_t w = scorer_.Answer({candidates, r.input, nullptr})->worker;
    tickets_[i] = LoadShare(workers_[w].load, r.input - candidates[w].cached_tokens, r.input,
                            std::make_shared<const std::vector<uint64_t>>(r.blocks));
    workers_[w].waiting.push_back(i);
    if (workers_[w].waiting.size() == 1) Begin(w, now_s);
  }

  void Begin(size_t w, double now_s) {
    const Request& r = trace_[workers_[w].waiting.front()];
    const size_t held = workers_[w].pool.Held(r.blocks);
    out_.blocks += r.blocks.size();
    out_.hits += held;
    const double computed = r.input - std::min<double>(static_cast<double>(held) * kBlockTokens, r.input - 1);
    out_.work_tokens[w] += computed;
    events_.emplace(now_s + computed / setting_.tokens_per_s, [this, w](double at_s) { Prefilled(w, at_s); });
  }

  void Prefilled(size_t w, double now_s) {
    const size_t i = workers_[w].waiting.front();
    const Request& r = trace_[i];
    workers_[w].waiting.pop_front();
    workers_[w].pool.Keep(r.blocks);
    tickets_[i].PrefillDone();
    out_.ttft_s.push_back(now_s - r.at_s);
    events_.emplace(now_s + r.output * kDecodeStep_s, [this, i](double) { tickets_[i].Release(); });
    if (!workers_[w].waiting.empty()) Begin(w, now_s);
  }

  const std::vector<Request>& trace_;
  const Setting setting_;
  Scorer& scorer_;
  FakeClock clock_;
  WorkerPrefixes index_;
  std::vector<Worker> workers_;
  std::vector<LoadShare> tickets_;                             // [requests]
  std::multimap<double, std::function<void(double)>> events_;  // by time, s
  Outcome out_;
};

/// Hits if nothing were ever forgotten, and all were in one place.
double Ceiling(const std::vector<Request>& trace) {
  std::unordered_set<uint64_t> seen;
  size_t blocks = 0, hits = 0;
  for (const Request& r : trace) {
    blocks += r.blocks.size();
    size_t n = 0;
    while (n < r.blocks.size() && seen.contains(r.blocks[n])) ++n;
    hits += n;
    seen.insert(r.blocks.begin(), r.blocks.end());
  }
  return static_cast<double>(hits) / static_cast<double>(blocks);
}

int Main(int argc, char** argv) {
  const Flags flags(argc, argv, {"trace", "workers", "blocks", "load", "lambda", "json"});
  const std::vector<Request> trace = ReadTrace(flags("trace"));
  Setting setting;
  setting.workers = static_cast<size_t>(flags.Count("workers", 8));
  setting.blocks = static_cast<size_t>(flags.Count("blocks", 4096));
  double tokens = 0;
  for (const Request& r : trace) tokens += r.input;
  const double load = flags.Number("load", 0.9);
  setting.tokens_per_s = tokens / (trace.back().at_s * static_cast<double>(setting.workers) * load);
  const double ceiling = Ceiling(trace);
  std::printf("%zu requests, %zu workers of %zu blocks and %.0f tokens/s; block hit ceiling %.2f %%\n", trace.size(),
              setting.workers, setting.blocks, setting.tokens_per_s, 100 * ceiling);
  nlohmann::json out = {{"workers", setting.workers}, {"blocks", setting.blocks}, {"ceiling", ceiling}};
  const auto run = [&](const std::string& name, std::unique_ptr<Scorer> scorer) {
    Outcome o = Replay(trace, setting, *scorer).Run();
    std::sort(o.ttft_s.begin(), o.ttft_s.end());
    double mean = 0, work = 0, most = 0;
    for (const double s : o.ttft_s) mean += s / static_cast<double>(o.ttft_s.size());
    for (const double w : o.work_tokens) work += w / static_cast<double>(setting.workers), most = std::max(most, w);
    const double hit = static_cast<double>(o.hits) / static_cast<double>(o.blocks);
    const auto at = [&](double q) {
      return o.ttft_s[static_cast<size_t>(q * static_cast<double>(o.ttft_s.size() - 1))];
    };
    std::printf(
        "%-24s TTFT mean %.2f s, p50 %.2f, p90 %.2f, p99 %.2f; block hit %.2f %% (%.3f of the ceiling); most work %.3f "
        "of the mean\n",
        name.c_str(), mean, at(.5), at(.9), at(.99), 100 * hit, hit / ceiling, most / work);
    out[name] = {{"ttft_mean_s", mean}, {"ttft_p99_s", at(.99)}, {"hit", hit}, {"imbalance", most / work}};
  };
  const std::vector<std::string> lambdas = absl::StrSplit(flags("lambda", "0,1,3"), ',');
  for (const std::string& lambda : lambdas) {
    run(StrCat("predicted-time, lambda ", lambda), MakePredictedTime(std::stod(lambda)));
  }
  for (const Policy& policy : kPolicies) {
    if (policy.name != "predicted-time") run(std::string(policy.name), policy.make(5));
  }
  WriteJson(flags("json"), out);
  return 0;
}

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) { return baton::bench::Main(argc, argv); }
