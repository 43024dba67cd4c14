// `baton plan`: what a worker of these flags will take, before there is one.
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>

#include "cli/command.h"
#include "cli/exit_code.h"
#include "cli/flag_set.h"
#include "cli/http_client.h"
#include "cli/tools/plan_layouts.h"
#include "common/log.h"
#include "common/open_to_read.h"
#include "common/status.h"
#include "plan/emit.h"
#include "plan/known_models.h"
#include "plan/memory_plan.h"
#include "plan/observed_load.h"
#include "plan/plan_report.h"

namespace baton::cli {
namespace {

struct PlanFlags {
  PlanCommand command;
  FlagSet set;
};

absl::Status CheckPlan(const PlanOptions& o, const PlannedMachine& m) {
  BATON_RETURN_IF_ERROR(CheckFields(o));
  BATON_RETURN_IF_ERROR(CheckFields(m));
  BATON_RETURN_IF_ERROR(CheckMachine(m));
  const auto needs = [&](bool given, std::string_view flag) {
    if (!given || m.compute > 0) return absl::OkStatus();
    return absl::InvalidArgumentError(StrCat(flag, " needs --memory-bandwidth and --compute as well"));
  };
  BATON_RETURN_IF_ERROR(needs(m.link > 0, "--link"));
  BATON_RETURN_IF_ERROR(needs(!o.calibrate.empty(), "--calibrate"));
  if (o.total_gpus > 0 && (m.compute <= 0 || m.memory == 0))
    return absl::InvalidArgumentError("--total-gpus needs --memory, --memory-bandwidth and --compute as well");
  if (o.total_gpus > 0 && o.emit == "flags")
    return absl::InvalidArgumentError("--emit flags is of one layout: leave --total-gpus out");
  if (o.total_gpus == 0 && (o.emit == "helm" || o.emit == "compose" || !o.trace.empty()))
    return absl::InvalidArgumentError(
        StrCat(o.trace.empty() ? "--emit " + o.emit : "--trace", " is of ranked layouts: give --total-gpus"));
  return absl::OkStatus();
}

size_t PathAt(const std::string& url) {
  const size_t scheme = url.find("://");
  return std::min(url.size(), url.find('/', scheme == std::string::npos ? 0 : scheme + 3));
}

absl::Status CheckMetricsUrl(const PlanOptions& o) {
  if (o.from_metrics.empty()) return absl::OkStatus();
  const auto url = ParseHttpUrl(o.from_metrics.substr(0, PathAt(o.from_metrics)));
  return url.ok() ? absl::OkStatus()
                  : absl::InvalidArgumentError(StrCat("--from-metrics: ", View(url.status().message())));
}

// What a running server has seen takes the place of lengths that are not given.
absl::Status UseMetrics(const FlagSet& set, PlanOptions& o) {
  if (o.from_metrics.empty()) return absl::OkStatus();
  const size_t path = PathAt(o.from_metrics);
  BATON_ASSIGN_OR_RETURN(const HttpUrl url, ParseHttpUrl(o.from_metrics.substr(0, path)));
  const std::string asked = path + 1 >= o.from_metrics.size() ? "/metrics" : o.from_metrics.substr(path);
  const auto answer = HttpGet(url, asked, "");
  if (!answer.ok())
    return absl::Status(answer.status().code(),
                        StrCat("--from-metrics ", o.from_metrics, ": ", answer.status().message()));
  const HttpResponse& response = *answer;
  if (response.status != 200)
    return absl::UnavailableError(StrCat("--from-metrics ", o.from_metrics, ": ", asked, " answers ", response.status));
  const absl::StatusOr<plan::ObservedLoad> seen = plan::ReadObservedLoad(response.body);
  if (!seen.ok())
    return absl::Status(seen.status().code(), StrCat("--from-metrics ", o.from_metrics, ": ", seen.status().message()));
  if (!set.given().contains("isl")) o.isl = std::llround(seen->isl);
  if (!set.given().contains("osl")) o.osl = std::llround(seen->osl);
  if (!set.given().contains("prefix"))
    o.prefix = std::min(o.isl - 1, static_cast<int64_t>(static_cast<double>(o.isl) * seen->hit_share));
  if (o.format == "text" && o.emit == "plan") std::fputs(plan::ObservedText(*seen).c_str(), stdout);
  return absl::OkStatus();
}

absl::Status UseCalibration(PlanCommand& command) {
  const PlanOptions& o = command.options;
  if (o.calibrate.empty()) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(std::ifstream in, OpenToRead(o.calibrate, "--calibrate"));
  std::stringstream text;
  text << in.rdbuf();
  BATON_ASSIGN_OR_RETURN(const plan::MemoryPlan memory,
                         plan::PlanMemory(command.config, command.machine.MemoryOf(command.config)));
  const absl::StatusOr<plan::Calibration> made =
      plan::Calibrate(text.str(), command.config, memory, command.machine.Terms(), o.calibrated_workers);
  if (!made.ok())
    return absl::Status(made.status().code(), StrCat("--calibrate ", o.calibrate, ": ", made.status().message()));
  command.calibration = *made;
  if (o.format == "text" && o.emit == "plan") std::fputs(plan::CalibrationText(*made).c_str(), stdout);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<plan::RooflinePlan>> RooflineOf(const PlanCommand& command, const plan::MemoryPlan& made) {
  if (command.machine.compute <= 0) return std::nullopt;
  plan::RooflinePlan out{.machine = command.Machine(), .load = command.options.Load(), .corners = {}};
  BATON_ASSIGN_OR_RETURN(out.corners, plan::PlanCorners(command.config, made, out.machine, out.load));
  return out;
}

int PrintKvTable(const worker::WorkerConfig& config) {
  std::fputs(plan::KvTable(config.KvCacheDType().value_or(DType::kBF16)).c_str(), stdout);
  return kExitOk;
}

absl::Status PlanOne(const PlanCommand& command) {
  const PlanOptions& o = command.options;
  BATON_ASSIGN_OR_RETURN(const plan::MemoryPlan made,
                         plan::PlanMemory(command.config, command.machine.MemoryOf(command.config)));
  BATON_ASSIGN_OR_RETURN(const std::optional<plan::RooflinePlan> roofline, RooflineOf(command, made));
  const worker::WorkerConfig named = Named(command);
  const std::string text = o.emit == "flags" ? plan::PlanFlags(named, made)
                           : o.format == "json"
                               ? plan::PlanJson(named, made, roofline)
                               : plan::PlanText(named, made, roofline) + (roofline ? command.Trust() : "");
  std::fputs(text.c_str(), stdout);
  return absl::OkStatus();
}

int RunPlan(PlanFlags& flags) {
  SetLogLevel("error");  // of what is simulated
  PlanCommand& command = flags.command;
  if (!flags.set.status().ok()) return FailUsage(flags.set.status());
  if (absl::Status status = CheckPlan(command.options, command.machine); !status.ok()) return FailUsage(status);
  if (command.options.kv_table) return PrintKvTable(command.config);
  if (absl::Status status = command.shape.Use(command.machine.model_shape, command.config); !status.ok())
    return FailUsage(status);
  if (absl::Status status = command.config.Validate(); !status.ok()) return FailUsage(status);
  absl::Status status = CheckMetricsUrl(command.options);
  if (!status.ok()) return FailUsage(status);
  status = UseMetrics(flags.set, command.options);
  if (status.ok()) status = UseCalibration(command);
  if (status.ok()) status = command.options.total_gpus > 0 ? PlanLayouts(command) : PlanOne(command);
  return status.ok() ? kExitOk : Fail(command.shape.Named(status));
}

}  // namespace

Runner AddPlan(CLI::App& app) {
  auto flags = std::make_shared<PlanFlags>();
  PlanCommand& command = flags->command;
  flags->set.Add(command.config, "worker", FlagsThatDoNotSize(command.config, {}));
  flags->set.Add(command.machine, "plan");
  flags->set.Add(command.options, "plan");
  flags->set.Attach(app, "model", FlagsOf::kTool);
  return [flags] { return RunPlan(*flags); };
}

}  // namespace baton::cli
