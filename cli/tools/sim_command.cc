// `baton sim`: a load on a cluster that has not been built, in virtual time.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>

#include "absl/strings/str_format.h"
#include "cli/command.h"
#include "cli/exit_code.h"
#include "cli/flag_set.h"
#include "cli/tools/model_shape.h"
#include "cli/tools/planned_machine.h"
#include "cli/tools/sim_options.h"
#include "cli/tools/simulation.h"
#include "common/json.h"
#include "common/log.h"
#include "common/status.h"
#include "common/str_cat.h"
#include "load/arrivals.h"
#include "load/bench_checks.h"
#include "load/html_report.h"
#include "load/load_points.h"
#include "load/report.h"
#include "load/table.h"
#include "plan/memory_plan.h"
#include "router/index/worker_set.h"
#include "router/policy/policies.h"
#include "sim/planned_cluster.h"
#include "sim/use_report.h"

namespace baton::cli {
namespace {

using load::BenchOptions;
using load::Measured;

struct SimFlags {
  worker::WorkerConfig worker;
  router::RouterConfig router;
  PlannedMachine machine;
  SimOptions sim;
  BenchOptions bench;
  ModelShape shape;
  FlagSet set;
};

// Of a bench's flags, those that say what is offered and how it is shown.
constexpr std::string_view kLoad[] = {"dataset-name",
                                      "dataset-path",
                                      "num-prompts",
                                      "seed",
                                      "input-len",
                                      "output-len",
                                      "random-input-len",
                                      "random-output-len",
                                      "random-range-ratio",
                                      "random-prefix-len",
                                      "prefix-repetition-prefix-len",
                                      "prefix-repetition-suffix-len",
                                      "prefix-repetition-num-prefixes",
                                      "prefix-repetition-output-len",
                                      "sonnet-input-len",
                                      "sonnet-output-len",
                                      "sonnet-prefix-len",
                                      "sharegpt-output-len",
                                      "custom-output-len",
                                      "trace-block-size",
                                      "timed-trace-chunk-hash-size",
                                      "timed-trace-sec-multiplier",
                                      "timed-trace-label-timestamp",
                                      "timed-trace-label-input-length",
                                      "timed-trace-label-output-length",
                                      "timed-trace-label-hash-ids",
                                      "trace-speed",
                                      "self-timed",
                                      "request-rate",
                                      "burstiness",
                                      "max-concurrency",
                                      "ramp-up-strategy",
                                      "ramp-up-start-rps",
                                      "ramp-up-end-rps",
                                      "request-timeout-ms",
                                      "goodput",
                                      "percentile-metrics",
                                      "metric-percentiles",
                                      "label",
                                      "metadata",
                                      "html"};
constexpr std::string_view kRouting[] = {"route-policy",       "route-lambda",          "max-running-requests",
                                         "max-running-tokens", "max-predicted-ttft-ms", "local-prefill-max-tokens",
                                         "index-max-bytes",    "retry-budget",          "max-attempts"};

template <class Config>
std::vector<std::string> AllBut(Config& config, std::span<const std::string_view> kept) {
  std::vector<std::string> names;
  VisitFields(config, [&](std::string_view name, auto&&...) {
    if (std::ranges::find(kept, name) == kept.end()) names.emplace_back(name);
  });
  return names;
}

/// What one command simulates.
struct Simulation {
  const SimFlags& flags;
  load::Goal goal;
  std::vector<double> percentiles;
  std::vector<load::LoadPoint> points;
  std::vector<std::string> policies;
  sim::PlannedTerms terms;
  std::unique_ptr<sim::StepCost> cost;
};

/// One run, and what the cluster did.
struct Simulated {
  Measured measured;
  sim::ClusterUse use;
  std::string policy;
};

absl::StatusOr<std::unique_ptr<sim::StepCost>> CostOf(const SimFlags& flags, const plan::MemoryPlan& memory) {
  const SimOptions& o = flags.sim;
  const bool measured = o.row_us > 0 || o.sequence_us > 0 || o.kilotoken_us > 0;
  if (measured && flags.machine.compute > 0)
    return absl::InvalidArgumentError(
        "--compute plans the times of steps, --row-us, --sequence-us and --kilotoken-us measured them: leave one out");
  if (measured || (o.step_ms > 0 && flags.machine.compute <= 0)) {
    auto cost = std::make_unique<sim::MeasuredCost>();
    cost->step_ms = o.step_ms, cost->row_us = o.row_us;
    cost->sequence_us = o.sequence_us, cost->kilotoken_us = o.kilotoken_us;
    return cost;
  }
  if (flags.machine.compute <= 0)
    return absl::InvalidArgumentError(
        "what a step takes is not known: give --memory-bandwidth and --compute, or what was measured (--step-ms, "
        "--row-us, --sequence-us, --kilotoken-us)");
  auto cost = std::make_unique<sim::RooflineCost>(plan::StepTimes(memory, flags.machine.Terms()));
  cost->step_ms = o.step_ms, cost->prefill_factor = o.prefill_factor, cost->decode_factor = o.decode_factor;
  return cost;
}

absl::StatusOr<sim::PlannedLayout> LayoutOf(const SimFlags& flags) {
  const SimOptions& o = flags.sim;
  sim::PlannedLayout layout{o.prefill, o.decode, o.both};
  if (layout.workers() == 0) layout.both = 1;
  if ((o.prefill > 0) != (o.decode > 0))
    return absl::InvalidArgumentError(
        StrCat("--prefill ", o.prefill, " --decode ", o.decode,
               ": prefill and decode workers work for each other, one kind alone for nobody"));
  if (layout.workers() > router::kMaxWorkers)
    return absl::InvalidArgumentError(
        StrCat(layout.workers(), " workers: one router knows at most ", router::kMaxWorkers));
  if (o.prefill > 0 && flags.machine.link <= 0)
    return absl::InvalidArgumentError("--prefill: what a handoff takes is not known: give --link, in GB/s");
  return layout;
}

absl::StatusOr<sim::PlannedKills::Terms> KillsOf(const SimOptions& o, const sim::PlannedLayout& layout) {
  sim::PlannedKills::Terms out{.wishes = {}, .restart_after = std::chrono::milliseconds(o.restart_ms)};
  for (const std::string& text : o.kill) {
    BATON_ASSIGN_OR_RETURN(load::KillWish wish, load::ParseKill(text));
    BATON_RETURN_IF_ERROR(layout.CheckWorker(wish.worker));
    out.wishes.push_back(std::move(wish));
  }
  return out;
}

absl::StatusOr<Simulation> CheckSimulation(SimFlags& flags) {
  BATON_RETURN_IF_ERROR(flags.set.status());
  flags.router.model = "planned";  // it needs no text
  for (const absl::Status& status : {CheckFields(flags.bench), CheckFields(flags.sim), CheckFields(flags.machine),
                                     CheckFields(flags.router), CheckMachine(flags.machine)}) {
    if (!status.ok()) return status;
  }
  Simulation out{.flags = flags,
                 .goal = {},
                 .percentiles = {},
                 .points = {},
                 .policies = flags.sim.compare_policies,
                 .terms = {},
                 .cost = nullptr};
  BATON_RETURN_IF_ERROR(UseTrace(flags.sim.trace, flags.bench));
  BATON_ASSIGN_OR_RETURN(out.goal, load::ParseGoal(flags.bench.goodput));
  BATON_ASSIGN_OR_RETURN(out.percentiles, load::ParsePercentiles(flags.bench.metric_percentiles));
  BATON_RETURN_IF_ERROR(load::CheckBench(flags.bench));
  BATON_ASSIGN_OR_RETURN(out.points, load::PointsOf(flags.bench));
  if (out.policies.empty()) out.policies.push_back(flags.router.route_policy);
  for (const std::string& policy : out.policies)
    BATON_RETURN_IF_ERROR(router::MakeScorer(policy, flags.router.route_lambda).status());
  BATON_ASSIGN_OR_RETURN(out.terms.layout, LayoutOf(flags));
  BATON_ASSIGN_OR_RETURN(out.terms.kills, KillsOf(flags.sim, out.terms.layout));
  BATON_RETURN_IF_ERROR(flags.shape.Use(flags.machine.model_shape, flags.worker));
  BATON_RETURN_IF_ERROR(flags.worker.Validate());
  return out;
}

// The times and sizes, from the model's headers.
absl::Status Plan(Simulation& simulation) {
  const SimFlags& flags = simulation.flags;
  BATON_ASSIGN_OR_RETURN(const plan::MemoryPlan memory,
                         plan::PlanMemory(flags.worker, flags.machine.MemoryOf(flags.worker)));
  BATON_ASSIGN_OR_RETURN(simulation.cost, CostOf(flags, memory));
  sim::PlannedTerms checked = std::move(simulation.terms);
  simulation.terms = TermsOf(flags.worker, memory, flags.machine, flags.router, flags.bench.seed);
  simulation.terms.layout = checked.layout;
  simulation.terms.kills = std::move(checked.kills);
  simulation.terms.link_latency = Duration(static_cast<Duration::rep>(flags.sim.link_latency_us * 1e3));
  return absl::OkStatus();
}

absl::StatusOr<Simulated> SimulateOne(const Simulation& simulation, const load::LoadPoint& point,
                                      const std::string& policy, const std::vector<load::Prompt>& prompts) {
  const SimFlags& flags = simulation.flags;
  sim::PlannedTerms terms = simulation.terms;
  terms.router.route_policy = policy;
  sim::PlannedCluster cluster(std::move(terms), *simulation.cost);
  const TimePoint begin = SteadyClock().Now();
  Simulated out{.measured = {.target = simulation.policies.size() > 1 ? policy : "", .model = {}, .point = point},
                .use = {},
                .policy = policy};
  out.measured.model = flags.shape.NameOf(flags.worker);
  out.measured.date = "virtual";
  out.measured.run = cluster.Run({.prompts = prompts,
                                  .due = load::DueTimes(flags.bench, point.request_rate, prompts),
                                  .most_at_a_time = point.max_concurrency,
                                  .timeout = std::chrono::milliseconds(flags.bench.request_timeout_ms)});
  if (!cluster.broken().empty()) return absl::InternalError(cluster.broken());
  out.measured.summary = load::Summarize(out.measured.run, simulation.goal);
  out.measured.dips = load::FindDips(out.measured.run.outcomes, out.measured.run.duration, out.measured.run.faults);
  out.use = cluster.use();
  const double virtual_s = Seconds(out.measured.run.duration), real_s = Seconds(SteadyClock().Now() - begin);
  std::fprintf(stderr, "%s: %.1f s of %d workers in %.1f s, %.2f times as fast as they would be\n", policy.c_str(),
               virtual_s, simulation.terms.layout.workers(), real_s, virtual_s / std::max(1e-9, real_s));
  return out;
}

std::string Heading(const Simulation& simulation, const Simulated& one) {
  return absl::StrFormat("%s, %s, --route-policy %s, %s\n", one.measured.model, simulation.terms.layout.Name(),
                         one.policy, PointName(one.measured.point));
}

void PrintText(const Simulation& simulation, const std::vector<Simulated>& all) {
  std::vector<Measured> measured;
  for (const Simulated& one : all) {
    const load::Report report{simulation.flags.bench, simulation.percentiles, one.measured};
    std::fputs((Heading(simulation, one) + load::ReportText(report) + sim::UseText(one.use) + "\n").c_str(), stdout);
    if (all.size() > 1) measured.push_back(one.measured);
  }
  if (all.size() > 1) std::fputs(load::TableText(load::TableOf(measured), load::BesideFirst(measured)).c_str(), stdout);
}

void PrintJson(const Simulation& simulation, const std::vector<Simulated>& all) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const Simulated& one : all) {
    auto json =
        nlohmann::ordered_json::parse(load::ReportJson({simulation.flags.bench, simulation.percentiles, one.measured}));
    const sim::PlannedLayout& layout = simulation.terms.layout;
    json["prefill"] = layout.prefill, json["decode"] = layout.decode, json["both"] = layout.both;
    json["route_policy"] = one.policy;
    sim::AddUse(one.use, json);
    out.push_back(std::move(json));
  }
  const std::string text =
      (out.size() == 1 ? out[0] : out).dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  std::fputs(text.c_str(), stdout);
}

