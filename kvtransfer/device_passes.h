// The passes of slot_passes.h over a device's memory: its KvMover gathers into staging memory, from which the bytes are
// copied into the slot, and scatters from staging memory, into which a slot is copied first, or from its inbox, into
// which it copies a slot that is pinned. So each byte of a slot that a peer may still write is read once, and no
// transport needs to know the device. Between two devices of one
// machine it gathers into its outbox, and scatters from its inbox, into which the peer's outbox is copied first: the
// slot tells of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kvtransfer/slot_passes.h"

namespace baton {

/// A slot to fill: where payloads belong in it, or in the same places of an outbox's buffer.
struct SlotToFill {
  std::span<const std::byte> slot;
  std::span<const std::span<std::byte>> payloads;
  const OutboxRoom* outbox = nullptr;
};
/// The source digest of each segment, whose payload is where it belongs. Errors as GatherSlot, and the device's.
absl::StatusOr<std::vector<uint64_t>> GatherFromDevice(const TransferPlan& plan, const LanePlan& lane,
                                                       std::span<const uint32_t> segments, const KvPoolView& pool,
                                                       const KvBlockTables& tables, const SlotToFill& to);

/// Of parts with as many bytes as the plan says. Errors as VerifyAndScatterSlot, and the device's.
absl::Status ScatterToDevice(const TransferPlan& plan, const LanePlan& lane, std::span<const SlotContent::Part> parts,
                             const KvPoolView& pool, const KvBlockTables& tables);
/// The same of parts whose slot is in memory that the pool's only mover has pinned.
absl::Status ScatterFromPinned(const TransferPlan& plan, const LanePlan& lane, std::span<const SlotContent::Part> parts,
                               const KvPoolView& pool, const KvBlockTables& tables);
/// The same of parts that all are in one buffer of `from`.
absl::Status ScatterFromOutbox(const TransferPlan& plan, const LanePlan& lane, std::span<const SlotContent::Part> parts,
                               const KvPoolView& pool, const KvBlockTables& tables, const PeerOutbox& from);

}  // namespace baton
