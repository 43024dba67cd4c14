#include "cli/rank_children.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <utility>

#include "cli/exit_code.h"
#include "common/clock.h"
#include "common/errno_text.h"
#include "common/rank_loss.h"
#include "common/status.h"
#include "common/str_cat.h"

extern char** environ;

namespace baton::cli {
namespace {

// The worker's environment without what is the worker's own.
std::vector<std::string> EnvironmentOf(const std::string& secret) {
  std::vector<std::string> out = {StrCat("BATON_PARENT_PID=", getpid())};
  if (!secret.empty()) out.push_back(StrCat(kRankSecretVariable, "=", secret));
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string_view variable = *e;
    if (!variable.starts_with("BATON_PARENT_PID=") && !variable.starts_with("BATON_FAILURE_FD="))
      out.emplace_back(variable);
  }
  return out;
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

absl::StatusOr<pid_t> Spawn(std::vector<std::string> arguments, std::vector<std::string> environment) {
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);  // Ctrl-C reaches the worker, which ends them
  pid_t pid = -1;
  const int error = posix_spawn(&pid, "/proc/self/exe", nullptr, &attributes, Pointers(arguments).data(),
                                Pointers(environment).data());
  posix_spawnattr_destroy(&attributes);
  if (error == 0) return pid;
  return absl::UnavailableError(StrCat("cannot start a rank: ", ErrnoText(error)));
}

bool EndedForOthers(int status) {
  return WIFEXITED(status) && (WEXITSTATUS(status) == kExitOk || WEXITSTATUS(status) == kExitRankLost);
}

}  // namespace

RankChildren::~RankChildren() {
  for (const Process& p : processes_) {
    if (!p.ended) kill(p.pid, SIGKILL);
  }
  for (const Process& p : processes_) {
    if (!p.ended) waitpid(p.pid, nullptr, 0);
  }
}

absl::Status RankChildren::Start(int rank, const std::string& meet, const std::string& secret) {
  std::vector<std::string> argv = {"baton", "rank", StrCat("--rank=", rank), StrCat("--meet=", meet)};
  argv.insert(argv.end(), arguments_.begin(), arguments_.end());
  BATON_ASSIGN_OR_RETURN(const pid_t pid, Spawn(std::move(argv), EnvironmentOf(secret)));
  processes_.push_back({.rank = rank, .pid = pid});
  return absl::OkStatus();
}

absl::Status RankChildren::Health(bool causes_only) {
  Reap();
  for (const Process& p : processes_) {
    if (!p.ended || (causes_only && EndedForOthers(p.status))) continue;
    const std::string how = WIFSIGNALED(p.status) ? StrCat("was ended by signal ", WTERMSIG(p.status))
                                                  : StrCat("ended with exit code ", WEXITSTATUS(p.status));
    return RankLoss(StrCat("rank ", p.rank, " of ", config_.ranks(), " (process ", p.pid, ") ", how));
  }
  return absl::OkStatus();
}

void RankChildren::Await(Duration within) {
  const SteadyClock clock;
  const TimePoint deadline = clock.Now() + within;
  while (!Reap() && clock.Now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

bool RankChildren::Reap() {
  bool all = true;
  for (Process& p : processes_) {
    if (!p.ended) p.ended = waitpid(p.pid, &p.status, WNOHANG) == p.pid;
    all = all && p.ended;
  }
  return all;
}

}  // namespace baton::cli