// As `baton bench` ends: who has no answer at all has measured nothing.
absl::Status CheckAnswered(const std::vector<Simulated>& all) {
  for (const Simulated& one : all) {
    if (one.measured.summary.completed > 0) continue;
    return absl::UnavailableError(StrCat(one.policy, ", ", PointName(one.measured.point), ": none of ",
                                         one.measured.summary.offered,
                                         " requests was answered: ", one.measured.run.outcomes.front().error));
  }
  return absl::OkStatus();
}

absl::Status RunSimulation(Simulation& simulation) {
  const SimFlags& flags = simulation.flags;
  BATON_RETURN_IF_ERROR(Plan(simulation));
  BATON_ASSIGN_OR_RETURN(const std::vector<load::Prompt> prompts, load::DrawPrompts(flags.bench));
  std::vector<Simulated> all;
  for (const load::LoadPoint& point : simulation.points) {
    for (const std::string& policy : simulation.policies) {
      BATON_ASSIGN_OR_RETURN(Simulated one, SimulateOne(simulation, point, policy, prompts));
      all.push_back(std::move(one));
    }
  }
  flags.sim.format == "json" ? PrintJson(simulation, all) : PrintText(simulation, all);
  const absl::Status answered = CheckAnswered(all);
  if (flags.bench.html.empty()) return answered;
  std::vector<Measured> measured;
  for (Simulated& one : all) measured.push_back(std::move(one.measured));
  BATON_RETURN_IF_ERROR(load::WriteHtml(measured, flags.bench, flags.bench.html));
  return answered;
}

