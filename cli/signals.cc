#include "cli/signals.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <cstdlib>

#include "cli/environment.h"

namespace baton::cli {

void BlockSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (int s : {SIGINT, SIGTERM, SIGCHLD}) sigaddset(&set, s);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  for (int s : {SIGPIPE, SIGXFSZ}) std::signal(s, SIG_IGN);  // the call that fails says so
}

void LetSignalsEnd() {
  sigset_t set;
  sigemptyset(&set);
  for (int s : {SIGINT, SIGTERM, SIGCHLD}) sigaddset(&set, s);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

std::optional<int> WaitForSignal(bool children, std::optional<Duration> timeout) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  if (children) sigaddset(&set, SIGCHLD);
  int signal = -1;
  if (timeout) {
    const int64_t ns = timeout->count() > 0 ? timeout->count() : 0;
    const timespec spec{.tv_sec = static_cast<time_t>(ns / 1'000'000'000),
                        .tv_nsec = static_cast<long>(ns % 1'000'000'000)};
    signal = sigtimedwait(&set, nullptr, &spec);
  } else {
    signal = sigwaitinfo(&set, nullptr);
  }
  if (signal < 0) return std::nullopt;
  return signal;
}

namespace {

// SIGINT and SIGTERM: unblocked with a handler that ends the process, or blocked as BlockSignals leaves them.
void EndAtOnce(bool on) {
  sigset_t set;
  sigemptyset(&set);
  for (int s : {SIGINT, SIGTERM}) {
    sigaddset(&set, s);
    if (on) std::signal(s, [](int) { _exit(0); });
  }
  pthread_sigmask(on ? SIG_UNBLOCK : SIG_BLOCK, &set, nullptr);
  if (on) return;
  for (int s : {SIGINT, SIGTERM}) std::signal(s, SIG_DFL);
}

}  // namespace

ExitOnSignal::ExitOnSignal() { EndAtOnce(true); }
ExitOnSignal::~ExitOnSignal() { EndAtOnce(false); }

void FollowParent() {
  const std::optional<int> parent = ParentPid();
  if (!parent) return;
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != *parent) std::_Exit(0);
}

}  // namespace baton::cli
