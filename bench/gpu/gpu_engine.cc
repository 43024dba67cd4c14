// A whole model of random weights on a GPU: what a step of decodes takes by the number of sequences, given one by one
// and ahead of each other, and what a prompt takes; beside the time that its bytes and products take at the roofs,
// which are measured in the same run. Linked with the emulator it runs a tiny model: the times mean nothing.
//   gpu_engine --model DIR [--json FILE] [--kv auto|fp8] [--no-deterministic] [--handoff] [--seconds N] [--tiny]
// DIR has a config.json. The JSON is written again after every row; what no time is left for is named. Unless
// --no-deterministic, a sequence's tokens must be the same in every batch. With --handoff two processes on the GPU have
// the model, and prompts go from one to the other (engine_handoff.h). Ends as kernel_bench does.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/gpu/engine_handoff.h"
#include "bench/gpu/engine_model.h"
#include "bench/gpu/roofs.h"
#include "bench/gpu/run_each.h"
#include "common/status.h"
#include "engine/model/weight_rules.h"

namespace baton::bench {
namespace {

/// Products and bytes of a model's steps.
class Floors {
 public:
  Floors(const engine::Model& model, const Roofs& roofs) : model_(model), roofs_(roofs) {
    const engine::ModelConfig& c = model.config();
    for (const engine::WeightRule& rule : engine::WeightRules(c))
      if (rule.layer >= 0 && rule.shape.size() == 2) body_ += static_cast<double>(rule.elements());
    head_ = double{1} * c.vocab_size * c.hidden_size;
    products_of_token_ = double{4} * c.num_layers * c.num_heads * c.head_dim;
  }
  double DecodeUs(int batch, int context) const {
    const double seen = double{1} * batch * context;
    return roofs_.FloorUs(2 * (body_ + head_) + seen * static_cast<double>(model_.kv_layout().BytesPerToken()),
                          2 * batch * (body_ + head_) + seen * products_of_token_);
  }
  double PromptUs(int sequences, int tokens) const {
    const double rows = double{1} * sequences * tokens;
    return roofs_.FloorUs(2 * (body_ + head_),
                          2 * rows * body_ + 2 * sequences * head_ + rows * tokens / 2 * products_of_token_);
  }

 private:
  const engine::Model& model_;
  const Roofs& roofs_;
  double body_ = 0, head_ = 0, products_of_token_ = 0;
};

class Run {
 public:
  Run(const EngineOptions& options, const EnginePlan& plan, Engine& on, nlohmann::json& result, const Roofs& roofs)
      : options_(options), plan_(plan), on_(on), result_(result), floors_(*on.model, roofs) {}

  absl::Status All() {
    BATON_RETURN_IF_ERROR(FillContexts());
    for (const int batch : plan_.batches) BATON_RETURN_IF_ERROR(Decodes(batch, plan_.context, true));
    for (const int tokens : plan_.prompts) BATON_RETURN_IF_ERROR(Prompt(tokens));
    for (const int batch : plan_.far_batches) BATON_RETURN_IF_ERROR(Decodes(batch, plan_.far, false));
    return absl::OkStatus();
  }
  bool wrong() const { return wrong_; }

