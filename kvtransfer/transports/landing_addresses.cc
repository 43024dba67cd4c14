#include "kvtransfer/transports/landing_addresses.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/status.h"

namespace baton {
namespace {

constexpr std::string_view kMark = "kv1", kTcp = "tcp:";

}  // namespace

std::string KindOf(std::string_view address) { return std::string(address.substr(0, address.find(':'))); }

std::string ToldAs(const std::string& address, const std::string& host) {
  if (!address.starts_with(kTcp)) return address;
  const auto place = net::ParseHostPort(std::string_view(address).substr(kTcp.size()));
  return place.ok() ? StrCat(kTcp, net::JoinHostPort(host, place->port)) : address;
}

std::optional<net::HostPort> NameToResolve(std::string_view address) {
  if (!address.starts_with(kTcp)) return std::nullopt;
  const auto place = net::ParseHostPort(address.substr(kTcp.size()));
  return place.ok() && !net::IsIpAddress(place->host) ? std::optional(*place) : std::nullopt;
}

std::string LandingAddresses::Pack() const { return StrCat(kMark, "|", machine, "|", absl::StrJoin(addresses, "|")); }

absl::StatusOr<LandingAddresses> LandingAddresses::Parse(std::string_view text) {
  if (const auto ways = std::ranges::count(text, '|') - 1; ways > static_cast<int64_t>(kMostWays))
    return absl::InvalidArgumentError(StrCat("landing addresses by ", ways, " ways, at most ", kMostWays));
  std::vector<std::string> parts = absl::StrSplit(AbslView(text), '|');
  if (parts.size() < 3 || parts[0] != kMark)
    return absl::InvalidArgumentError(StrCat("landing addresses of ", text.size(), " bytes that are none"));
  LandingAddresses out{parts[1], {}};
  out.addresses.assign(std::make_move_iterator(parts.begin() + 2), std::make_move_iterator(parts.end()));
  return out;
}

}  // namespace baton
