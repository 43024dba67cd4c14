#include "cli/tools/local_cluster.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "cli/beside.h"
#include "cli/child_process.h"
#include "cli/supervisor.h"
#include "common/status.h"
#include "common/str_cat.h"

namespace baton::cli {
namespace {

constexpr Duration kPoll = std::chrono::milliseconds(50);

// HTTP's address as `baton serve` wrote it. Nothing: it is not there yet.
std::optional<std::string> UrlIn(const std::string& ready_file) {
  constexpr std::string_view kHttp = "BATON_HTTP='";
  std::ifstream in(ready_file);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(kHttp) && line.ends_with('\''))
      return line.substr(kHttp.size(), line.size() - kHttp.size() - 1);
  }
  return std::nullopt;
}

}  // namespace

std::optional<Layout> ParseLayout(const std::string& text) {
  if (text == "both") return Layout();
  if (text == "pd") return Layout{.prefill = 1, .decode = 1};
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  Layout out;
  const bool both = parts.first == "both";
  if (!both && !absl::SimpleAtoi(parts.first, &out.prefill)) return std::nullopt;
  if (!absl::SimpleAtoi(parts.second, both ? &out.both : &out.decode)) return std::nullopt;
  for (const int count : {both ? 1 : out.prefill, both ? out.both : out.decode}) {
    if (count < 1 || count > kMostWorkers) return std::nullopt;
  }
  return out;
}

absl::StatusOr<LocalCluster> LocalCluster::Start(const std::string& name, const Layout& layout,
                                                 const std::vector<std::string>& arguments, Duration within) {
  LocalCluster out;
  BATON_ASSIGN_OR_RETURN(out.folder_, TempFolder::Make("cluster", {"ready", "ready.part"}));
  const std::string ready_file = out.folder_->path() + "/ready";
  std::vector<std::string> all{"serve", "--port",       "0",        "--grpc-port", "0",       "--admin-port",
                               "0",     "--ready-file", ready_file, "--log-level", "warning", "--log-requests=false"};
  for (const auto& [flag, count] : {std::pair{"--prefill", layout.prefill}, std::pair{"--decode", layout.decode},
                                    std::pair{"--both", layout.both}}) {
    if (count > 0) all.insert(all.end(), {flag, StrCat(count)});
  }
  all.insert(all.end(), arguments.begin(), arguments.end());
  absl::StatusOr<std::string> program = Beside(kServing);
  const absl::StatusOr<pid_t> pid =
      program.ok() ? StartChild({.arguments = std::move(all), .program = *std::move(program), .silent = true})
                   : program.status();
  if (!pid.ok())
    return absl::UnavailableError(StrCat("cannot start the cluster \"", name, "\": ", pid.status().message()));
  out.pid_ = *pid;
  BATON_RETURN_IF_ERROR(out.WaitReady(name, ready_file, within));
  return out;
}

absl::Status LocalCluster::WaitReady(const std::string& name, const std::string& ready_file, Duration within) {
  const auto until = std::chrono::steady_clock::now() + within;
  for (;;) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      pid_ = -1;
      return absl::UnavailableError(StrCat("the cluster \"", name, "\" ended with exit code ",
                                           ExitCodeOfWaitStatus(status), " before it was ready; why is said above"));
    }
    if (const std::optional<std::string> url = UrlIn(ready_file)) {
      url_ = *url;
      folder_ = nullptr;
      return absl::OkStatus();
    }
    if (std::chrono::steady_clock::now() >= until) {
      return absl::UnavailableError(StrCat("the cluster \"", name, "\" is not ready after ",
                                           std::chrono::duration_cast<std::chrono::seconds>(within).count(), " s"));
    }
    std::this_thread::sleep_for(kPoll);
  }
}

LocalCluster::LocalCluster(LocalCluster&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), folder_(std::move(other.folder_)), url_(std::move(other.url_)) {}

LocalCluster::~LocalCluster() {
  if (pid_ > 0) {
    // Nothing runs on it any more. Its children end with it.
    kill(pid_, SIGTERM);
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (waitpid(pid_, nullptr, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() >= until) kill(pid_, SIGKILL);
      std::this_thread::sleep_for(kPoll);
    }
  }
}

}  // namespace baton::cli
