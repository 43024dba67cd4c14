// Ranks as processes: a group is a run of the mesh's ranks, so groups share its connections.
#pragma once

#include <memory>

#include "engine/parallel/communicator.h"
#include "engine/parallel/tcp_mesh.h"

namespace baton::engine {

/// The group of mesh ranks [first, first + size); rank r of it is mesh rank first + r, and this process is one of them.
/// Groups of one mesh are used by one thread, and breaking one breaks all.
std::unique_ptr<Communicator> MakeTcpGroup(std::shared_ptr<TcpMesh> mesh, int first, int size);

}  // namespace baton::engine
