// How much has come on a TCP connection, read or not.
#pragma once

#include <cstdint>

namespace baton::net {

/// Bytes of the peer's that the kernel has taken; 0: `socket` is no TCP connection. Any thread.
uint64_t ReceivedBytes(int socket);

}  // namespace baton::net
