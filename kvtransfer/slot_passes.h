// The two passes over KV bytes: gather a slot out of the sender's blocks, and verify, convert and scatter a slot into
// the receiver's. Both walk the transfer plan's runs; both derive the digest of what they move (common/kv_digest.h).
//
// Over host memory they are the CPU's; over a device's memory its KvMover does the work, and the bytes go through its
// staging memory, or between two devices of one machine through outbox and inbox (device_passes.h). Pure but for the
// memory they are given; the transfer thread's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/kv_mover.h"
#include "kvtransfer/slot_format.h"
#include "kvtransfer/transfer_plan.h"

namespace baton {

/// One plane of one layer of a rank's paged pool: block b at base + b · block_stride_bytes, inside it
/// [tokens_per_block, heads, dim]; digests [blocks, units of a block, heads], one per unit and head. A worker whose own
/// ranks share a machine is one rank to others: its planes lie in pieces, each with some of the heads.
struct KvPlaneMemory {
  std::byte* base = nullptr;
  int64_t block_stride_bytes = 0;
  uint64_t* digests = nullptr;
  int64_t digest_block_stride = 0;      ///< in elements
  IntRange heads{};                     ///< of the rank's, that are in this piece; empty: all
  int mover = 0;                        ///< of KvPoolView::movers: who moves this piece
  bool copy = false;                    ///< an earlier piece has the same heads: this one is written, and not read
  float scale = 1.0f;                   ///< of the layer's KV in e4m3, on whichever side: value = stored · scale
  std::vector<KvPlaneMemory> others{};  ///< the further pieces
};

/// A rank's whole pool. The memory is another's and must outlive it; it never moves.
struct KvPoolView {
  struct Group {
    std::vector<int> layers;                         ///< of this rank, global numbers, ascending
    std::vector<std::vector<KvPlaneMemory>> planes;  ///< [layers][planes]
    int64_t blocks = 0;
  };
  std::vector<Group> groups;
  /// They move the KV, which is their devices'; empty: it is the host's. They must outlive the view.
  std::vector<KvMover*> movers;
};

/// A sequence's block numbers by position, per group.
using KvBlockTables = std::vector<std::vector<int32_t>>;

/// The buffer of the own device's outbox that a slot's payloads go to. `named`: the one that the slot says; another one
/// for tests.
struct OutboxRoom {
  uint32_t buffer = 0, named = 0;
};
/// A peer's outbox; null: it is not open here.
struct PeerOutbox {
  std::shared_ptr<OpenedOutbox> memory;
  uint64_t buffer_bytes = 0;
  bool in_inbox = false;  ///< a network's device has read what the slot names into the inbox: nothing is fetched
};
/// A landing memory that the device of the pool copies from by itself. FailedPrecondition: the reason why not; what is
/// in there is staged by the host.
absl::StatusOr<std::unique_ptr<PinnedMemory>> PinLanding(const KvPoolView& pool, std::span<std::byte> memory);
/// Who moves KV of this pool between devices, if one does: a device of several ranks has a part of each slot only.
KvMover* LenderOf(const KvPoolView& pool);
/// Opens the outbox that a peer's hello names. FailedPrecondition: the reason why its KV does not come from there.
absl::StatusOr<PeerOutbox> OpenOutbox(const KvPoolView& pool, std::string_view card, uint64_t buffer_bytes);

/// Packs `segments` of `lane` into `slot`, or the payloads into `outbox` of a pool that LenderOf is not null of;
/// returns the bytes to send. DataLoss with the coordinates when the blocks do not hold what was computed there (the
/// digests kept beside them differ), or are not there at all.
absl::StatusOr<uint64_t> GatherSlot(const TransferPlan& plan, const LanePlan& lane, const LaneKey& key, uint32_t turn,
                                    std::span<const uint32_t> segments, const KvPoolView& pool,
                                    const KvBlockTables& tables, std::span<std::byte> slot,
                                    const OutboxRoom* outbox = nullptr);

/// Scatters the segments `wanted` of a slot that was read, and sets the digests beside the blocks; payloads that are in
/// the writer's outbox come `from` there; `pinned`: the slot is in memory that PinLanding was given. Slot and outbox
/// may change meanwhile: every byte of a payload is read once. DataLoss with the coordinates when a segment is missing,
/// has the wrong size or its digest differs: then what was written counts as garbage.
absl::Status VerifyAndScatterSlot(const TransferPlan& plan, const LanePlan& lane, const SlotContent& content,
                                  std::span<const uint32_t> wanted, const KvPoolView& pool, const KvBlockTables& tables,
                                  const PeerOutbox& from = {}, bool pinned = false);

/// The room that a segment takes of a slot: its payload, padding and entry. A slot of `bytes` holds segments that add
/// up to SlotRoom(bytes).
int64_t SegmentRoom(int64_t payload_bytes);
int64_t SlotRoom(uint64_t slot_bytes);

}  // namespace baton
