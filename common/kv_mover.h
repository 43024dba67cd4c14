// Moves KV between a device's blocks, which the host cannot touch, and staging memory, which it can: the passes of
// kvtransfer/slot_passes.h over memory of a device. A device's Ops makes one; it has a stream of its own, so that it
// waits for no step, and no step for it.
//
// Thread: one, the transfer thread; any one thread before that. The digest is that of common/kv_digest.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "common/dtype.h"

namespace baton {

/// Consecutive tokens inside one block times the heads that travel, of one (layer, plane). In the staging memory its
/// vectors lie packed, [tokens, heads, dim].
struct KvMove {
  void* cache = nullptr;        ///< device memory: the first token's vector of the first head that travels
  int64_t token_stride = 0;     ///< bytes between tokens in the cache; heads follow each other
  int64_t staged = 0;           ///< where it is packed: bytes from the start of staging(), a multiple of 16
  uint64_t* digests = nullptr;  ///< device memory: digest of the first unit's first head beside the block
  int64_t digest_stride = 0;    ///< elements between units; heads follow each other
  uint32_t layer = 0, plane = 0, first_head = 0, first_token = 0;  ///< global numbers: the digest's coordinates
  int32_t tokens = 0, heads = 0, dim = 0;
  int32_t segment = 0;  ///< whose digest it belongs to; ascending over the moves of a call
  DType cached = DType::kBF16, packed = DType::kBF16;  ///< element types in the cache and in the staging memory
  float scale = 1.0f;                                  ///< where one of them alone is e4m3: value = stored · scale
};

/// What became of a segment.
struct KvMoved {
  uint64_t digest = 0;  ///< of the packed bytes
  int32_t unkept = 0;   ///< gather: pieces whose bytes are not those that the digest beside their block says
};

class KvMover {
 public:
  virtual ~KvMover() = default;
  /// Pinned memory of the host. It is the caller's between the calls.
  virtual std::span<std::byte> staging() = 0;
  /// Whether it can place elements of type `packed` in a cache of type `cached`.
  virtual bool Converts(DType packed, DType cached) const = 0;
  /// Blocks → staging. The KV must be there (Ops::WhenDone). Returns when the bytes are in staging(). A device that
  /// fails ends the process (device_failure.h).
  virtual absl::Status Gather(std::span<const KvMove> moves, std::span<KvMoved> segments) = 0;
  /// Staging → blocks, converted, and the digests beside them. Returns when steps that begin later read them. What a
  /// step that is over has asked for must be done (Ops::EndStep): else it may write the blocks later.
  virtual absl::Status Scatter(std::span<const KvMove> moves, std::span<KvMoved> segments) = 0;
};

}  // namespace baton
