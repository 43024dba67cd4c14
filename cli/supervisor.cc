#include "cli/supervisor.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>

#include "cli/child_process.h"
#include "cli/exit_code.h"
#include "cli/signals.h"
#include "common/errno_text.h"
#include "common/log.h"
#include "common/status.h"
#include "common/str_cat.h"

namespace baton::cli {
namespace {

constexpr Duration kFirstBackoff = std::chrono::milliseconds(200);
constexpr Duration kMaxBackoff = std::chrono::seconds(5);
constexpr Duration kHealthyAfter = std::chrono::seconds(10);
constexpr Duration kFrozenPoll = std::chrono::milliseconds(100);
constexpr Duration kKillWithin = std::chrono::seconds(2);

// A child that could not start for a reason that a restart cannot cure. Its first start: a later one has the same flags
// and files, so that the machine is to blame. Somebody has the port for a while, a GPU is not back yet, or still has
// the memory of the process before.
bool IsPermanent(int exit_code) {
  return exit_code == kExitUsage || exit_code == kExitModel || exit_code == kExitMemory || exit_code == kExitAddress;
}

// Stopped by a signal and not continued: it would not hear SIGTERM.
bool IsFrozen(pid_t pid) {
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(pid), &info, WSTOPPED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid;
}

// What a child wrote to its failure pipe before it ended; empty when it was killed.
std::string ReadAll(int fd) {
  std::string text(4096, '\0');
  const ssize_t n = read(fd, text.data(), text.size());
  text.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return text;
}

}  // namespace

int ExitCodeOfWaitStatus(int wait_status) {
  return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
}

Supervisor::~Supervisor() { StopAll(Duration::zero()); }

absl::Status Supervisor::Start(ChildSpec spec) {
  Child child{.spec = std::move(spec), .backoff = kFirstBackoff};
  BATON_RETURN_IF_ERROR(Spawn(child));
  children_.push_back(std::move(child));
  return absl::OkStatus();
}

absl::Status Supervisor::Spawn(Child& child) {
  int pipe_ends[2];
  if (pipe2(pipe_ends, O_CLOEXEC | O_NONBLOCK) != 0) return absl::InternalError(StrCat("pipe: ", ErrnoText()));
  const absl::StatusOr<pid_t> pid = StartChild({.arguments = child.spec.argv, .failure_pipe = pipe_ends[1]});
  close(pipe_ends[1]);
  child.pid = pid.value_or(-1);
  if (!pid.ok()) {
    close(pipe_ends[0]);
    return absl::InternalError(StrCat("cannot start ", child.spec.name, ": ", pid.status().message()));
  }
  child.failure_pipe = pipe_ends[0];
  child.started = clock_.Now();
  ++child.starts;
  child.restart_at.reset();
  return absl::OkStatus();
}

bool Supervisor::EndsAll(const Child& child, int code) const {
  return !child.spec.restart || (child.starts == 1 && IsPermanent(code));
}

std::optional<int> Supervisor::Reap() {
  std::optional<int> fatal;
  int status = 0;
  for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    auto child = std::find_if(children_.begin(), children_.end(), [&](const Child& c) { return c.pid == pid; });
    if (child == children_.end()) continue;
    child->pid = -1;
    const std::string reason = ReadAll(child->failure_pipe);
    close(child->failure_pipe);
    const int code = ExitCodeOfWaitStatus(status);
    if (stopping_) {
      cut_off_ = cut_off_ || code == kExitCutOff;
      continue;
    }
    if (EndsAll(*child, code)) {
      fatal = code;
      failure_ = StrCat(child->spec.name, " ended with exit code ", code, reason.empty() ? "" : ": ", reason);
      continue;
    }
    if (clock_.Now() - child->started > kHealthyAfter) child->backoff = kFirstBackoff;
    child->restart_at = clock_.Now() + child->backoff;
    LogWarning("{} ended with {}; restart in {:.1f} s", child->spec.name, code, Seconds(child->backoff));
    child->backoff = std::min(child->backoff * 2, kMaxBackoff);
  }
  return fatal;
}

void Supervisor::RestartDue() {
  for (Child& child : children_) {
    if (!child.restart_at || *child.restart_at > clock_.Now()) continue;
    if (absl::Status status = Spawn(child); !status.ok()) {
      LogError("{}", std::string(status.message()));
      child.restart_at = clock_.Now() + kMaxBackoff;
    }
  }
}

std::optional<Duration> Supervisor::NextRestart() const {
  std::optional<Duration> next;
  for (const Child& child : children_) {
    if (!child.restart_at) continue;
    const Duration wait = *child.restart_at - clock_.Now();
    next = next ? std::min(*next, wait) : wait;
  }
  return next;
}

int Supervisor::Run(Duration grace) {
  while (true) {
    if (std::optional<int> code = Reap()) {
      const std::string failure = failure_;
      StopAll(grace);
      std::fprintf(stderr, "baton: %s\n", failure.c_str());
      return *code;
    }
    RestartDue();
    const std::optional<int> signal = WaitForSignal(/*children=*/true, NextRestart());
    if (!signal || *signal == SIGCHLD) continue;
    StopAll(grace);
    return cut_off_ ? kExitCutOff : kExitOk;
  }
}

bool Supervisor::Running(bool front) const {
  return std::ranges::any_of(children_, [&](const Child& c) { return c.pid > 0 && c.spec.front == front; });
}

void Supervisor::KillFrozen() {
  for (const Child& child : children_) {
    if (child.pid < 0 || !IsFrozen(child.pid)) continue;
    LogWarning("{} is stopped by a signal and cannot drain: it is killed", child.spec.name);
    kill(child.pid, SIGKILL);
  }
}

void Supervisor::StopSome(bool front, Duration grace, bool& at_once) {
  const auto signal_all = [&](int signal) {
    for (const Child& child : children_) {
      if (child.pid > 0 && child.spec.front == front) kill(child.pid, signal);
    }
  };
  if (!at_once) signal_all(SIGTERM);
  const TimePoint deadline = clock_.Now() + grace;
  for (; !at_once && Running(front); Reap()) {
    KillFrozen();
    const Duration left = deadline - clock_.Now();
    if (left <= Duration::zero()) break;
    const std::optional<int> signal = WaitForSignal(/*children=*/true, std::min(left, kFrozenPoll));
    at_once = signal && *signal != SIGCHLD;
  }
  for (const Child& child : children_) {
    if (grace == Duration::zero() || child.pid < 0 || child.spec.front != front) continue;
    LogWarning("{} {} and is killed", child.spec.name, at_once ? "was told twice to stop" : "did not stop in time");
    cut_off_ = cut_off_ || !at_once;
  }
  signal_all(SIGKILL);
  const TimePoint dead_by = clock_.Now() + kKillWithin;
  for (Reap(); Running(front) && clock_.Now() < dead_by; Reap()) WaitForSignal(/*children=*/true, kFrozenPoll);
}

void Supervisor::StopAll(Duration grace) {
  stopping_ = true;
  for (Child& child : children_) child.restart_at.reset();
  bool at_once = grace == Duration::zero();
  StopSome(/*front=*/true, grace, at_once);
  StopSome(/*front=*/false, grace, at_once);
}

}  // namespace baton::cli
