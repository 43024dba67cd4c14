// Ranks as threads of one process: buffers are read where they lie.
#pragma once

#include <memory>
#include <vector>

#include "engine/parallel/communicator.h"

namespace baton::engine {

/// The communicators of a group of `size` ranks, by rank. Destroying one breaks the group for the others.
std::vector<std::unique_ptr<Communicator>> MakeLocalGroup(int size);

}  // namespace baton::engine
