// CudaOps' KvMover: the gather and scatter kernels over pinned memory of the host, on a stream of their own; between
// devices of one machine over memory of the device.
//
// The kernels read and write packed memory directly: no copy on the device. What a peer may still write never is
// staging memory or inbox: a slot is copied there first, so the scatter's loads may go through the read-only cache. The
// outbox is an allocation of its own, in whole pages, which CUDA IPC gives to others: sixteen buffers, and bytes known
// to whoever has the card, by which one who opens it sees that what is in there arrives. The inbox's copy is the
// driver's (a copy engine's, over NVLink where the GPUs have it), so kernels touch memory of their own device alone.
//
// The bars are 5 % of the time to the first token at 8k and 45 GB/s. KV of 8,192 tokens of a model of 8B is 1.07 GB, 34
// MB a layer; at 40,000 tokens/s its prompt takes 205 ms, 5 % of which are 10. All layers but the last go while those
// behind them are computed, if they go at 5.2 GB/s or more; the last is 34 MB. Of a slot each side has a copy of its
// list in and of digests out, a fill, a kernel and a wait, ~20 µs, beside ~10 µs of messages and the bytes: 0.5 µs a MB
// of gathering, 3.5 by NVLink at 300 GB/s, 20 by PCIe at 50. Both sides work at once, so a slot takes ~22 µs and 3.5 a
// MB by NVLink, ~25 and 20 a MB by PCIe. A segment is 112 tokens of a layer, 0.46 MB, which a slot has whole ones of:
//
//   slot, MiB  segments    MB  NVLink: µs  GB/s  last layer, ms  PCIe: GB/s  of the GPU, MiB  pinned, MiB
//   1                 2  0.92          25    37            0.92          21               19           33
//   2                 4  1.83          28    66            0.55          30               36           66
//   4, chosen         9  4.13          36   115            0.35          38               70          132
//   8                18  8.26          51   162            0.27          43              138          264
//
// 4 MiB hold the bar by NVLink, though what a slot costs beside its bytes were three times as much; 2 MiB do
// not. By PCIe 16 MiB would, of which 528 MiB are pinned for each transport (33 slots). A slot is sent with what there
// is of it, so the first bytes of a layer wait for no more than those of a step, and a model of less KV fills a part of
// each. Staged, a thread of the host copies each slot besides, at 10 GB/s or so, and the slot that is under way first
// and last waits for it alone: the last layer takes 4.3 ms, 3.5 in slots of 1 MiB. So the bar of time is held on every
// way, that of 45 GB/s by NVLink or on one GPU. None of it has been measured.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/kv_mover.h"

namespace baton::cuda {

/// `lends`: with outbox and inbox. ResourceExhausted with both numbers when the device, or the host, has no room for
/// it.
absl::StatusOr<std::unique_ptr<KvMover>> MakeKvMover(size_t staging_bytes, bool lends);

}  // namespace baton::cuda
