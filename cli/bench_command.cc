// `baton bench`: offers requests to an OpenAI server and says what came back.
#include <pthread.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_split.h"
#include "cli/command.h"
#include "cli/exit_code.h"
#include "cli/flag_set.h"
#include "cli/http_client.h"
#include "common/status.h"
#include "load/arrivals.h"
#include "load/bench_options.h"
#include "load/report.h"

namespace baton::cli {
namespace {

using load::BenchOptions;

struct BenchFlags {
  BenchOptions options;
  FlagSet set;
};

std::string Now() {
  const std::time_t now = std::time(nullptr);
  char text[32];
  std::strftime(text, sizeof(text), "%Y%m%d-%H%M%S", std::localtime(&now));
  return text;
}

absl::Status CheckBench(const BenchOptions& o) {
  BATON_RETURN_IF_ERROR(CheckFields(o));
  if (o.ramp_up_strategy != "none" && (o.ramp_up_start_rps <= 0 || o.ramp_up_end_rps <= 0))
    return absl::InvalidArgumentError(
        StrCat("--ramp-up-strategy ", o.ramp_up_strategy, " needs --ramp-up-start-rps and --ramp-up-end-rps above 0"));
  if (o.ramp_up_strategy != "none" && !std::isinf(o.request_rate))
    return absl::InvalidArgumentError(
        "--ramp-up-strategy and --request-rate both say when requests come: leave one out");
  return absl::OkStatus();
}

// The first model that the server has; waits for the server as long as --ready-check-timeout-sec says.
absl::StatusOr<std::string> FindModel(const HttpUrl& url, const BenchOptions& o) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(o.ready_check_timeout_sec);
  for (;;) {
    absl::StatusOr<HttpResponse> response = HttpGet(url, "/v1/models", o.api_key);
    if (response.ok() && response->status == 200) {
      const auto models = nlohmann::json::parse(response->body, nullptr, /*allow_exceptions=*/false);
      if (models.is_object() && models.contains("data") && models["data"].is_array() && !models["data"].empty() &&
          models["data"][0].is_object() && models["data"][0].value("id", nlohmann::json()).is_string())
        return models["data"][0]["id"].get<std::string>();
      return absl::UnavailableError("/v1/models names no model: name one with --model");
    }
    if (std::chrono::steady_clock::now() >= until) {
      if (!response.ok()) return response.status();
      return absl::UnavailableError(StrCat("/v1/models answers ", response->status, ": name a model with --model"));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

absl::StatusOr<load::Server> ServerOf(const HttpUrl& url, const BenchOptions& o) {
  load::Server server{
      url.host, url.port, url.path + load::PathOf(o), {}, std::chrono::milliseconds(o.request_timeout_ms)};
  if (!o.api_key.empty()) server.headers.emplace_back("Authorization", StrCat("Bearer ", o.api_key));
  for (const std::string& one : o.header) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(one, absl::MaxSplits('=', 1));
    if (parts.first.empty() || one.find('=') == std::string::npos || one.find_first_of("\r\n") != std::string::npos)
      return absl::InvalidArgumentError(StrCat("--header: \"", one, "\" is not NAME=VALUE"));
    server.headers.push_back(parts);
  }
  return server;
}

/// A line on the terminal that says how far the run is, about fifty times a run.
std::function<void(size_t, size_t)> Progress(const BenchOptions& o, size_t requests) {
  if (o.disable_tqdm || isatty(STDERR_FILENO) == 0) return {};
  return [requests](size_t ended, size_t failed) {
    if (ended % std::max<size_t>(1, requests / 50) != 0 && ended != requests) return;
    std::fprintf(stderr, "\r%zu of %zu requests, %zu failed%s", ended, requests, failed, ended == requests ? "\n" : "");
  };
}

std::vector<Duration> DueTimes(const BenchOptions& o, const std::vector<load::Prompt>& prompts) {
  if (!o.self_timed || !prompts.front().at) return load::Arrivals(o, prompts.size());
  std::vector<Duration> due;
  for (const load::Prompt& prompt : prompts) due.push_back(*prompt.at);
  return due;
}

absl::Status Save(const load::Report& report) {
  const BenchOptions& o = report.options;
  if (!o.save_result && !o.save_detailed && !o.append_result) return absl::OkStatus();
  const std::string name = o.result_filename.empty() ? load::ResultFileName(report) : o.result_filename;
  const std::string path = o.result_dir.empty() ? name : StrCat(o.result_dir, "/", name);
  BATON_RETURN_IF_ERROR(load::WriteResult(report, path));
  std::printf("Result: %s\n", path.c_str());
  return absl::OkStatus();
}

absl::Status Measure(const BenchOptions& o, const load::Goal& goal, const std::vector<double>& percentiles) {
  BATON_ASSIGN_OR_RETURN(const HttpUrl url,
                         ParseHttpUrl(o.base_url.empty() ? StrCat("http://", o.host, ":", o.port) : o.base_url));
  BATON_ASSIGN_OR_RETURN(const load::Server server, ServerOf(url, o));
  BATON_ASSIGN_OR_RETURN(const std::vector<load::Prompt> prompts, load::MakePrompts(o));
  std::string model = o.model;
  if (model.empty()) {
    BATON_ASSIGN_OR_RETURN(model, FindModel(url, o));
  }
  BATON_ASSIGN_OR_RETURN(const load::RequestBody body, load::RequestBody::Make(o, model));
  const SteadyClock clock;
  if (o.num_warmups > 0) {
    const std::vector<load::Prompt> first(prompts.begin(),
                                          prompts.begin() + std::min<int64_t>(o.num_warmups, std::ssize(prompts)));
    const load::Run warm{server,
                         body,
                         first,
                         std::vector<Duration>(first.size()),
                         std::max<int64_t>(1, o.max_concurrency),
                         o.request_id_prefix + "warm-"};
    load::Execute(warm, clock);
  }
  const load::Run run{
      server, body, prompts, DueTimes(o, prompts), o.max_concurrency, o.request_id_prefix, Progress(o, prompts.size())};
  const load::RunResult result = load::Execute(run, clock);
  const load::Summary summary = load::Summarize(result, goal);
  load::Report report{o, model, Now(), percentiles, result, summary};
  if (o.verify == "identical") report.verified = load::VerifyIdentical(run, result.outcomes, clock);
  std::fputs(load::ReportText(report).c_str(), stdout);
  BATON_RETURN_IF_ERROR(Save(report));
  if (summary.completed == 0)
    return absl::UnavailableError(
        StrCat("none of ", summary.offered, " requests was answered: ", result.outcomes.front().error));
  if (report.verified && report.verified->different + report.verified->failed > 0)
    return absl::DataLossError(StrCat(report.verified->different, " of ", report.verified->compared,
                                      " answers had other bytes when asked again, ", report.verified->failed,
                                      " had none"));
  return absl::OkStatus();
}

int RunBench(BenchFlags& flags) {
  const BenchOptions& o = flags.options;
  if (!flags.set.status().ok()) return FailUsage(flags.set.status());
  if (absl::Status status = CheckBench(o); !status.ok()) return FailUsage(status);
  const absl::StatusOr<load::Goal> goal = load::ParseGoal(o.goodput);
  if (!goal.ok()) return FailUsage(goal.status());
  const absl::StatusOr<std::vector<double>> percentiles = load::ParsePercentiles(o.metric_percentiles);
  if (!percentiles.ok()) return FailUsage(percentiles.status());
  sigset_t stops;  // Ctrl-C ends a run at once: there is nothing to put in order
  sigemptyset(&stops);
  sigaddset(&stops, SIGINT);
  sigaddset(&stops, SIGTERM);
  pthread_sigmask(SIG_UNBLOCK, &stops, nullptr);
  const absl::Status status = Measure(o, *goal, *percentiles);
  if (absl::IsInvalidArgument(status) || absl::IsNotFound(status)) return FailUsage(status);
  return status.ok() ? kExitOk : Fail(status);
}

}  // namespace

Runner AddBench(CLI::App& app) {
  auto flags = std::make_shared<BenchFlags>();
  flags->set.Add(flags->options, "bench");
  flags->set.Attach(app, "", FlagsOf::kTool);
  return [flags] { return RunBench(*flags); };
}

}  // namespace baton::cli
