// `baton bench`: offers requests to an OpenAI server and says what came back.
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "cli/command.h"
#include "cli/environment.h"
#include "cli/exit_code.h"
#include "cli/flag_set.h"
#include "cli/stop_signal.h"
#include "cli/tools/bench_faults.h"
#include "cli/tools/bench_targets.h"
#include "common/errno_text.h"
#include "common/status.h"
#include "load/arrivals.h"
#include "load/bench_checks.h"
#include "load/bench_options.h"
#include "load/formats/formats.h"
#include "load/html_report.h"
#include "load/load_points.h"
#include "load/merge.h"
#include "load/report.h"
#include "load/table.h"

namespace baton::cli {
namespace {

using load::BenchOptions;
using load::LoadPoint;
using load::Measured;

struct BenchFlags {
  BenchOptions options;
  FlagSet set;
};

/// What could not be written. That takes nothing away from what is measured and written afterwards.
class Unwritten {
 public:
  void Note(std::string_view flag, const absl::Status& status) {
    if (status.ok()) return;
    const std::string text = StrCat(flag, ": ", View(status.message()));
    if (count_++ == 0) first_ = absl::Status(status.code(), text);
    std::fprintf(stderr, "baton: %s\n", text.c_str());  // hours may pass until the end
  }
  absl::Status status() const {
    if (count_ < 2) return first_;
    return absl::Status(first_.code(),
                        StrCat(count_, " files could not be written, the first: ", View(first_.message())));
  }

 private:
  int count_ = 0;
  absl::Status first_;
};

/// What one command measures, and how it shows it.
struct Bench {
  const BenchOptions& options;
  load::Goal goal;
  std::vector<double> percentiles;
  std::vector<LoadPoint> points;
  std::vector<load::SaveWish> save_as;
};

/// What it has so far.
struct Taken {
  std::vector<Measured> runs;
  Unwritten unwritten;
  int signal = 0;  ///< that ended it; 0: none did
};

std::string Now() {
  const std::time_t now = std::time(nullptr);
  std::tm day{};
  char text[32];
  std::strftime(text, sizeof(text), "%Y%m%d-%H%M%S", localtime_r(&now, &day));
  return text;
}

absl::StatusOr<Bench> CheckedBench(const BenchOptions& o) {
  BATON_RETURN_IF_ERROR(CheckFields(o));
  BATON_ASSIGN_OR_RETURN(load::Goal goal, load::ParseGoal(o.goodput));
  BATON_ASSIGN_OR_RETURN(std::vector<double> percentiles, load::ParsePercentiles(o.metric_percentiles));
  BATON_RETURN_IF_ERROR(load::CheckBench(o));
  BATON_ASSIGN_OR_RETURN(std::vector<LoadPoint> points, load::PointsOf(o));
  BATON_ASSIGN_OR_RETURN(std::vector<load::SaveWish> save_as, load::ParseSaveAs(o.save_as));
  for (const std::string& text : o.kill) BATON_RETURN_IF_ERROR(load::ParseKill(text).status());
  for (const std::string& text : o.at) BATON_RETURN_IF_ERROR(load::ParseCommand(text).status());
  return Bench{o, goal, std::move(percentiles), std::move(points), std::move(save_as)};
}

/// A line on the terminal that says how far the run is, about fifty times a run.
std::function<void(size_t, size_t)> Progress(const BenchOptions& o, size_t requests) {
  if (o.disable_tqdm || isatty(STDERR_FILENO) == 0) return {};
  return [requests](size_t ended, size_t failed) {
    if (ended % std::max<size_t>(1, requests / 50) != 0 && ended != requests) return;
    std::fprintf(stderr, "\r%zu of %zu requests, %zu failed%s", ended, requests, failed, ended == requests ? "\n" : "");
  };
}

absl::Status WaitUntil(const std::string& start_at) {
  if (start_at.empty()) return absl::OkStatus();
  using Clock = std::chrono::system_clock;
  double seconds = 0;
  if (!absl::SimpleAtod(start_at, &seconds) || !(seconds > 0 && seconds < 1e11))
    return absl::InvalidArgumentError(StrCat("--start-at: \"", start_at, "\" is not a number of seconds since 1970"));
  const Clock::time_point at{std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))};
  if (at < Clock::now())
    return absl::InvalidArgumentError(absl::StrFormat("--start-at %s: that was %.1f s ago", start_at,
                                                      std::chrono::duration<double>(Clock::now() - at).count()));
  std::this_thread::sleep_until(at);
  return absl::OkStatus();
}

