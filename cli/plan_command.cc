// `baton plan`: what a worker of these flags will take, before there is one.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include "cli/command.h"
#include "cli/exit_code.h"
#include "cli/flag_set.h"
#include "plan/memory_plan.h"
#include "plan/plan_report.h"

namespace baton::cli {
namespace {

struct PlanOptions {
  int64_t memory = 0;
  std::string format = "text", emit = "plan";
};
template <class Visitor>
void VisitFields(PlanOptions& c, Visitor&& field) {
  field("memory", c.memory, "bytes", "memory of the machine, or of the GPU; 0 = what is free here (CPU only)",
        AtLeast(0));
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

int RunPlan(PlanCommand& command) {
  const PlanOptions& o = command.options;
  if (!command.set.status().ok()) return FailUsage(command.set.status());
  if (absl::Status status = CheckFields(o); !status.ok()) return FailUsage(status);
  if (absl::Status status = command.config.Validate(); !status.ok()) return FailUsage(status);
  const absl::StatusOr<plan::MemoryPlan> made =
      plan::PlanMemory(command.config, o.memory > 0 ? std::optional(o.memory) : std::nullopt);
  if (!made.ok()) return Fail(made.status());
  const std::string text = o.emit == "flags"    ? plan::PlanFlags(command.config, *made)
                           : o.format == "json" ? plan::PlanJson(command.config, *made)
                                                : plan::PlanText(command.config, *made);
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
