#include "kvtransfer/peer_exit.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/errno_text.h"
#include "common/status.h"

namespace baton {

absl::StatusOr<PeerExit> PeerExit::Of(int64_t pid) {
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0));
  if (fd < 0) return absl::UnavailableError(StrCat("no process ", pid, " to be seen: ", ErrnoText()));
  return PeerExit(fd);
}

PeerExit::~PeerExit() {
  if (fd_ >= 0) close(fd_);
}

bool PeerExit::exited() const {
  pollfd poll_for{fd_, POLLIN, 0};
  return poll(&poll_for, 1, 0) > 0;
}

}  // namespace baton
