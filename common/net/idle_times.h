// How long a connection of a gRPC port may do nothing before it is closed. A value.
#pragma once

#include "common/clock.h"

namespace baton::net {

struct IdleTimes {
  Duration begin{};         ///< until its HTTP/2, and TLS, has begun
  Duration without_call{};  ///< then; a call that waits is a call
};

}  // namespace baton::net
