#include "cli/rank_children.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <utility>

#include "cli/child_process.h"
#include "cli/exit_code.h"
#include "common/clock.h"
#include "common/errno_text.h"
#include "common/rank_loss.h"
#include "common/status.h"
#include "common/str_cat.h"

namespace baton::cli {
namespace {

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
  ChildStart start{.arguments = {"rank", StrCat("--rank=", rank), StrCat("--meet=", meet)}};
  start.arguments.insert(start.arguments.end(), arguments_.begin(), arguments_.end());
  if (!secret.empty()) start.environment.push_back(StrCat(kRankSecretVariable, "=", secret));
  const absl::StatusOr<pid_t> pid = StartChild(std::move(start));
  if (!pid.ok()) return absl::UnavailableError(StrCat("cannot start rank ", rank, ": ", pid.status().message()));
  processes_.push_back({.rank = rank, .pid = *pid});
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

absl::Status RankChildren::AwaitCause(Duration within) {
  const SteadyClock clock;
  const TimePoint deadline = clock.Now() + within;
  absl::Status cause = Health(/*causes_only=*/true);
  while (cause.ok() && clock.Now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    cause = Health(/*causes_only=*/true);
  }
  return cause;
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
