// SocketAddress: an IPv4 or IPv6 address with its port as the kernel takes it, and the sockets that listen on one. A
// value; thread-safe.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::net {

class SocketAddress {
 public:
  SocketAddress() = default;
  SocketAddress(const sockaddr* address, socklen_t bytes);

  /// `host` is an IP address, or "localhost", which is 127.0.0.1. InvalidArgument: it is none.
  static absl::StatusOr<SocketAddress> Of(const std::string& host, uint16_t port);
  /// A socket's own end, and the other one; of no family when there is none.
  static SocketAddress OfSocket(int socket);
  static SocketAddress OfPeer(int socket);

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t bytes() const { return bytes_; }
  int family() const { return storage_.ss_family; }
  uint16_t port() const;
  SocketAddress WithPort(uint16_t port) const;
  std::string host() const;  ///< "10.0.0.1", "fd00::1"
  std::string text() const;  ///< "10.0.0.1:7000", "[fd00::1]:7000"

  bool operator==(const SocketAddress& other) const { return text() == other.text(); }

 private:
  sockaddr_storage storage_{};
  socklen_t bytes_ = 0;
};

/// Every address that `host` has, the first first. Asks the system's resolver where it is a name, which can take
/// seconds: not for a thread that others wait for. Unavailable: the name is not known, or nobody answers.
absl::StatusOr<std::vector<SocketAddress>> Resolve(const std::string& host, uint16_t port);

/// Where a server that was told to bind `host` listens: the address, or the first that the name has.
absl::StatusOr<SocketAddress> AddressToBind(const std::string& host, uint16_t port);

/// A socket that listens at `where`; :: takes IPv4, too. `flags`: SOCK_NONBLOCK or 0. Unavailable, with errno's text.
absl::StatusOr<int> ListenAt(const SocketAddress& where, int flags, int backlog);
/// As ListenAt, without listening: whether the port can be had. errno is the reason when it is -1.
int BoundSocket(const SocketAddress& where, int flags);
/// Where processes of one machine listen for each other: "127.0.0.1", or "::1" on one that has no IPv4.
std::string LoopbackHost();

}  // namespace baton::net