// Asks the first prompt, whose answer is not counted, until the server answers or --ready-check-timeout-sec is over, of
// which the search for its model has had a part: a router has its models before it has workers. A server that takes the
// question and says nothing is waited for no longer than one that is not there.
absl::Status AwaitReady(const BenchTarget& target, const std::vector<load::Prompt>& prompts, const BenchOptions& o) {
  if (o.ready_check_timeout_sec == 0 || prompts.empty()) return absl::OkStatus();
  const std::vector<load::Prompt> first(prompts.begin(), prompts.begin() + 1);
  for (;;) {
    load::Run once{target.asker, first, {Duration{}}, 1, o.request_id_prefix + "ready-"};
    once.until = target.ready_by;
    const load::Outcome outcome = load::Execute(once, SteadyClock()).outcomes.front();
    if (!outcome.nobody_answers()) return absl::OkStatus();
    std::this_thread::sleep_until(std::min(std::chrono::steady_clock::now() + kReadyPause, target.ready_by));
    if (std::chrono::steady_clock::now() >= target.ready_by)
      return absl::UnavailableError(StrCat(target.address, ": not ready within --ready-check-timeout-sec ",
                                           o.ready_check_timeout_sec, ": ", outcome.error));
  }
}

void WarmUp(const BenchTarget& target, const std::vector<load::Prompt>& prompts, const Bench& bench) {
  const BenchOptions& o = bench.options;
  if (o.num_warmups == 0) return;
  const std::vector<load::Prompt> first(prompts.begin(),
                                        prompts.begin() + std::min<int64_t>(o.num_warmups, std::ssize(prompts)));
  const load::Run warm{target.asker, first, std::vector<Duration>(first.size()),
                       std::max<int64_t>(1, bench.points.front().max_concurrency), o.request_id_prefix + "warm-"};
  load::Execute(warm, SteadyClock());
}

load::Report ReportOf(const Bench& bench, const Measured& one) { return {bench.options, bench.percentiles, one}; }

// One file a run; with a name of their own, several runs are lines of one file.
void Save(const Bench& bench, const Measured& one, bool first, Unwritten& unwritten) {
  const BenchOptions& o = bench.options;
  if (!o.save_result && !o.save_detailed && !o.append_result) return;
  const load::Report report = ReportOf(bench, one);
  const std::string name = o.result_filename.empty() ? load::ResultFileName(report) : o.result_filename;
  const std::string path = o.result_dir.empty() ? name : StrCat(o.result_dir, "/", name);
  const bool append = o.append_result || (!first && !o.result_filename.empty());
  const absl::Status written = load::WriteResult(report, path, append);
  unwritten.Note("the result", written);
  if (written.ok()) std::printf("Result: %s\n", path.c_str());
}

absl::StatusOr<Measured> MeasureOne(const Bench& bench, const BenchTarget& target, const LoadPoint& point,
                                    const std::vector<load::Prompt>& prompts, int round, Commands& commands,
                                    const StopSignal& stop) {
  const BenchOptions& o = bench.options;
  BATON_ASSIGN_OR_RETURN(std::vector<load::Fault> faults, FindFaults(o, target.url, commands));
  const SteadyClock clock;
  load::Run run{target.asker,
                prompts,
                load::DueTimes(o, point.request_rate, prompts),
                point.max_concurrency,
                o.request_id_prefix,
                Progress(o, prompts.size()),
                std::move(faults),
                o.real_time};
  run.stop_fd = stop.fd();
  Measured out{.target = target.name, .model = target.model, .point = point, .round = round, .date = Now()};
  out.run = load::Execute(run, clock);
  out.summary = load::Summarize(out.run, bench.goal);
  out.dips = load::FindDips(out.run.outcomes, out.run.duration, out.run.faults);
  if (o.verify == "identical" && !out.run.interrupted)
    out.verified = load::VerifyIdentical(run, out.run.outcomes, clock);
  commands.Reap();
  return out;
}

