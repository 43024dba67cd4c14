#include "kvtransfer/peer_exit.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/errno_text.h"
#include "common/status.h"

namespace baton {

absl::StatusOr<PeerExit> PeerExit::Of(int64_t pid) {
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0));
  if (fd < 0) return absl::UnavailableError(StrCat("no process ", pid, " to be seen: ", ErrnoText()));
  return PeerExit(fd, pid);
}

absl::StatusOr<PeerExit> PeerExit::OfPeer(int socket) {
#ifdef SO_PEERPIDFD
  constexpr int kPeerPidfd = SO_PEERPIDFD;
#else
  constexpr int kPeerPidfd = 77;  // asm-generic/socket.h of Linux 6.5
#endif
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) peer.pid = 0;
  int pidfd = -1;
  bytes = sizeof(pidfd);
  if (getsockopt(socket, SOL_SOCKET, kPeerPidfd, &pidfd, &bytes) == 0) return PeerExit(pidfd, peer.pid);
  if (errno != ENOPROTOOPT) return absl::UnavailableError(StrCat("the peer's process: ", ErrnoText()));
  if (peer.pid <= 0) return absl::UnavailableError("the peer's process is in another PID namespace");
  BATON_ASSIGN_OR_RETURN(PeerExit exit, Of(peer.pid));
  // Its number may have become another process's before we asked; while it holds its end, it has not.
  pollfd end{socket, POLLRDHUP, 0};
  if (poll(&end, 1, 0) > 0 && (end.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0)
    return absl::UnavailableError("the peer's process has left");
  return exit;
}

PeerExit::~PeerExit() {
  if (fd_ >= 0) close(fd_);
}

bool PeerExit::exited() const {
  pollfd poll_for{fd_, POLLIN, 0};
  return poll(&poll_for, 1, 0) > 0;
}

void PeerExits::Know(uint64_t peer, PeerExit exit) {
  const int64_t pid = exit.pid();
  std::shared_ptr<Process> process = pid > 0 ? latest_[pid].lock() : nullptr;
  // Both alive, the one that was known before first: then the number is one process's.
  if (process == nullptr || process->exit.exited() || exit.exited()) {
    process = std::make_shared<Process>(std::move(exit));
    if (pid > 0) latest_[pid] = process;
  }
  known_.emplace(peer, std::move(process));
}

bool PeerExits::Await(uint64_t peer, int epoll, uint64_t event_data, std::function<void()> fenced) {
  const auto found = known_.find(peer);
  if (found == known_.end()) return false;
  Process& process = *found->second;
  process.awaited.emplace_back(peer, std::move(fenced));
  if (process.awaited.size() > 1) return true;
  process.epoll = epoll;
  awaited_.push_back(found->second);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = event_data;
  epoll_ctl(epoll, EPOLL_CTL_ADD, process.exit.fd(), &event);
  return true;
}

void PeerExits::Release(uint64_t peer) {
  const auto node = known_.extract(peer);
  if (node.empty()) return;
  const std::shared_ptr<Process>& process = node.mapped();
  const bool awaited = std::erase_if(process->awaited, [peer](const auto& one) { return one.first == peer; }) > 0;
  if (awaited && process->awaited.empty()) {
    epoll_ctl(process->epoll, EPOLL_CTL_DEL, process->exit.fd(), nullptr);
    std::erase(awaited_, process);
  }
  const auto latest = latest_.find(process->exit.pid());
  if (process.use_count() == 1 && latest != latest_.end() && latest->second.lock() == process) latest_.erase(latest);
}

size_t PeerExits::waiters() const {
  size_t count = 0;
  for (const auto& process : awaited_) count += process->awaited.size();
  return count;
}

bool PeerExits::Progress() {
  std::vector<std::function<void()>> fenced;
  std::erase_if(awaited_, [&](const std::shared_ptr<Process>& process) {
    if (!process->exit.exited()) return false;
    epoll_ctl(process->epoll, EPOLL_CTL_DEL, process->exit.fd(), nullptr);  // peers that nobody awaits may hold it
    for (auto& [peer, done] : std::exchange(process->awaited, {})) {
      known_.erase(peer);
      fenced.push_back(std::move(done));
    }
    return true;
  });
  if (!fenced.empty()) std::erase_if(latest_, [](const auto& one) { return one.second.expired(); });
  for (const auto& one : fenced) one();
  return !fenced.empty();
}

}  // namespace baton
