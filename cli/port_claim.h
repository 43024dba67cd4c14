// A port that stays ours while nobody listens on it: a socket that is bound with SO_REUSEADDR and never listens. The
// kernel gives the port to nobody who asks for any free one, a child that binds it by number (with SO_REUSEADDR too)
// gets it, and a client that comes while no child listens is refused at once. Any thread; children do not inherit it.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace baton::cli {

class PortClaim {
 public:
  /// `host`: an address or name of this machine. `port` 0: any free one. `flag`, "--port" say, is named when the port
  /// cannot be had: FailedPrecondition where `host` is none, AlreadyExists where somebody listens, else
  /// PermissionDenied.
  static absl::StatusOr<PortClaim> Take(const std::string& host, int port, const std::string& flag);

  PortClaim(PortClaim&& other) noexcept : fd_(other.fd_), port_(other.port_) { other.fd_ = -1; }
  PortClaim& operator=(PortClaim&&) = delete;
  PortClaim(const PortClaim&) = delete;
  PortClaim& operator=(const PortClaim&) = delete;
  ~PortClaim();

  int port() const { return port_; }

 private:
  PortClaim(int fd, int port) : fd_(fd), port_(port) {}
  int fd_;
  int port_;
};

}  // namespace baton::cli
