#include "common/net/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

#include "absl/strings/match.h"
#include "common/status.h"
#include "common/str_cat.h"

namespace baton::net {
namespace {

constexpr size_t kLongestName = 253, kLongestLabel = 63;

std::string_view WithoutBrackets(std::string_view host) {
  const bool brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  return brackets ? host.substr(1, host.size() - 2) : host;
}

std::optional<in_addr> V4(std::string_view host) {
  in_addr address{};
  return inet_pton(AF_INET, std::string(host).c_str(), &address) == 1 ? std::optional(address) : std::nullopt;
}
std::optional<in6_addr> V6(std::string_view host) {
  in6_addr address{};
  const std::string number(host.substr(0, host.find('%')));
  return inet_pton(AF_INET6, number.c_str(), &address) == 1 ? std::optional(address) : std::nullopt;
}

bool InLoopbackNet(in_addr address) { return (ntohl(address.s_addr) >> 24) == 127; }

/// The IPv4 address within ::ffff:a.b.c.d.
in_addr Mapped(const in6_addr& address) {
  in_addr v4{};
  std::memcpy(&v4, address.s6_addr + 12, sizeof(v4));
  return v4;
}

bool IsLabel(std::string_view label) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  };
  return !label.empty() && label.size() <= kLongestLabel && label.front() != '-' && std::ranges::all_of(label, allowed);
}

bool IsName(std::string_view host) {
  if (host.ends_with('.')) host.remove_suffix(1);
  if (host.empty() || host.size() > kLongestName) return false;
  for (size_t from = 0; from <= host.size();) {
    const size_t dot = std::min(host.find('.', from), host.size());
    if (!IsLabel(host.substr(from, dot - from))) return false;
    from = dot + 1;
  }
  return true;
}

absl::Status Bad(std::string_view text, std::string_view why) {
  return absl::InvalidArgumentError(StrCat("\"", text, "\" is no address: ", why));
}

}  // namespace

std::string JoinHostPort(std::string_view host, int port) {
  const bool v6 = host.find(':') != std::string_view::npos && host.front() != '[';
  return StrCat(v6 ? "[" : "", host, v6 ? "]:" : ":", port);
}

bool IsIpAddress(std::string_view host) { return V4(host) || V6(host); }

absl::Status CheckHost(std::string_view host) {
  if (host.empty()) return Bad(host, "the host is missing");
  if (IsIpAddress(host)) return absl::OkStatus();
  if (host.find(':') != std::string_view::npos) return Bad(host, "it has colons but is no IPv6 address");
  if (host.find_first_not_of("0123456789.") == std::string_view::npos)
    return Bad(host, "an IPv4 address has four numbers from 0 to 255");
  if (!IsName(host)) return Bad(host, "a host name has letters, digits, '-', '_' and '.' only");
  return absl::OkStatus();
}

absl::StatusOr<HostPort> ParseHostPort(std::string_view text) {
  if (text.find("//") != std::string_view::npos)
    return Bad(text, "HOST:PORT is expected, without a scheme (names are resolved)");
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || text.ends_with(']')) return Bad(text, "the port is missing: HOST:PORT");
  const std::string_view host = text.substr(0, colon), digits = text.substr(colon + 1);
  const bool brackets = host.starts_with('[') && host.ends_with(']');
  if (!brackets && host.find(':') != std::string_view::npos)
    return Bad(text, "an IPv6 address has brackets before its port: [::1]:7000");
  HostPort out{std::string(WithoutBrackets(host)), 0};
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), out.port);
  if (error != std::errc() || end != digits.data() + digits.size() || out.port == 0)
    return Bad(text, StrCat("\"", digits, "\" is no port from 1 to 65535"));
  if (brackets && !V6(out.host)) return Bad(text, "what is in brackets is no IPv6 address");
  BATON_RETURN_IF_ERROR(CheckHost(out.host));
  return out;
}

bool IsLoopback(std::string_view host) {
  host = WithoutBrackets(host);
  if (absl::EqualsIgnoreCase(absl::string_view(host.data(), host.size()), "localhost")) return true;
  if (const auto v4 = V4(host)) return InLoopbackNet(*v4);
  const auto v6 = V6(host);
  if (!v6) return false;
  return IN6_IS_ADDR_LOOPBACK(&*v6) || (IN6_IS_ADDR_V4MAPPED(&*v6) && InLoopbackNet(Mapped(*v6)));
}

bool IsWildcard(std::string_view host) {
  host = WithoutBrackets(host);
  if (const auto v4 = V4(host)) return v4->s_addr == INADDR_ANY;
  const auto v6 = V6(host);
  if (!v6) return false;
  return IN6_IS_ADDR_UNSPECIFIED(&*v6) || (IN6_IS_ADDR_V4MAPPED(&*v6) && Mapped(*v6).s_addr == INADDR_ANY);
}

}  // namespace baton::net
