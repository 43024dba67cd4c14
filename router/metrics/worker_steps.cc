// The series of RouterMetrics that say what workers' steps were like.
#include <algorithm>

#include "router/metrics/metric_families.h"

namespace baton::router {
namespace {

// A throughput is a mean over at least so long, where scrapes come often; else since the scrape before.
constexpr Duration kThroughputOver = std::chrono::seconds(10);

const Buckets& StepTokenBuckets() {
  static const Buckets buckets(StepSizes::kUpTo.begin(), StepSizes::kUpTo.end());
  return buckets;
}

}  // namespace

void RouterMetrics::Families::RenderSteps(const prom::Labels& with, const WorkerFacts& facts, const WorkerLoad& load,
                                          TimePoint now) {
  StepHistory& history = step_history[with.at("worker")];
  if (history.incarnation != facts.incarnation) history = {facts.incarnation, {}, {}};

  auto& samples = history.samples;
  while (samples.size() > 1 && now - samples[1].at >= kThroughputOver) samples.pop_front();
  const auto since =
      samples.empty() ? StepHistory::Sample{now, load.prompt_tokens, load.generation_tokens} : samples.front();
  const auto throughput = [&](const char* name, const char* help, int64_t before, int64_t tokens) {
    const double seconds = Seconds(now - since.at);
    Gauge(name, help, with).Set(seconds > 0 ? static_cast<double>(tokens - before) / seconds : 0);
  };
  throughput("vllm:avg_prompt_throughput_toks_per_s", "Prompt tokens taken up in a second, of the last 10 s or more",
             since.prompt_tokens, load.prompt_tokens);
  throughput("vllm:avg_generation_throughput_toks_per_s", "Tokens generated in a second, of the last 10 s or more",
             since.generation_tokens, load.generation_tokens);
  samples.push_back({now, load.prompt_tokens, load.generation_tokens});

  const double room = static_cast<double>(load.kv_blocks_used) * facts.tokens_per_block;
  Gauge("baton_kv_waste_ratio", "Of the tokens that used KV blocks have room for, those that are not there", with)
      .Set(room > 0 ? static_cast<double>(load.kv_empty_tokens) / room : 0);

  std::vector<double> steps(load.step_sizes.steps.size());
  for (size_t i = 0; i < steps.size(); ++i)
    steps[i] = static_cast<double>(std::max<int64_t>(0, load.step_sizes.steps[i] - history.shown.steps[i]));
  auto& family = prom::BuildHistogram().Name("vllm:iteration_tokens_total").Help("Tokens of a step").Register(registry);
  prom::Histogram& histogram = family.Add(with, StepTokenBuckets());
  Lasts(with.at("worker"), family, histogram);
  histogram.ObserveMultiple(steps,
                            static_cast<double>(std::max<int64_t>(0, load.step_sizes.tokens - history.shown.tokens)));
  history.shown = load.step_sizes;
}

}  // namespace baton::router
