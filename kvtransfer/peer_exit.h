// Whether a process has ended, by a pidfd: a number that is reused cannot fool it, and a zombie counts as ended.
#pragma once

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"

namespace baton {

class PeerExit {
 public:
  /// Unavailable when there is no such process to be seen.
  static absl::StatusOr<PeerExit> Of(int64_t pid);
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

}  // namespace baton
