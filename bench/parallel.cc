// What ranks and the width of their sums cost on one machine, whose cores they share: prefill of 512 tokens and decode
// of 8 sequences, in tokens/s, by tensor and pipeline parallel size and reduction width. Ranks are threads; the shapes
// take turns.
//   bench_parallel MODEL [--threads 2] [--rounds 5] [--dummy 1] [--json FILE]
#include <cstdio>
#include <memory>

#include "bench/lib/flags.h"
#include "bench/lib/measure.h"
#include "common/check.h"
#include "common/log.h"
#include "engine/step/step_batch.h"
#include "worker/process/start_up.h"

using namespace baton;

namespace {

constexpr int kPrompt = 512, kSequences = 8, kSteps = 16, kBlock = 16, kBlocksEach = kPrompt / kBlock + 2;

struct Shape {
  int tensor, stages, width;
};
constexpr Shape kShapes[] = {{1, 1, 1}, {1, 1, 2}, {1, 1, 4}, {2, 1, 1}, {2, 1, 4}, {1, 2, 1}};

/// A worker without a scheduler: whole steps over private blocks.
class Ranks {
 public:
  Ranks(const std::string& model, bool dummy, int threads, const Shape& shape) {
    worker::WorkerConfig config;
    config.model = model;
    config.load_format = dummy ? "dummy" : "auto";
    config.threads = threads;
    config.tensor_parallel_size = shape.tensor;
    config.pipeline_parallel_size = shape.stages;
    config.reduction_width = shape.width;
    config.max_model_len = kPrompt + 64;
    config.max_num_seqs = kSequences;
    config.max_num_batched_tokens = kPrompt;
    ranks_ = worker::StartRankThreads(config).value();
    worker::StartUpProgress progress;
    auto loaded = worker::StartUp(config, progress, ranks_.get());
    BATON_CHECK(loaded.ok(), loaded.status().ToString());
    loaded_ = *std::move(loaded);
  }
  ~Ranks() {
    if (loaded_.channel) loaded_.channel->End().IgnoreError();
  }

  void Prefill() { Step(1, kPrompt, 0); }
  void Decode() {
    for (int i = 0; i < kSteps; ++i) Step(kSequences, 1, kPrompt + i);
  }

 private:
  void Step(int sequences, int rows, int context) {
    engine::StepBatch batch;
    std::vector<int32_t> tokens, tables;
    for (int s = 0; s < sequences; ++s) {
      for (int r = 0; r < rows; ++r) tokens.push_back((s * 131 + r * 17 + context) % 997);
      batch.row_start.push_back(static_cast<int32_t>(tokens.size()));
      batch.context.push_back(context);
      batch.logit_rows.push_back(batch.row_start.back() - 1);
      for (int b = 0; b < kBlocksEach; ++b) tables.push_back(s * kBlocksEach + b);
    }
    batch.block_tables.assign(loaded_.model->kv_layout().groups.size(), tables);
    if (loaded_.channel) BATON_CHECK(loaded_.channel->Publish(batch).ok());
    const std::atomic<bool> cancel{false};
    BATON_CHECK(engine::RunRows(batch, {.ids = tokens}, *loaded_.model, *loaded_.memory, cancel, nullptr).ok());
    loaded_.ops->Sync();
    if (loaded_.channel) loaded_.channel->Done();
  }

  std::unique_ptr<worker::RankHost> ranks_;
  worker::LoadedModel loaded_;
};

}  // namespace

int main(int argc, char** argv) {
  const bench::Flags flags(argc, argv, {"threads", "rounds", "dummy", "json"},
                           "MODEL [--threads N] [--rounds N] [--dummy 1] [--json FILE]", 1);
  const std::string& model = flags.word(0);
  const int threads = flags.Count("threads", 2), rounds = flags.Count("rounds", 5);
  SetLogLevel("warning");
  std::vector<std::unique_ptr<Ranks>> ranks;
  std::vector<std::function<void()>> contenders;
  for (const Shape& shape : kShapes) {
    ranks.push_back(std::make_unique<Ranks>(model, flags("dummy") == "1", threads, shape));
    Ranks* one = ranks.back().get();
    contenders.push_back([one] { one->Prefill(); });
    contenders.push_back([one] { one->Decode(); });
  }
  const std::vector<bench::Timing> timings = bench::Alternate(contenders, rounds);
  std::printf("%s, %d threads in all\n%-22s %14s %7s %14s %7s\n", model.c_str(), threads, "TP PP width",
              "prefill tok/s", "", "decode tok/s", "");
  nlohmann::json json = nlohmann::json::array();
  for (size_t i = 0; i < std::size(kShapes); ++i) {
    const Shape& s = kShapes[i];
    const double prefill = kPrompt / timings[2 * i].median, decode = kSequences * kSteps / timings[2 * i + 1].median;
    const double prefill_ratio = timings[0].median / timings[2 * i].median,
                 decode_ratio = timings[1].median / timings[2 * i + 1].median;
    std::printf("%2d %2d %5d %25.1f %7.2f %14.1f %7.2f\n", s.tensor, s.stages, s.width, prefill, prefill_ratio, decode,
                decode_ratio);
    json.push_back({{"tensor_parallel_size", s.tensor},
                    {"pipeline_parallel_size", s.stages},
                    {"reduction_width", s.width},
                    {"prefill_tokens_per_s", prefill},
                    {"prefill_ratio", prefill_ratio},
                    {"decode_tokens_per_s", decode},
                    {"decode_ratio", decode_ratio}});
  }
  bench::WriteJson(flags("json"), {{"model", model}, {"threads", threads}, {"rows", json}});
}
