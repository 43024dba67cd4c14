// Whether a process has ended, by a pidfd: a number that is reused cannot fool it, and a zombie counts as ended. And
// the waiters for that, where only a peer's exit is a fence.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
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
  PeerExit(PeerExit&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  PeerExit& operator=(PeerExit&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~PeerExit();
  bool exited() const;
  /// Readable once the process has ended.
  int fd() const { return fd_; }

 private:
  explicit PeerExit(int fd) : fd_(fd) {}
  int fd_;
};

/// The processes of a transport's peers, by PeerNumber: known from the greeting until the process has exited, whatever
/// has become of the connection. Not thread-safe; the transfer thread's.
class PeerExits {
 public:
  /// Early, so that the process's number cannot be reused.
  void Know(uint64_t peer, PeerExit exit) { known_.emplace(peer, Waiting{std::move(exit), {}}); }
  /// `fenced` is called from Progress once the peer's process has exited; false, and it is not: no such peer was known.
  /// May be asked again. `epoll` wakes up for it, with `event_data`.
  bool Await(uint64_t peer, int epoll, uint64_t event_data, std::function<void()> fenced);
  /// True: somebody has exited.
  bool Progress();

 private:
  struct Waiting {
    PeerExit exit;
    std::vector<std::function<void()>> fenced;  ///< empty: nobody waits
  };
  std::map<uint64_t, Waiting> known_;
  std::vector<uint64_t> awaited_;
};

}  // namespace baton
