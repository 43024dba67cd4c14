#include "common/net/advertise.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_join.h"
#include "common/net/address.h"
#include "common/net/socket_address.h"
#include "common/status.h"

namespace baton::net {
namespace {

// Of documentation, so nobody's. A datagram socket that is connected sends nothing: it asks for the route.
constexpr const char *kSomewhereV4 = "192.0.2.1", *kSomewhereV6 = "2001:db8::1";

/// Empty: there is no route.
std::string SourceTo(const char* somewhere) {
  const auto to = SocketAddress::Of(somewhere, 9);
  if (!to.ok()) return "";
  const int fd = socket(to->family(), SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return "";
  const bool routed = connect(fd, to->get(), to->bytes()) == 0;
  std::string host = routed ? SocketAddress::OfSocket(fd).host() : "";
  close(fd);
  return IsLoopback(host) || IsWildcard(host) ? "" : host;
}

/// The addresses of `family` that other machines may reach.
std::vector<std::string> OwnAddresses(int family) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(all, &freeifaddrs);
  std::vector<std::string> out;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != family || (one->ifa_flags & IFF_UP) == 0) continue;
    const socklen_t bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::string host = SocketAddress(one->ifa_addr, bytes).host();
    const bool link_local = host.starts_with("fe80:") || host.starts_with("169.254.");
    if (!link_local && !IsLoopback(host)) out.push_back(std::move(host));
  }
  return out;
}

}  // namespace

absl::StatusOr<std::string> AdvertisedHost(const std::string& bound, const std::string& advertised) {
  if (!advertised.empty()) {
    BATON_RETURN_IF_ERROR(CheckHost(advertised));
    if (!IsWildcard(advertised)) return advertised;
    return absl::InvalidArgumentError(StrCat(advertised, " is every address of a machine: nobody can dial it"));
  }
  if (!IsWildcard(bound)) return bound;
  const bool v6 = bound.find(':') != std::string::npos;  // which takes IPv4, too
  std::string host = SourceTo(kSomewhereV4);
  if (host.empty() && v6) host = SourceTo(kSomewhereV6);
  if (!host.empty()) return host;
  std::vector<std::string> own = OwnAddresses(AF_INET);
  if (own.empty() && v6) own = OwnAddresses(AF_INET6);
  if (own.size() == 1) return own.front();
  return absl::FailedPreconditionError(
      StrCat(bound,
             " is every address of this machine, and which of them others reach is not known: there is no "
             "default route, and ",
             own.empty() ? "no address but loopback" : StrCat("it has ", absl::StrJoin(own, ", "))));
}

}  // namespace baton::net
