#include "bench/router/choice.h"

#include <algorithm>
#include <cstdio>
#include <random>
#include <vector>

#include "bench/lib/measure.h"
#include "router/policy/policies.h"

namespace baton::bench {
namespace {

constexpr size_t kMet = 16;  ///< decode workers that each prefill worker has met

/// Half of the workers prefill, half decode, each loaded at random or not at all; links that were measured differ by 1
/// %.
nlohmann::json OfWorkers(int workers, bool idle) {
  std::mt19937_64 random(5);
  std::vector<router::Candidate> candidates;
  for (int i = 0; i < workers; ++i) {
    router::Candidate c;
    c.id = {i};
    c.role = i % 2 == 0 ? router::WorkerRole::kPrefill : router::WorkerRole::kDecode;
    c.queued_tokens = idle ? 0 : static_cast<double>(random() % 10'000);
    c.running = idle ? 0 : static_cast<int32_t>(random() % 64);
    c.max_num_seqs = 64;
    c.prefill_tokens_per_s = 10'000;
    c.decode_step_ms = 10;
    candidates.push_back(c);
  }
  std::vector<std::vector<router::MetPeer>> met(candidates.size());
  for (size_t p = 0; p < met.size(); p += 2) {
    for (size_t i = 0; i < std::min(kMet, met.size() / 2); ++i) {
      met[p].push_back({(p + 2 * i + 1) % met.size(), 1e6 + 1e2 * static_cast<double>(random() % 100)});
    }
  }
  const auto rate = [&met](size_t p, size_t d) {
    for (const router::MetPeer& peer : met[p]) {
      if (peer.decode == d) return peer.tokens_per_s;
    }
    return 1e6;
  };
  const router::HandoffTerms handoff{4, -1, rate, 1e6, [&met](size_t p) { return absl::MakeConstSpan(met[p]); }};
  constexpr uint32_t kPrompt = 2000;
  const auto scorer = router::MakePredictedTime(1);
  const router::RouteQuestion question{candidates, kPrompt, &handoff};
  const std::vector<Timing> times =
      Alternate({[&] { scorer->Answer(question); }, [&] { scorer->router::Scorer::Answer(question); }});
  const size_t pairs = candidates.size() * candidates.size() / 4;
  std::printf("choice among %d %s workers, %zu pairs: %.1f µs; each pair costed %.1f µs\n", workers,
              idle ? "idle" : "busy", pairs, 1e6 * times[0].median, 1e6 * times[1].median);
  return {{"workers", workers},
          {"idle", idle},
          {"pairs", pairs},
          {"choice_us", 1e6 * times[0].median},
          {"each_pair_us", 1e6 * times[1].median}};
}

}  // namespace

nlohmann::json BenchChoice() {
  return {OfWorkers(64, false), OfWorkers(64, true), OfWorkers(1024, false), OfWorkers(1024, true)};
}

}  // namespace baton::bench