void Show(const Bench& bench, const Measured& one) {
  const BenchOptions& o = bench.options;
  if (!one.target.empty() || bench.points.size() > 1 || o.num_runs > 1)
    std::printf("%s%s%s, run %d of %d\n", one.target.c_str(), one.target.empty() ? "" : ": ",
                PointName(one.point).c_str(), one.round + 1, o.num_runs);
  std::fputs(load::ReportText(ReportOf(bench, one)).c_str(), stdout);
  std::fflush(stdout);
}

// Takes one run, and says it when a signal has ended it.
absl::Status Take(const Bench& bench, Measured one, size_t loads, const StopSignal& stop, Taken& out) {
  out.signal = stop.signal();
  if (out.signal != 0) std::fputs("\n", stderr);  // below the line of the progress
  if (!one.run.outcomes.empty()) {
    Show(bench, one);
    Save(bench, one, out.runs.empty(), out.unwritten);
    out.runs.push_back(std::move(one));
  }
  if (out.signal == 0) return absl::OkStatus();
  const bool whole = !out.runs.empty() && !out.runs.back().run.interrupted;
  return absl::CancelledError(StrCat("interrupted: ", out.runs.size(), " of ", loads, " loads were measured",
                                     out.runs.empty() || whole ? "" : ", the last one not to its end"));
}

