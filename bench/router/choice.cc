#include "bench/router/choice.h"

#include <cstdio>
#include <random>
#include <vector>

#include "bench/lib/measure.h"
#include "router/policy/policies.h"

namespace baton::bench {
namespace {

/// Half of the workers prefill, half decode, each loaded at random; all links are equally fast.
nlohmann::json OfWorkers(int workers) {
  std::mt19937_64 random(5);
  std::vector<router::Candidate> candidates;
  for (int i = 0; i < workers; ++i) {
    router::Candidate c;
    c.id = {i};
    c.role = i % 2 == 0 ? router::WorkerRole::kPrefill : router::WorkerRole::kDecode;
    c.queued_tokens = static_cast<double>(random() % 10'000);
    c.running = static_cast<int32_t>(random() % 64);
    c.max_num_seqs = 64;
    c.prefill_tokens_per_s = 10'000;
    c.decode_step_ms = 10;
    candidates.push_back(c);
  }
  const router::HandoffTerms handoff{4, -1, [](size_t, size_t) { return 1e6; }};
  constexpr uint32_t kPrompt = 2000;
  const auto scorer = router::MakePredictedTime(1);
  size_t pairs = 0;
  const Timing time = Alternate({[&] {
    const auto options = router::RouteOptions(candidates, kPrompt, &handoff);
    pairs = options.size();
    scorer->Choose(candidates, options, kPrompt);
  }})[0];
  std::printf("choice among %d workers, %zu pairs: %.1f µs\n", workers, pairs, 1e6 * time.median);
  return {{"workers", workers}, {"pairs", pairs}, {"choice_us", 1e6 * time.median}};
}

}  // namespace

nlohmann::json BenchChoice() { return {OfWorkers(64), OfWorkers(1024)}; }

}  // namespace baton::bench
