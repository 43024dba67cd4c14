#include "cli/interrupts.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <csignal>

#include "common/check.h"

namespace baton::cli {

Interrupts::Interrupts() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  signals_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  BATON_CHECK(signals_ >= 0);
}

Interrupts::~Interrupts() { close(signals_); }

std::optional<int> Interrupts::Wait(int fd, std::optional<Duration> timeout) {
  std::array<pollfd, 2> waited{pollfd{.fd = signals_, .events = POLLIN}, pollfd{.fd = fd, .events = POLLIN}};
  const int ms = timeout ? static_cast<int>(Milliseconds(*timeout)) : -1;
  if (poll(waited.data(), waited.size(), ms) <= 0 || waited[0].revents == 0) return std::nullopt;
  signalfd_siginfo info{};
  if (read(signals_, &info, sizeof info) != static_cast<ssize_t>(sizeof info)) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

}  // namespace baton::cli
