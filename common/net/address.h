// Addresses as people write them: "10.0.0.1:7000", "[fd00::1]:7000", "decode-0.example:7000". The one place that reads,
// prints and judges them. No I/O: names are resolved by net/resolve.h. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace baton::net {

struct HostPort {
  std::string host;  ///< an IPv4 or IPv6 address without brackets, or a name
  uint16_t port = 0;

  bool operator==(const HostPort&) const = default;
};

/// "host:port", with brackets around an IPv6 address.
std::string JoinHostPort(std::string_view host, int port);

/// HOST:PORT, port 1…65535. InvalidArgument says what is wrong with the text: no port, a URL, an IPv6 address without
/// brackets, a name that is none.
absl::StatusOr<HostPort> ParseHostPort(std::string_view text);

/// OK: an IP address, or a name as DNS has them. InvalidArgument says why not.
absl::Status CheckHost(std::string_view host);

/// An IPv4 address of four numbers, or an IPv6 address (also with a scope: fe80::1%eth0).
bool IsIpAddress(std::string_view host);

/// Only this machine reaches it: 127.0.0.0/8, ::1 (also as ::ffff:127.0.0.1) and localhost; by number, so that
/// "127.evil.example" is none. Brackets are allowed.
bool IsLoopback(std::string_view host);

/// Every address of the machine: 0.0.0.0 or ::. Brackets are allowed.
bool IsWildcard(std::string_view host);

}  // namespace baton::net
