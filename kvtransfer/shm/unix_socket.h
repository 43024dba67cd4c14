// Stream sockets with abstract names: no file, gone with the last descriptor, reached from this network namespace only.
// Nonblocking, and closed on exec.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton::unix_socket {

struct Listener {
  int socket = -1;   ///< the caller's
  std::string name;  ///< 32 hexadecimal digits of 128 random bits
};

/// ResourceExhausted: no descriptor is left.
absl::StatusOr<Listener> Listen();
/// Unavailable: nobody listens there, or too many wait. InvalidArgument: no name of a Listener.
absl::StatusOr<int> Dial(std::string_view name);
/// PermissionDenied, with both user ids: the process at the other end is another user's.
absl::Status CheckSameUser(int socket);

}  // namespace baton::unix_socket
