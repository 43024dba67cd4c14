#include "cli/port_claim.h"

#include <unistd.h>

#include <cerrno>

#include "common/errno_text.h"
#include "common/net/address.h"
#include "common/net/socket_address.h"
#include "common/str_cat.h"

namespace baton::cli {

absl::StatusOr<PortClaim> PortClaim::Take(const std::string& host, int port, const std::string& flag) {
  const auto where = net::AddressToBind(host, static_cast<uint16_t>(port));
  if (!where.ok()) return absl::FailedPreconditionError(StrCat("--host ", host, ": ", where.status().message()));
  PortClaim claim(net::BoundSocket(*where, 0), port);
  if (claim.fd_ < 0) {
    const std::string message =
        StrCat("cannot listen on ", net::JoinHostPort(host, port), ": ", ErrnoText(), " (--host, ", flag, ")");
    return errno == EADDRINUSE ? absl::AlreadyExistsError(message) : absl::PermissionDeniedError(message);
  }
  claim.port_ = net::SocketAddress::OfSocket(claim.fd_).port();
  return claim;
}

PortClaim::~PortClaim() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace baton::cli
