// Moves KV between a device's blocks, which the host cannot touch, and staging memory, which it can: the passes of
// kvtransfer/slot_passes.h over memory of a device. A device's Ops makes one; it has a stream of its own, so that it
// waits for no step, and no step for it.
//
// Between two devices of one machine KV needs no copy through the host: the sender's gathers into its outbox, which the
// other process opens and only reads; the receiver's fetches from there into its inbox, which no other process reaches,
// and scatters what it has there. So nobody ever writes another's memory, and what was verified is what is placed.
//
// Between machines a network's device may read the outbox into the inbox by itself, while nothing else has the inbox.
//
// Memory of the host that it has pinned, landing slots say, the device copies into its inbox by itself: the host copies
// no byte of it, and what a peer may still write is read once all the same.
//
// Thread: one, the transfer thread; any one thread before that. The digest is that of common/kv_digest.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/dtype.h"

namespace baton {

/// The memory in which KV lies packed.
enum class KvPacked : uint8_t {
  kStaging,  ///< pinned memory of the host
  kOutbox,   ///< of the device; processes of the machine read it
  kInbox,    ///< of the device; no other process reaches it. As long as the staging memory
};

/// The memory of a device that others read.
struct KvOutbox {
  std::string card;         ///< what another process opens it with: bytes; empty: there is none
  std::string refused;      ///< why there is none
  uint32_t buffers = 0;     ///< adjacent, from its start
  size_t buffer_bytes = 0;  ///< as long as the staging memory
};
/// The outbox of another mover, opened. The mover that opened it must outlive it; let go by the mover's thread.
class OpenedOutbox {
 public:
  virtual ~OpenedOutbox() = default;
};

/// Memory of a device as a network's device reaches it, which the host must not touch (Transport::Lend, Read).
struct KvDeviceRooms {
  std::span<std::byte> outbox, inbox;  ///< empty: there are none
  std::string mark;                    ///< the bytes at the outbox's end, which stay
};

/// Memory of the host that a mover has pinned; let go before the memory is. The mover must outlive it.
class PinnedMemory {
 public:
  virtual ~PinnedMemory() = default;
};

/// Consecutive tokens inside one block times the heads that travel, of one (layer, plane). In packed memory its vectors
/// lie packed, [tokens, heads, dim].
struct KvMove {
  void* cache = nullptr;        ///< device memory: the first token's vector of the first head that travels
  int64_t token_stride = 0;     ///< bytes between tokens in the cache; heads follow each other
  int64_t staged = 0;           ///< where it is packed: bytes from the start of that memory, a multiple of 16
  uint64_t* digests = nullptr;  ///< device memory: digest of the first unit's first head beside the block
  int64_t digest_stride = 0;    ///< elements between units; heads follow each other
  uint32_t layer = 0, plane = 0, first_head = 0, first_token = 0;  ///< global numbers: the digest's coordinates
  int32_t tokens = 0, heads = 0, dim = 0;
  int32_t segment = 0;  ///< whose digest it belongs to; ascending over the moves of a call
  DType cached = DType::kBF16, packed = DType::kBF16;  ///< element types in the cache and in packed memory
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
  /// Blocks → packed memory: staging or outbox. The KV must be there (Ops::WhenDone). Returns when the bytes are, for
  /// the host or for whoever is told of them. A device that fails ends the process (device_failure.h).
  virtual absl::Status Gather(std::span<const KvMove> moves, std::span<KvMoved> segments, KvPacked to) = 0;
  /// Packed memory, staging or inbox → blocks, converted, and the digests beside them. Returns when steps that begin
  /// later read them. What a step that is over has asked for must be done (Ops::EndStep): else it may write the blocks
  /// later.
  virtual absl::Status Scatter(std::span<const KvMove> moves, std::span<KvMoved> segments, KvPacked from) = 0;

  /// The same at every call.
  virtual KvOutbox outbox() const { return {.refused = "it has none"}; }
  /// Opens the outbox that `card` is of, and looks whether what is in there arrives. FailedPrecondition: the reason why
  /// this device cannot read it.
  virtual absl::StatusOr<std::shared_ptr<OpenedOutbox>> Open(std::string_view card) {
    static_cast<void>(card);
    return absl::FailedPreconditionError("this device opens none");
  }
  /// `bytes` of `from`, from `at` on, into the inbox at `to`. What follows sees them; the host waits for nothing.
  /// InvalidArgument: there are none at this place.
  virtual absl::Status Fetch(const OpenedOutbox& from, int64_t at, int64_t to, int64_t bytes) {
    static_cast<void>(from), static_cast<void>(at), static_cast<void>(to), static_cast<void>(bytes);
    return absl::FailedPreconditionError("this device opens none");
  }

  /// Has FetchPinned take what is in `memory`. FailedPrecondition: the reason why it cannot.
  virtual absl::StatusOr<std::unique_ptr<PinnedMemory>> Pin(std::span<std::byte> memory) {
    static_cast<void>(memory);
    return absl::FailedPreconditionError("this device pins none");
  }
  /// Bytes of pinned memory into the inbox at `to`, where they fit. What follows sees them; they may change when it is
  /// done (Scatter).
  virtual void FetchPinned(std::span<const std::byte> from, int64_t to) {
    static_cast<void>(from), static_cast<void>(to);
  }

  /// The same at every call.
  virtual KvDeviceRooms rooms() { return {}; }
  /// What a network's device has written into the inbox, as its driver said, is seen by what follows; the first bytes
  /// of the inbox go to `head`. FailedPrecondition: the reason why this device sees no such writes.
  virtual absl::Status SeeInbox(std::span<std::byte> head) {
    static_cast<void>(head);
    return absl::FailedPreconditionError("this device has no inbox");
  }
  /// The first `bytes` of the inbox hold nothing of what was there, when it returns.
  virtual void ClearInbox(size_t bytes) { static_cast<void>(bytes); }
};

}  // namespace baton
