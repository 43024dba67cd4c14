#include "cli/tools/plan_layouts.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "cli/tools/simulation.h"
#include "common/status.h"
#include "load/arrivals.h"
#include "load/summary.h"
#include "plan/emit.h"
#include "plan/plan_report.h"
#include "plan/proposals.h"
#include "plan/sensitivity.h"

namespace baton::cli {
namespace {

worker::WorkerConfig CutOf(const worker::WorkerConfig& config, const plan::Proposal& layout) {
  worker::WorkerConfig cut = config;
  cut.tensor_parallel_size = layout.tensor_size;
  cut.pipeline_parallel_size = layout.stages;
  return cut;
}

absl::StatusOr<plan::MemoryPlan> MemoryOf(const PlanCommand& command, const plan::Proposal& layout) {
  const worker::WorkerConfig cut = CutOf(command.config, layout);
  return plan::PlanMemory(cut, command.machine.memory * cut.ranks());
}

/// A layout under the trace.
absl::StatusOr<load::Summary> SimulateLayout(const PlanCommand& command, const plan::Proposal& layout,
                                             const std::vector<load::Prompt>& prompts, sim::ClusterUse& use) {
  const PlanOptions& o = command.options;
  BATON_ASSIGN_OR_RETURN(const plan::MemoryPlan memory, MemoryOf(command, layout));
  router::RouterConfig router;
  router.max_running_requests = 1 << 20;  // the cluster's own limits, not the router's
  router.max_running_tokens = int64_t{1} << 40;
  sim::PlannedTerms terms = TermsOf(CutOf(command.config, layout), memory, command.machine, router, o.seed);
  terms.layout = {layout.prefill, layout.decode, layout.both};
  sim::RooflineCost cost(plan::StepTimes(memory, command.machine.Terms()));
  const plan::Machine machine = command.Machine();
  cost.prefill_factor = machine.prefill_factor, cost.decode_factor = machine.decode_factor;
  sim::PlannedCluster cluster(std::move(terms), cost);
  const load::RunResult run =
      cluster.Run({.prompts = prompts, .due = load::DueTimes({}, std::numeric_limits<double>::infinity(), prompts)});
  if (!cluster.broken().empty()) return absl::InternalError(cluster.broken());
  use = cluster.use();
  return load::Summarize(run, {.ttft_ms = o.ttft, .tpot_ms = o.tpot});
}

std::string SimulatedRow(const std::string& name, const load::Summary& s, const sim::ClusterUse& use) {
  std::string out = absl::StrFormat(
      "  %-46s good %5.1f %%  %8.3f/s  TTFT p50 %9.1f p95 %9.1f  TPOT p95 %7.2f", name,
      100.0 * static_cast<double>(s.good.value_or(0)) / static_cast<double>(std::max<int64_t>(1, s.offered)),
      s.duration_s > 0 ? static_cast<double>(s.completed) / s.duration_s : 0, s.ttft.Percentile(50),
      s.ttft.Percentile(95), s.tpot.Percentile(95));
  for (const sim::RoleUse& role : use.roles)
    absl::StrAppendFormat(&out, "  %s %.0f %% busy", role.role, 100 * role.busy);
  if (use.handoffs > 0) absl::StrAppendFormat(&out, "  links %.2f GB/s", use.link_gigabytes_per_s);
  return s.failed > 0 ? out + absl::StrFormat("  %d failed\n", s.failed) : out + "\n";
}

// The first layouts under the trace, the best of them first, and the best with a worker less.
absl::StatusOr<std::string> SimulatedText(const PlanCommand& command, const std::vector<plan::Proposal>& proposals) {
  const PlanOptions& o = command.options;
  load::BenchOptions bench{.num_prompts = o.num_prompts, .seed = o.seed};
  bench.trace_speed = o.trace_speed;
  BATON_RETURN_IF_ERROR(UseTrace(o.trace, bench));
  BATON_ASSIGN_OR_RETURN(const std::vector<load::Prompt> prompts, load::DrawPrompts(bench));
  struct Row {
    plan::Proposal layout;
    load::Summary summary;
    std::string text;
    size_t place = 0;  ///< by its roofline
  };
  std::vector<Row> rows;
  for (const plan::Proposal& layout : proposals) {
    if (std::ssize(rows) == o.simulated_layouts) break;
    if (layout.prefill > 0 && command.machine.link <= 0) continue;
    if (layout.requests_per_s <= 0) continue;  // it does not fit
    sim::ClusterUse use;
    BATON_ASSIGN_OR_RETURN(load::Summary summary, SimulateLayout(command, layout, prompts, use));
    std::string text = SimulatedRow(layout.Name(), summary, use);
    rows.push_back({layout, std::move(summary), std::move(text), rows.size()});
  }
  std::ranges::sort(rows, {}, [](const Row& row) { return std::pair(-row.summary.good.value_or(0), row.place); });
  std::string out =
      absl::StrFormat("simulated under %s, %d requests, with queues (goals: TTFT %.0f ms, TPOT %.0f ms):\n", o.trace,
                      prompts.size(), o.ttft, o.tpot);
  for (const Row& row : rows) out += row.text;
  if (rows.empty()) return out;
  for (int plan::Proposal::* kind : {&plan::Proposal::both, &plan::Proposal::prefill, &plan::Proposal::decode}) {
    plan::Proposal less = rows[0].layout;
    if (less.*kind < 2) continue;
    --(less.*kind);
    sim::ClusterUse use;
    BATON_ASSIGN_OR_RETURN(const load::Summary summary, SimulateLayout(command, less, prompts, use));
    out += SimulatedRow(StrCat("one less: ", less.Name()), summary, use);
  }
  return out;
}

absl::StatusOr<std::string> SensitivityText(const PlanCommand& command, const plan::Proposal& layout) {
  BATON_ASSIGN_OR_RETURN(const plan::MemoryPlan memory, MemoryOf(command, layout));
  BATON_ASSIGN_OR_RETURN(const auto variations, plan::Vary(CutOf(command.config, layout), memory, command.Machine(),
                                                           command.options.Load(), layout));
  return plan::VariationsText(variations, command.options.target_request_rate);
}

}  // namespace

plan::Machine PlanCommand::Machine() const {
  plan::Machine out = machine.Terms();
  out.handoff_ms = options.handoff_ms;
  out.certainty = plan::kOfLimits;
  if (!calibration) return out;
  out.certainty.prefill = calibration->ttft_range;
  out.certainty.decode = calibration->tpot_range;
  out.prefill_factor = calibration->prefill_factor;
  out.decode_factor = calibration->decode_factor;
  return out;
}

std::string PlanCommand::Trust() const {
  const std::string link = machine.link > 0 ? "; --link as given, or 1.4 times slower" : "";
  if (!calibration)
    return StrCat(
        "not calibrated (--calibrate): these are limits; real rates are mostly 0.4 to 1 times, real times 1 to 2.5 "
        "times these, which the ranges have",
        link, "\n");
  const plan::Calibration& c = *calibration;
  return absl::StrFormat(
      "calibrated: TTFT without a queue +-%.0f %%, TPOT +-%.0f %%; eight of ten requests took %.2f to %.2f and %.2f to "
      "%.2f times as long, which the ranges have%s\n",
      100 * c.ttft_error_after, 100 * c.tpot_error_after, c.ttft_range.low, c.ttft_range.high, c.tpot_range.low,
      c.tpot_range.high, link);
}

worker::WorkerConfig Named(const PlanCommand& command) {
  worker::WorkerConfig config = command.config;
  config.model = command.shape.NameOf(config);
  return config;
}

absl::Status PlanLayouts(const PlanCommand& command) {
  const PlanOptions& o = command.options;
  BATON_ASSIGN_OR_RETURN(
      std::vector<plan::Proposal> proposals,
      plan::Propose(command.config, o.total_gpus, command.machine.memory, command.Machine(), o.Load()));
  for (plan::Proposal& p : proposals) p.why_not = command.shape.Named(p.why_not);
  if (o.emit == "helm" || o.emit == "compose") {
    if (!proposals[0].why_not.empty())
      return absl::FailedPreconditionError(
          StrCat("--emit ", o.emit, ": no layout meets the goals: ", proposals[0].Name(), ": ", proposals[0].why_not));
    BATON_ASSIGN_OR_RETURN(const plan::MemoryPlan memory, MemoryOf(command, proposals[0]));
    BATON_ASSIGN_OR_RETURN(const std::string text, o.emit == "helm"
                                                       ? plan::HelmValues(Named(command), memory, proposals[0])
                                                       : plan::ComposeFile(Named(command), memory, proposals[0]));
    std::fputs(text.c_str(), stdout);
    return absl::OkStatus();
  }
  if (o.format == "json") {
    std::fputs(plan::ProposalsJson(proposals).c_str(), stdout);
    return absl::OkStatus();
  }
  std::string out = command.Trust() + plan::ProposalsText(proposals);
  if (proposals[0].why_not.empty()) {
    BATON_ASSIGN_OR_RETURN(const std::string text, SensitivityText(command, proposals[0]));
    out += "\n" + text;
  }
  if (!o.trace.empty()) {
    BATON_ASSIGN_OR_RETURN(const std::string text, SimulatedText(command, proposals));
    out += "\n" + text;
  }
  std::fputs(out.c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace baton::cli
