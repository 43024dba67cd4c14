// The ways to a worker's landing memory as text, and what they say. Pure; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/net/address.h"

namespace baton {

/// "tcp" of "tcp:127.0.0.1:4000".
std::string KindOf(std::string_view address);
/// `address` with the host that others are told, where it has one that they dial: of tcp.
std::string ToldAs(const std::string& address, const std::string& host);
/// Where `address` is dialled, when its host is a name that must be resolved first.
std::optional<net::HostPort> NameToResolve(std::string_view address);
/// Each is tried.
inline constexpr size_t kMostWays = 64;

/// Every address of a decode worker, best first, and the machine it runs on.
struct LandingAddresses {
  std::string machine;
  std::vector<std::string> addresses;

  /// One line of text; never empty.
  std::string Pack() const;
  /// InvalidArgument when it is none, or names more than kMostWays.
  static absl::StatusOr<LandingAddresses> Parse(std::string_view text);
};

}  // namespace baton
