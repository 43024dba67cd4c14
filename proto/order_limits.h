// How long the times and how large the sizes may be that an order to a worker names, for both sides: a router names no
// longer ones, a worker refuses them. Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace baton {

/// Of a ticket until it is attached, ms: what a router asks for a request without a deadline.
inline constexpr uint32_t kMostExpiryMs = 3600 * 1000;
/// Of a lease, ms; routers name 4 s and renew twice a second.
inline constexpr uint32_t kMostLeaseMs = 60 * 1000;
/// Until a deadline of a leg or of a change of role, ms: a day, the longest that a router's --request-timeout-ms may
/// be.
inline constexpr uint32_t kMostDeadlineMs = 24 * 3600 * 1000;

/// Bytes of a leg's id, of a router's session and of a cache's salt: they are kept for as long as what they name, and
/// longer.
inline constexpr size_t kMostIdBytes = 256, kMostSaltBytes = 1024;
/// Requests to run in one message to a worker, and its bytes.
inline constexpr int kMostAttaches = 1024;
inline constexpr size_t kMostMessageBytes = 64 << 20;

/// InvalidArgument with the field, its value and the most that it may be.
inline absl::Status CheckAtMost(const char* field, uint64_t value, uint64_t most) {
  if (value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, ", at most ", most));
}

}  // namespace baton