int RunSim(SimFlags& flags) {
  SetLogLevel("error");
  absl::StatusOr<Simulation> simulation = CheckSimulation(flags);
  if (!simulation.ok()) return FailUsage(simulation.status());
  const absl::Status status = flags.shape.Named(RunSimulation(*simulation));
  if (absl::IsInvalidArgument(status) || absl::IsNotFound(status)) return FailUsage(status);
  return status.ok() ? kExitOk : Fail(status);
}

}  // namespace

Runner AddSim(CLI::App& app) {
  auto flags = std::make_shared<SimFlags>();
  constexpr std::string_view kSteps[] = {"max-step-ms", "max-stall-ms", "max-waiting-requests", "max-waiting-tokens",
                                         "enable-prefix-caching"};
  flags->set.Add(flags->sim, "sim");
  flags->set.Add(flags->machine, "machine");
  flags->set.Add(flags->bench, "load", AllBut(flags->bench, kLoad));
  flags->set.Add(flags->router, "router", AllBut(flags->router, kRouting));
  flags->set.Add(flags->worker, "worker", FlagsThatDoNotSize(flags->worker, {std::begin(kSteps), std::end(kSteps)}));
  flags->set.Attach(app, "model", FlagsOf::kTool);
  return [flags] { return RunSim(*flags); };
}

}  // namespace baton::cli