 private:
  /// The prompts of all sequences, as many in a step as it may have rows.
  absl::Status FillContexts() {
    const int at_once = std::max(1, std::min(plan_.most(), plan_.rows / plan_.context));
    const auto begin = Clock::now();
    for (int first = 0; first < plan_.most(); first += at_once) {
      const int count = std::min(at_once, plan_.most() - first);
      Sequences sequences(on_, count, plan_.BlocksEach(plan_.context), first);
      BATON_RETURN_IF_ERROR(sequences.Give(plan_.context, 0, false));
      sequences.Take();
    }
    const double us = 1e6 * SecondsSince(begin), tokens = double{1} * plan_.most() * plan_.context;
    Add({{"what", "prompts"}, {"batch", plan_.most()}, {"context", plan_.context}, {"us", us}},
        floors_.PromptUs(plan_.most(), plan_.context), tokens);
    return absl::OkStatus();
  }
  absl::Status Decodes(int batch, int behind, bool compared) {
    if (LeftOut("decodes", batch, behind)) return absl::OkStatus();
    Sequences sequences(on_, batch, plan_.BlocksEach(behind));
    int context = behind;
    std::vector<int32_t> tokens;
    for (int i = 0; i < EnginePlan::kWarmUp; ++i) {
      BATON_RETURN_IF_ERROR(sequences.Give(1, context++, i > 0));
      tokens.push_back(sequences.Take());
    }
    const kernels::DeviceWork before = on_.ops->device_work();
    auto begin = Clock::now();
    for (int i = 0; i < plan_.steps; ++i) {  // two are under way
      BATON_RETURN_IF_ERROR(sequences.Give(1, context++, true));
      if (i > 0) tokens.push_back(sequences.Take());
    }
    tokens.push_back(sequences.Take());
    const double us = 1e6 * SecondsSince(begin) / plan_.steps;
    const kernels::DeviceWork after = on_.ops->device_work();
    begin = Clock::now();
    for (int i = 0; i < plan_.steps; ++i) {
      BATON_RETURN_IF_ERROR(sequences.Give(1, context++, true));
      sequences.Take();
    }
    const double alone_us = 1e6 * SecondsSince(begin) / plan_.steps;
    const auto each = [&](int64_t now, int64_t then) { return double{1} * (now - then) / plan_.steps; };
    nlohmann::json row = {{"what", "decodes"},
                          {"batch", batch},
                          {"context", behind},
                          {"us", us},
                          {"one_by_one_us", alone_us},
                          {"launches", each(after.launches, before.launches)},
                          {"replays", each(after.replays, before.replays)},
                          {"copies", each(after.copies, before.copies)}};
    if (compared && options_.deterministic) {
      if (tokens_of_one_.empty()) tokens_of_one_ = tokens;
      row["right"] = tokens == tokens_of_one_;
      wrong_ = wrong_ || tokens != tokens_of_one_;
    }
    Add(std::move(row), floors_.DecodeUs(batch, behind), batch);
    return absl::OkStatus();
  }
  absl::Status Prompt(int tokens) {
    if (LeftOut("prompt", 1, tokens)) return absl::OkStatus();
    std::vector<double> times;
    for (int i = 0; i < (options_.tiny ? 1 : 5); ++i) {
      Sequences one(on_, 1, (tokens - 1) / kUnitTokens + 1);
      const auto begin = Clock::now();
      BATON_RETURN_IF_ERROR(one.Give(tokens, 0, false));
      one.Take();
      times.push_back(1e6 * SecondsSince(begin));
    }
    std::ranges::sort(times);
    Add({{"what", "prompt"}, {"batch", 1}, {"context", tokens}, {"us", times[times.size() / 2]}},
        floors_.PromptUs(1, tokens), tokens);
    return absl::OkStatus();
  }
  bool LeftOut(const char* what, int batch, int context) {
    if (SecondsSince(begun_) < options_.seconds) return false;
    std::printf("%-8s %4d x %-6d left out, no time is left\n", what, batch, context);
    result_["left_out"].push_back(StrCat(what, " ", batch, "x", context));
    Write();
    return true;
  }
  void Add(nlohmann::json row, double floor_us, double tokens) {
    const double us = row["us"];
    row["floor_us"] = floor_us;
    row["tokens_per_s"] = us > 0 ? 1e6 * tokens / us : 0;
    row["of_roof"] = us > 0 ? floor_us / us : 0;
    std::printf(
        "%-8s %4d x %-6d %12.1f us %12.1f one by one, floor %12.1f us, %5.1f %% of the roof, %10.1f tokens/s%s\n",
        row["what"].get<std::string>().c_str(), row["batch"].get<int>(), row["context"].get<int>(), us,
        row.value("one_by_one_us", us), floor_us, 100 * row["of_roof"].get<double>(), row["tokens_per_s"].get<double>(),
        row.value("right", true) ? "" : "  OTHER TOKENS THAN ALONE");
    std::fflush(stdout);
    result_["rows"].push_back(std::move(row));
    Write();
  }
  void Write() const {
    if (!options_.json.empty()) std::ofstream(options_.json) << result_.dump(1) << "\n";
  }

