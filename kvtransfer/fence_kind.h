// The events that end a peer's access to our landing slots.
#pragma once

#include <cstdint>

namespace baton {

enum class FenceKind : uint8_t {
  kReceiverWrites,  ///< TCP: we store what we receive; our own check of (ticket, epoch) on receipt is the fence
  kForcedClose,     ///< RDMA: closing our endpoint to that peer, once it has completed
  kPeerExit,        ///< shared memory: the exit of the peer's process, for a stopped one still maps the memory; where
                    ///< nothing is heard of it either, the slots are written off
};

}  // namespace baton
