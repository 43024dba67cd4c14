// CudaOps' KvMover: the gather and scatter kernels over pinned memory of the host, on a stream of their own; between
// devices of one machine over memory of the device.
//
// The kernels read and write packed memory directly: no copy on the device. What a peer may still write never is
// staging memory or inbox: a slot is copied there first, so the scatter's loads may go through the read-only cache. The
// outbox is an allocation of its own, in whole pages, which CUDA IPC gives to others: sixteen buffers, and bytes known
// to whoever has the card, by which one who opens it sees that what is in there arrives. The inbox's copy is the
// driver's (a copy engine's, over NVLink where the GPUs have it), so kernels touch memory of their own device alone.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/kv_mover.h"

namespace baton::cuda {

/// `lends`: with outbox and inbox. ResourceExhausted with both numbers when the device, or the host, has no room for
/// it.
absl::StatusOr<std::unique_ptr<KvMover>> MakeKvMover(size_t staging_bytes, bool lends);

}  // namespace baton::cuda