  const EngineOptions& options_;
  const EnginePlan& plan_;
  Engine& on_;
  nlohmann::json& result_;
  const Floors floors_;
  const Clock::time_point begun_ = Clock::now();
  std::vector<int32_t> tokens_of_one_;
  bool wrong_ = false;
};

int Main(const EngineOptions& options) {
  if (SaysThereIsNoDevice("gpu_engine")) return kNoDevice;
  const EnginePlan plan(options.tiny);
  const auto begin = Clock::now();
  absl::StatusOr<Engine> on = LoadEngine(options, plan);
  if (!on.ok()) return std::fprintf(stderr, "gpu_engine: %s\n", on.status().ToString().c_str()), kSomethingWrong;
  const double load_s = SecondsSince(begin);
  const Roofs roofs = MeasureRoofs(options.tiny);
  nlohmann::json result = {{"model", options.model},
                           {"kv", options.kv},
                           {"deterministic", options.deterministic},
                           {"device", on->ops->traits().isa},
                           {"load_s", load_s},
                           {"dense", on->ops->about()},
                           {"weight_bytes", on->model->weight_bytes()},
                           {"roofs",
                            {{"copy_bytes_per_s", roofs.copy_bytes_per_s},
                             {"read_bytes_per_s", roofs.read_bytes_per_s},
                             {"flops_per_s", roofs.flops_per_s}}},
                           {"rows", nlohmann::json::array()}};
  std::printf("%s on %s, KV %s, %s; loaded in %.1f s; roofs: copy %.3f TB/s, read %.3f TB/s, %.1f TFLOP/s\n",
              options.model.c_str(), on->ops->traits().isa.c_str(), options.kv.c_str(),
              options.deterministic ? "deterministic" : "fast", load_s, roofs.copy_bytes_per_s / 1e12,
              roofs.read_bytes_per_s / 1e12, roofs.flops_per_s / 1e12);
  if (!on->ops->about().empty()) std::printf("%s\n", on->ops->about().c_str());
  Run run(options, plan, *on, result, roofs);
  if (const absl::Status done = run.All(); !done.ok())
    return std::fprintf(stderr, "gpu_engine: %s\n", done.ToString().c_str()), kSomethingWrong;
  return run.wrong() ? kSomethingWrong : kAllRight;
}

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) {
  baton::bench::EngineOptions options;
  bool good = true, handoff = false;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const auto value = [&] { return i + 1 < argc ? std::string(argv[++i]) : (good = false, std::string()); };
    if (name == "--no-deterministic")
      options.deterministic = false;
    else if (name == "--handoff")
      handoff = true;
    else if (name == "--tiny")
      options.tiny = true;
    else if (name == "--model")
      options.model = value();
    else if (name == "--json")
      options.json = value();
    else if (name == "--kv")
      options.kv = value();
    else if (name == "--seconds")
      options.seconds = std::atof(value().c_str());
    else
      good = false;
  }
  if (!good || options.model.empty() || (options.kv != "auto" && options.kv != "fp8")) {
    std::fprintf(stderr,
                 "usage: gpu_engine --model DIR [--json FILE] [--kv auto|fp8] [--no-deterministic] "
                 "[--handoff] [--seconds N] [--tiny]\n");
    return baton::bench::kBadUsage;
  }
  return handoff ? baton::bench::RunHandoff(options) : baton::bench::Main(options);
}