// Every load on every server, in turns: what the machine does meanwhile hits them alike. Not OK: `out` has what was
// measured until then. Cancelled: by a signal.
absl::Status MeasureAll(const Bench& bench, Taken& out) {
  const BenchOptions& o = bench.options;
  BenchOptions drawn = o;  // a broken file is said before a server is looked for
  std::string note;
  BATON_ASSIGN_OR_RETURN(std::vector<load::Prompt> prompts, load::MakePrompts(drawn, &note));
  if (!note.empty()) std::fprintf(stderr, "%s\n", note.c_str());
  BATON_ASSIGN_OR_RETURN(std::vector<BenchTarget> targets, FindTargets(o));
  for (const BenchTarget& target : targets) {
    BATON_RETURN_IF_ERROR(AwaitReady(target, prompts, o));
    WarmUp(target, prompts, bench);
  }
  BATON_RETURN_IF_ERROR(WaitUntil(o.start_at));
  Commands commands;
  const StopSignal stop;
  const size_t loads = static_cast<size_t>(o.num_runs) * bench.points.size() * targets.size();
  for (int round = 0; round < o.num_runs; ++round) {
    for (const LoadPoint& point : bench.points) {
      if (!out.runs.empty()) {
        ++drawn.seed;  // this load meets no prompt of the last one in a cache
        BATON_ASSIGN_OR_RETURN(prompts, load::MakePrompts(drawn));
      }
      for (size_t i = 0; i < targets.size(); ++i) {
        const BenchTarget& target = targets[(i + static_cast<size_t>(round)) % targets.size()];
        BATON_ASSIGN_OR_RETURN(Measured one, MeasureOne(bench, target, point, prompts, round, commands, stop));
        BATON_RETURN_IF_ERROR(Take(bench, std::move(one), loads, stop, out));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status MergeAll(const Bench& bench, Taken& out) {
  std::string note;
  BATON_ASSIGN_OR_RETURN(Measured merged, load::Merge(bench.options.merge, bench.goal, &note));
  if (!note.empty()) std::fprintf(stderr, "%s\n", note.c_str());
  Show(bench, merged);
  Save(bench, merged, true, out.unwritten);
  out.runs.push_back(std::move(merged));
  return absl::OkStatus();
}

// Not OK: what the exit code tells.
absl::Status Judge(const std::vector<Measured>& all) {
  for (const Measured& one : all) {
    const std::string where =
        all.size() == 1 ? "" : StrCat(one.target, one.target.empty() ? "" : " ", PointName(one.point), ": ");
    if (one.summary.completed == 0)
      return absl::UnavailableError(
          StrCat(where, "none of ", one.summary.offered, " requests was answered: ", one.run.outcomes.front().error));
  }
  load::Verified sum;
  for (const Measured& one : all) {
    if (!one.verified) continue;
    sum.compared += one.verified->compared;
    sum.different += one.verified->different;
    sum.failed += one.verified->failed;
  }
  if (sum.different + sum.failed > 0)
    return absl::DataLossError(StrCat(sum.different, " of ", sum.compared,
                                      " answers had other bytes when asked again, ", sum.failed, " had none"));
  return absl::OkStatus();
}

absl::Status CheckFolderOf(const std::string& flag, const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path();
  if (access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat(flag, " ", path, ": ", folder, ": ", ErrnoText()));
}

absl::Status CheckFile(const std::string& flag, const std::string& path) {
  std::error_code none;
  if (std::filesystem::is_directory(path, none))
    return absl::InvalidArgumentError(StrCat(flag, " ", path, ": it is a folder, no file"));
  return CheckFolderOf(flag, path);
}

// What would be found out when all is measured and nowhere to be kept. Folders of files are made, as others do.
absl::Status CheckFolders(const Bench& bench) {
  const BenchOptions& o = bench.options;
  if (o.save_result || o.save_detailed || o.append_result) {
    if (!o.result_dir.empty()) BATON_RETURN_IF_ERROR(load::MakeFolder(o.result_dir));
    const std::string path = o.result_dir.empty() ? o.result_filename : StrCat(o.result_dir, "/", o.result_filename);
    BATON_RETURN_IF_ERROR(o.result_filename.empty() ? CheckFolderOf("--result-dir", path)
                                                    : CheckFile("--result-filename", path));
  }
  if (!o.html.empty()) BATON_RETURN_IF_ERROR(CheckFile("--html", o.html));
  for (const load::SaveWish& wish : bench.save_as) {
    const bool folder = wish.format == "inference-perf";
    BATON_RETURN_IF_ERROR(folder ? load::MakeFolder(wish.path)
                                 : CheckFile(StrCat("--save-as ", wish.format), wish.path));
  }
  return absl::OkStatus();
}

// Prompts are drawn again for each load, and what comes through a pipe comes once.
absl::Status CheckReadOnce(const Bench& bench) {
  const size_t loads = bench.points.size() * static_cast<size_t>(bench.options.num_runs);
  std::error_code none;
  if (loads < 2 || !std::filesystem::is_fifo(bench.options.dataset_path, none)) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("--dataset-path ", bench.options.dataset_path,
                                           ": a pipe is read once, and there are ", loads, " loads: give a file"));
}

absl::Status Run(const Bench& bench, Taken& taken) {
  const BenchOptions& o = bench.options;
  BATON_RETURN_IF_ERROR(CheckFolders(bench));
  BATON_RETURN_IF_ERROR(CheckReadOnce(bench));
  absl::Status measured = o.merge.empty() ? MeasureAll(bench, taken) : MergeAll(bench, taken);
  const std::vector<Measured>& all = taken.runs;
  Unwritten& unwritten = taken.unwritten;
  if (all.empty()) return measured;
  if (all.size() > 1) std::fputs(("\n" + load::TableText(load::TableOf(all), load::BesideFirst(all))).c_str(), stdout);
  for (const load::SaveWish& wish : bench.save_as) {
    const absl::Status written = load::SaveAs(wish, all, o);
    unwritten.Note(StrCat("--save-as ", wish.format), written);
    if (written.ok()) std::printf("As %s: %s\n", wish.format.c_str(), wish.path.c_str());
  }
  if (!o.html.empty()) {
    const absl::Status written = load::WriteHtml(all, o, o.html);
    unwritten.Note("--html", written);
    if (written.ok()) std::printf("Page: %s\n", o.html.c_str());
  }
  BATON_RETURN_IF_ERROR(measured);
  BATON_RETURN_IF_ERROR(unwritten.status());
  return Judge(all);
}

// With fewer files at a time than the system lets it have, a load of many requests measures its own refusals.
void TakeAllFiles() {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
}

int RunBench(BenchFlags& flags) {
  BenchOptions& o = flags.options;
  if (!flags.set.status().ok()) return FailUsage(flags.set.status());
  if (o.api_key.empty()) o.api_key = Environment("OPENAI_API_KEY").value_or("");
  TakeAllFiles();
  const absl::StatusOr<Bench> bench = CheckedBench(o);
  if (!bench.ok()) return FailUsage(bench.status());
  Taken taken;
  const absl::Status status = Run(*bench, taken);
  if (taken.signal != 0) {
    Fail(status);
    return 128 + taken.signal;  // as a shell says it
  }
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
