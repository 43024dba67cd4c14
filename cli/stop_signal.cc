#include "cli/stop_signal.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>

#include "common/check.h"

namespace baton::cli {
namespace {

std::atomic<int> g_fd{-1}, g_signal{0};  // a handler has nothing else

void Note(int signal) {
  const int before = errno;
  g_signal = signal;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(g_fd, &one, sizeof one);
  errno = before;
}

}  // namespace

StopSignal::StopSignal() {
  g_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  BATON_CHECK(g_fd >= 0);
  g_signal = 0;
  struct sigaction action{};
  action.sa_handler = Note;
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  sigemptyset(&action.sa_mask);
  for (const int one : {SIGINT, SIGTERM}) sigaction(one, &action, nullptr);
}

StopSignal::~StopSignal() {
  for (const int one : {SIGINT, SIGTERM}) std::signal(one, SIG_DFL);
  close(g_fd.exchange(-1));
}

int StopSignal::fd() const { return g_fd; }
int StopSignal::signal() const { return g_signal; }

}  // namespace baton::cli
