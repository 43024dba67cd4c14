// CudaOps' KvMover: the gather and scatter kernels over pinned memory of the host, on a stream of their own.
//
// The kernels read and write the staging memory directly: no copy on the device. What a peer may still write never is
// staging memory: the host copies a slot there first, so the scatter's loads may go through the read-only cache.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/kv_mover.h"

namespace baton::cuda {

/// ResourceExhausted with both numbers when the device, or the host, has no room for it.
absl::StatusOr<std::unique_ptr<KvMover>> MakeKvMover(size_t staging_bytes);

}  // namespace baton::cuda
