// `baton plan`: what a worker of these flags will take, before there is one.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include "cli/command.h"
#include "cli/exit_code.h"
#include "cli/flag_set.h"
#include "common/status.h"
#include "plan/memory_plan.h"
#include "plan/plan_report.h"

namespace baton::cli {
namespace {

struct PlanOptions {
  int64_t memory = 0;
  std::string format = "text", emit = "plan";
  int64_t isl = 4000, osl = 1000, prefix = 0;
  double ttft = 2000, tpot = 30;
  int32_t total_gpus = 0;
  double memory_bandwidth = 0, compute = 0, link = 0, handoff_ms = 1;
};
template <class Visitor>
void VisitFields(PlanOptions& c, Visitor&& field) {
  field("memory", c.memory, "bytes", "memory of the machine, or of the GPU; 0 = what is free here (CPU only)",
        AtLeast(0));
  field("isl", c.isl, "tokens", "of a prompt", AtLeast(1));
  field("osl", c.osl, "tokens", "of an answer", AtLeast(1));
  field("prefix", c.prefix, "tokens",
        "of a prompt that the prefix cache has, where it is computed and where it decodes", AtLeast(0));
  field("ttft", c.ttft, "ms", "the goal until the first token", AtLeast(0));
  field("tpot", c.tpot, "ms", "the goal for each token after it", AtLeast(0));
  field("memory-bandwidth", c.memory_bandwidth, "GB/s", "of one rank; with --compute: times are planned, too",
        AtLeast(0));
  field("compute", c.compute, "TFLOP/s", "of one rank, in --dtype", AtLeast(0));
  field("link", c.link, "GB/s", "from prefill to decode workers: says whether to disaggregate", AtLeast(0));
  field("total-gpus", c.total_gpus, "devices",
        "of --memory, --memory-bandwidth and --compute each, a rank on each: layouts of them are ranked instead",
        Range(0, 4096));
  field("handoff-ms", c.handoff_ms, "ms", "of a handoff beside its bytes", AtLeast(0));
  field("format", c.format, "", "of the plan", OneOf({{"text"}, {"json"}}));
  field("emit", c.emit, "", "what is printed", OneOf({{"plan"}, {"flags", "a worker's, with the sizes chosen"}}));
}

struct PlanCommand {
  worker::WorkerConfig config;
  PlanOptions options;
  FlagSet set;
};

// The worker's flags that change what it takes.
constexpr std::string_view kSizes[] = {"model",
                                       "load-format",
                                       "dtype",
                                       "device",
                                       "gpu-memory-utilization",
                                       "max-model-len",
                                       "tensor-parallel-size",
                                       "pipeline-parallel-size",
                                       "reduction-width",
                                       "kv-cache-dtype",
                                       "kv-cache-memory",
                                       "local-workers",
                                       "block-size",
                                       "max-num-seqs",
                                       "max-num-batched-tokens"};

std::vector<std::string> OtherFlags(worker::WorkerConfig& config) {
  std::vector<std::string> names;
  VisitFields(config, [&](std::string_view name, auto&&...) {
    if (std::ranges::find(kSizes, name) == std::end(kSizes)) names.emplace_back(name);
  });
  return names;
}

absl::Status CheckPlan(const PlanOptions& o) {
  BATON_RETURN_IF_ERROR(CheckFields(o));
  if ((o.memory_bandwidth > 0) != (o.compute > 0)) {
    return absl::InvalidArgumentError(o.compute > 0 ? "--compute needs --memory-bandwidth as well"
                                                    : "--memory-bandwidth needs --compute as well");
  }
  if (o.link > 0 && o.compute <= 0)
    return absl::InvalidArgumentError("--link needs --memory-bandwidth and --compute as well");
  if (o.total_gpus > 0 && (o.compute <= 0 || o.memory == 0))
    return absl::InvalidArgumentError("--total-gpus needs --memory, --memory-bandwidth and --compute as well");
  if (o.total_gpus > 0 && o.emit == "flags")
    return absl::InvalidArgumentError("--emit flags is of one layout: leave --total-gpus out");
  return absl::OkStatus();
}

plan::Machine MachineOf(const PlanOptions& o) {
  return {o.memory_bandwidth * 1e9, o.compute * 1e12, o.link * 1e9, o.handoff_ms};
}
plan::Load LoadOf(const PlanOptions& o) { return {o.isl, o.prefix, o.osl, o.ttft, o.tpot}; }

int RunProposals(const PlanCommand& command) {
  const PlanOptions& o = command.options;
  const auto proposals = plan::Propose(command.config, o.total_gpus, o.memory, MachineOf(o), LoadOf(o));
  if (!proposals.ok()) return Fail(proposals.status());
  const std::string text = o.format == "json" ? plan::ProposalsJson(*proposals) : plan::ProposalsText(*proposals);
  std::fputs(text.c_str(), stdout);
  return kExitOk;
}

absl::StatusOr<std::optional<plan::RooflinePlan>> RooflineOf(const PlanCommand& command, const plan::MemoryPlan& made) {
  const PlanOptions& o = command.options;
  if (o.compute <= 0) return std::nullopt;
  plan::RooflinePlan out{.machine = MachineOf(o), .load = LoadOf(o)};
  BATON_ASSIGN_OR_RETURN(out.times, plan::PlanRoofline(command.config, made, out.machine, out.load));
  return out;
}

int RunPlan(PlanCommand& command) {
  const PlanOptions& o = command.options;
  if (!command.set.status().ok()) return FailUsage(command.set.status());
  if (absl::Status status = CheckPlan(o); !status.ok()) return FailUsage(status);
  if (absl::Status status = command.config.Validate(); !status.ok()) return FailUsage(status);
  if (o.total_gpus > 0) return RunProposals(command);
  const absl::StatusOr<plan::MemoryPlan> made =
      plan::PlanMemory(command.config, o.memory > 0 ? std::optional(o.memory) : std::nullopt);
  if (!made.ok()) return Fail(made.status());
  const absl::StatusOr<std::optional<plan::RooflinePlan>> roofline = RooflineOf(command, *made);
  if (!roofline.ok()) return Fail(roofline.status());
  const std::string text = o.emit == "flags"    ? plan::PlanFlags(command.config, *made)
                           : o.format == "json" ? plan::PlanJson(command.config, *made, *roofline)
                                                : plan::PlanText(command.config, *made, *roofline);
  std::fputs(text.c_str(), stdout);
  return kExitOk;
}

}  // namespace

Runner AddPlan(CLI::App& app) {
  auto command = std::make_shared<PlanCommand>();
  command->set.Add(command->config, "worker", OtherFlags(command->config));
  command->set.Add(command->options, "plan");
  command->set.Attach(app, "model", FlagsOf::kTool);
  return [command] { return RunPlan(*command); };
}

}  // namespace baton::cli
