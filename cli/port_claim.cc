#include "cli/port_claim.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "common/errno_text.h"
#include "common/str_cat.h"

namespace baton::cli {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// The address and port as the kernel takes them; null: `host` is no address.
AddressList Resolve(const std::string& host, int port) {
  const addrinfo hints{.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  const std::string service = StrCat(port);
  if (getaddrinfo(host == "localhost" ? "127.0.0.1" : host.c_str(), service.c_str(), &hints, &found) != 0)
    found = nullptr;
  return {found, &freeaddrinfo};
}

int BoundPort(int fd) {
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &length) != 0) return 0;
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                           : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
}

}  // namespace

absl::StatusOr<PortClaim> PortClaim::Take(const std::string& host, int port, const std::string& flag) {
  const AddressList address = Resolve(host, port);
  if (address == nullptr) return absl::FailedPreconditionError(StrCat("--host ", host, " is not an IP address"));
  PortClaim claim(socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0), port);
  const int yes = 1;
  const bool bound = claim.fd_ >= 0 && setsockopt(claim.fd_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
                     bind(claim.fd_, address->ai_addr, address->ai_addrlen) == 0;
  if (!bound) {
    const std::string message =
        StrCat("cannot listen on ", host, ":", port, ": ", ErrnoText(), " (--host, ", flag, ")");
    return errno == EADDRINUSE ? absl::AlreadyExistsError(message) : absl::PermissionDeniedError(message);
  }
  claim.port_ = BoundPort(claim.fd_);
  return claim;
}

PortClaim::~PortClaim() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace baton::cli
