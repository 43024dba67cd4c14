// The passes of slot_passes.h over a device's memory: its KvMover gathers into staging memory, from which the bytes are
// copied into the slot, and scatters from staging memory, into which a slot is copied first. So each byte of a slot
// that a peer may still write is read once, and no transport needs to know the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kvtransfer/slot_passes.h"

namespace baton {

/// The source digest of each segment, whose payload is in `payloads`. Errors as GatherSlot, and the device's.
absl::StatusOr<std::vector<uint64_t>> GatherFromDevice(const TransferPlan& plan, const LanePlan& lane,
                                                       std::span<const uint32_t> segments, const KvPoolView& pool,
                                                       const KvBlockTables& tables,
                                                       std::span<const std::span<std::byte>> payloads);

/// Of parts with as many bytes as the plan says. Errors as VerifyAndScatterSlot, and the device's.
absl::Status ScatterToDevice(const TransferPlan& plan, const LanePlan& lane, std::span<const SlotContent::Part> parts,
                             const KvPoolView& pool, const KvBlockTables& tables);

}  // namespace baton
