#include "common/net/socket_address.h"

#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/match.h"
#include "common/errno_text.h"
#include "common/net/address.h"
#include "common/status.h"
#include "common/str_cat.h"

namespace baton::net {
namespace {

absl::StatusOr<std::vector<SocketAddress>> Ask(const std::string& host, uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICSERV | flags;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), StrCat(port).c_str(), &hints, &found);
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  if (error != 0) {
    return absl::UnavailableError(StrCat("\"", host, "\" is not resolved: ", gai_strerror(error)));
  }
  std::vector<SocketAddress> out;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    const SocketAddress address(one->ai_addr, one->ai_addrlen);
    if (std::ranges::find(out, address) == out.end()) out.push_back(address);
  }
  return out;
}

template <class Ask>
SocketAddress EndOf(Ask&& ask) {
  sockaddr_storage end{};
  socklen_t bytes = sizeof(end);
  auto* generic = reinterpret_cast<sockaddr*>(&end);
  return ask(generic, &bytes) == 0 ? SocketAddress(generic, bytes) : SocketAddress();
}

}  // namespace

SocketAddress::SocketAddress(const sockaddr* address, socklen_t bytes)
    : bytes_(std::min<socklen_t>(bytes, sizeof(storage_))) {
  std::memcpy(&storage_, address, bytes_);
}

absl::StatusOr<SocketAddress> SocketAddress::Of(const std::string& host, uint16_t port) {
  const bool local = absl::EqualsIgnoreCase(host, "localhost");
  if (!local && !IsIpAddress(host)) return absl::InvalidArgumentError(StrCat("\"", host, "\" is no IP address"));
  BATON_ASSIGN_OR_RETURN(const auto found, Ask(local ? "127.0.0.1" : host, port, AI_NUMERICHOST));
  return found.front();
}

SocketAddress SocketAddress::OfSocket(int socket) {
  return EndOf([socket](sockaddr* to, socklen_t* bytes) { return getsockname(socket, to, bytes); });
}
SocketAddress SocketAddress::OfPeer(int socket) {
  return EndOf([socket](sockaddr* to, socklen_t* bytes) { return getpeername(socket, to, bytes); });
}

uint16_t SocketAddress::port() const {
  if (family() == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_port);
  return family() == AF_INET ? ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port) : uint16_t{0};
}

SocketAddress SocketAddress::WithPort(uint16_t port) const {
  SocketAddress out = *this;
  if (family() == AF_INET6) reinterpret_cast<sockaddr_in6*>(&out.storage_)->sin6_port = htons(port);
  if (family() == AF_INET) reinterpret_cast<sockaddr_in*>(&out.storage_)->sin_port = htons(port);
  return out;
}

std::string SocketAddress::host() const {
  char text[NI_MAXHOST] = "";
  if (bytes_ == 0 || getnameinfo(get(), bytes_, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) return "";
  return text;
}

std::string SocketAddress::text() const { return JoinHostPort(host(), port()); }

absl::StatusOr<std::vector<SocketAddress>> Resolve(const std::string& host, uint16_t port) {
  if (const auto number = SocketAddress::Of(host, port); number.ok()) return std::vector<SocketAddress>{*number};
  BATON_RETURN_IF_ERROR(CheckHost(host));
  return Ask(host, port, 0);
}

absl::StatusOr<SocketAddress> AddressToBind(const std::string& host, uint16_t port) {
  BATON_ASSIGN_OR_RETURN(const auto found, Resolve(host, port));
  return found.front();
}

int BoundSocket(const SocketAddress& where, int flags) {
  const int fd = socket(where.family(), SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
  if (fd < 0) return -1;
  const int on = 1, off = 0;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));  // a port in TIME_WAIT is free
  if (where.family() == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (bind(fd, where.get(), where.bytes()) == 0) return fd;
  const int why = errno;
  close(fd);
  errno = why;
  return -1;
}

absl::StatusOr<int> ListenAt(const SocketAddress& where, int flags, int backlog) {
  const int fd = BoundSocket(where, flags);
  if (fd >= 0 && listen(fd, backlog) == 0) return fd;
  const absl::Status why = absl::UnavailableError(StrCat("listen on ", where.text(), ": ", ErrnoText()));
  if (fd >= 0) close(fd);
  return why;
}

std::string LoopbackHost() {
  const absl::StatusOr<SocketAddress> four = SocketAddress::Of("127.0.0.1", 0);
  const int bound = four.ok() ? BoundSocket(*four, 0) : -1;
  if (bound < 0) return "::1";
  close(bound);
  return "127.0.0.1";
}

}  // namespace baton::net
