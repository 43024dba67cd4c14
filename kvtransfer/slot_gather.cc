// The sender's pass over KV bytes: out of its blocks into a slot.
#include <cstring>

#include "common/kv_digest.h"
#include "common/status.h"
#include "kvtransfer/device_passes.h"
#include "kvtransfer/run_memory.h"
#include "kvtransfer/slot_passes.h"

namespace baton {
namespace {

/// Copies a piece of a run into its packed place; its digest, checked against those kept beside the blocks.
absl::StatusOr<uint64_t> GatherPiece(const KvRun& run, const RunMemory& from, std::byte* packed) {
  uint64_t copied = 0, kept = 0;
  for (int t = 0; t < run.tokens; ++t) {
    const std::byte* row = from.first + t * from.row_bytes;
    std::byte* to = packed + (t * run.heads + from.skipped) * from.vector_bytes;
    std::memcpy(to, row, static_cast<size_t>(from.heads * from.vector_bytes));
    for (int h = 0; h < from.heads; ++h, to += from.vector_bytes) {
      copied += KvDigestVector(At(run, t, from.skipped + h), to, static_cast<uint32_t>(from.vector_bytes));
    }
  }
  for (int unit = 0; unit * kUnitTokens < run.tokens; ++unit) {
    for (int h = 0; h < from.heads; ++h) kept += from.digests[unit * from.digest_row + h];
  }
  if (copied != kept) return Differs("a source block no longer holds what was computed", run, kept, copied);
  return copied;
}

absl::StatusOr<uint64_t> GatherRun(const KvRun& run, const RunPieces& pieces, std::byte* packed) {
  uint64_t digest = 0;
  for (const RunMemory& piece : pieces) {
    if (piece.copy) continue;
    BATON_ASSIGN_OR_RETURN(const uint64_t of_piece, GatherPiece(run, piece, packed));
    digest += of_piece;
  }
  return digest;
}

}  // namespace

absl::StatusOr<uint64_t> GatherSlot(const TransferPlan& plan, const LanePlan& lane, const LaneKey& key, uint32_t turn,
                                    std::span<const uint32_t> segments, const KvPoolView& pool,
                                    const KvBlockTables& tables, std::span<std::byte> slot, const OutboxRoom* outbox) {
  std::vector<SlotSegment> entries;
  for (uint32_t segment : segments) {
    entries.push_back(
        {.segment = segment, .bytes = static_cast<uint64_t>(plan.SegmentBytes(lane, static_cast<int>(segment)))});
  }
  BATON_ASSIGN_OR_RETURN(const auto payloads, BeginSlot(slot, key, turn, entries));
  absl::Status status;
  if (!pool.movers.empty()) {
    BATON_ASSIGN_OR_RETURN(const std::vector<uint64_t> digests,
                           GatherFromDevice(plan, lane, segments, pool, tables, {slot, payloads, outbox}));
    for (size_t i = 0; i < entries.size(); ++i) entries[i].wire_digest = entries[i].source_digest = digests[i];
    for (SlotSegment& entry : entries) entry.outbox = outbox != nullptr ? outbox->named + 1 : 0;
    BATON_RETURN_IF_ERROR(BeginSlot(slot, key, turn, entries).status());
    return outbox != nullptr ? SlotOverheadBytes(entries.size()) : SlotBytes(entries);
  }
  for (size_t i = 0; i < entries.size() && status.ok(); ++i) {
    plan.ForEachRun(lane, static_cast<int>(segments[i]), TransferEnd::kSource, [&](const KvRun& run) {
      if (!status.ok()) return;
      const DType type = PlaneOf(plan.source(), run).dtype;
      const absl::StatusOr<RunPieces> from = Locate(run, type, pool, tables);
      const absl::StatusOr<uint64_t> digest =
          from.ok() ? GatherRun(run, *from,
                                payloads[i].data() + run.plane_bytes +
                                    run.payload_element * static_cast<int64_t>(DTypeBytes(type)))
                    : from.status();
      if (digest.ok())
        entries[i].source_digest += *digest;
      else
        status = digest.status();
    });
    entries[i].wire_digest = entries[i].source_digest;  // sent as it was computed
  }
  BATON_RETURN_IF_ERROR(status);
  BATON_RETURN_IF_ERROR(BeginSlot(slot, key, turn, entries).status());  // now with the digests
  return SlotBytes(entries);
}

int64_t SegmentRoom(int64_t payload_bytes) {
  return (payload_bytes + 63) / 64 * 64 + static_cast<int64_t>(sizeof(SlotSegment));
}

int64_t SlotRoom(uint64_t slot_bytes) {
  return static_cast<int64_t>(slot_bytes) - static_cast<int64_t>(SlotOverheadBytes(1));
}

}  // namespace baton
