// Whether a process has ended, by a pidfd: a number that is reused cannot fool it, and a zombie counts as ended. And
// the waiters for that, where only a peer's exit is a fence.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace baton {

class PeerExit {
 public:
  /// Unavailable when there is no such process to be seen.
  static absl::StatusOr<PeerExit> Of(int64_t pid);
  /// The process at the other end of a unix socket that is connected. Unavailable: it cannot be seen (another PID
  /// namespace, on kernels before 6.5), or has left.
  static absl::StatusOr<PeerExit> OfPeer(int socket);
  PeerExit(PeerExit&& other) noexcept : fd_(std::exchange(other.fd_, -1)), pid_(other.pid_) {}
  PeerExit& operator=(PeerExit&& other) noexcept {
    std::swap(fd_, other.fd_), std::swap(pid_, other.pid_);
    return *this;
  }
  ~PeerExit();
  bool exited() const;
  /// Readable once the process has ended.
  int fd() const { return fd_; }
  /// Another process's may be the same once this one has exited. 0: it has none here (another PID namespace).
  int64_t pid() const { return pid_; }

 private:
  PeerExit(int fd, int64_t pid) : fd_(fd), pid_(pid) {}
  int fd_;
  int64_t pid_;
};

/// The processes of a transport's peers, by PeerNumber: known from the greeting until the process has exited, whatever
/// has become of the connection, or until nobody needs that fence any more. Those of one process share a descriptor,
/// however often it connects. Not thread-safe; the transfer thread's.
class PeerExits {
 public:
  /// Early, so that the process's number cannot be reused.
  void Know(uint64_t peer, PeerExit exit);
  /// `fenced` is called from Progress once the peer's process has exited; false, and it is not: no such peer was known.
  /// May be asked again. `epoll` wakes up for it, with `event_data`.
  bool Await(uint64_t peer, int epoll, uint64_t event_data, std::function<void()> fenced);
  /// Nobody needs this peer's fence any more: it is known no longer, and what waits for it is never called.
  void Release(uint64_t peer);
  /// True: somebody has exited.
  bool Progress();
  /// What is kept.
  size_t peers() const { return known_.size(); }
  size_t waiters() const;

 private:
  struct Process {
    PeerExit exit;
    int epoll = -1;
    std::vector<std::pair<uint64_t, std::function<void()>>> awaited;  ///< by peer
  };
  std::map<uint64_t, std::shared_ptr<Process>> known_;  ///< by peer
  std::map<int64_t, std::weak_ptr<Process>> latest_;    ///< by process number
  std::vector<std::shared_ptr<Process>> awaited_;       ///< `epoll` watches them
};

}  // namespace baton
