#include "kvtransfer/device_passes.h"

#include <cstring>

#include "common/check.h"
#include "common/status.h"
#include "kvtransfer/run_memory.h"

namespace baton {
namespace {

constexpr int64_t kAligned = 64;

/// The moves of some segments, one after the other in the staging memory.
struct Moves {
  std::vector<KvMove> moves;
  std::vector<KvRun> first;     ///< of each segment, for messages
  std::vector<int64_t> staged;  ///< where each segment is
  std::vector<KvMoved> moved;   ///< what became of each
  int64_t bytes = 0;
};

KvMove MoveOf(const KvRun& run, const RunMemory& at, DType packed, DType cached) {
  KvMove move{.cache = at.first, .token_stride = at.row_bytes, .digests = at.digests, .digest_stride = at.digest_row};
  move.layer = static_cast<uint32_t>(run.layer);
  move.plane = static_cast<uint32_t>(run.plane);
  move.first_head = static_cast<uint32_t>(run.global_head);
  move.first_token = static_cast<uint32_t>(run.position);
  move.tokens = run.tokens;
  move.heads = run.heads;
  move.dim = run.dim;
  move.packed = packed;
  move.cached = cached;
  return move;
}

/// Adds a segment, which the pool has at the plan's `end`.
absl::Status AddSegment(const TransferPlan& plan, const LanePlan& lane, int segment, TransferEnd end,
                        const KvPoolView& pool, const KvBlockTables& tables, Moves& all) {
  absl::Status status;
  const auto number = static_cast<int32_t>(all.staged.size());
  all.staged.push_back(all.bytes);
  all.moved.emplace_back();
  plan.ForEachRun(lane, segment, end, [&](const KvRun& run) {
    if (!status.ok()) return;
    if (static_cast<size_t>(number) == all.first.size()) all.first.push_back(run);
    const DType packed = PlaneOf(plan.source(), run).dtype,
                cached = PlaneOf(end == TransferEnd::kSource ? plan.source() : plan.target(), run).dtype;
    if (!pool.mover->Converts(packed, cached)) {
      status = absl::FailedPreconditionError(
          StrCat("KV of type ", DTypeName(packed), " cannot be placed as ", DTypeName(cached)));
      return;
    }
    const absl::StatusOr<RunPieces> pieces = Locate(run, cached, pool, tables);
    if (!pieces.ok()) {
      status = pieces.status();
      return;
    }
    BATON_CHECK(pieces->size() == 1 && pieces->front().heads == run.heads, "a device's planes lie in ", pieces->size(),
                " pieces");
    KvMove& move = all.moves.emplace_back(MoveOf(run, pieces->front(), packed, cached));
    move.segment = number;
    move.staged = all.staged.back() + run.plane_bytes + run.payload_element * static_cast<int64_t>(DTypeBytes(packed));
  });
  all.bytes += (plan.SegmentBytes(lane, segment) + kAligned - 1) / kAligned * kAligned;
  if (status.ok() && all.bytes > static_cast<int64_t>(pool.mover->staging().size())) {
    return absl::ResourceExhaustedError(
        StrCat("segments of ", all.bytes, " bytes of KV, of which ", pool.mover->staging().size(), " can be staged"));
  }
  return status;
}

}  // namespace

absl::StatusOr<std::vector<uint64_t>> GatherFromDevice(const TransferPlan& plan, const LanePlan& lane,
                                                       std::span<const uint32_t> segments, const KvPoolView& pool,
                                                       const KvBlockTables& tables,
                                                       std::span<const std::span<std::byte>> payloads) {
  Moves all;
  for (const uint32_t segment : segments)
    BATON_RETURN_IF_ERROR(AddSegment(plan, lane, static_cast<int>(segment), TransferEnd::kSource, pool, tables, all));
  BATON_RETURN_IF_ERROR(pool.mover->Gather(all.moves, all.moved));
  std::vector<uint64_t> digests;
  for (size_t i = 0; i < segments.size(); ++i) {
    if (all.moved[i].unkept > 0) {
      const KvRun& run = all.first[i];
      return absl::DataLossError(StrCat("a source block no longer holds what was computed at layer ", run.layer,
                                        " from position ", run.position, ": ", all.moved[i].unkept,
                                        " units differ from their digests"));
    }
    std::memcpy(payloads[i].data(), pool.mover->staging().data() + all.staged[i], payloads[i].size());
    digests.push_back(all.moved[i].digest);
  }
  return digests;
}

absl::Status ScatterToDevice(const TransferPlan& plan, const LanePlan& lane, std::span<const SlotContent::Part> parts,
                             const KvPoolView& pool, const KvBlockTables& tables) {
  Moves all;
  for (const SlotContent::Part& part : parts)
    BATON_RETURN_IF_ERROR(
        AddSegment(plan, lane, static_cast<int>(part.segment.segment), TransferEnd::kTarget, pool, tables, all));
  for (size_t i = 0; i < parts.size(); ++i)
    std::memcpy(pool.mover->staging().data() + all.staged[i], parts[i].payload.data(), parts[i].payload.size());
  BATON_RETURN_IF_ERROR(pool.mover->Scatter(all.moves, all.moved));
  for (size_t i = 0; i < parts.size(); ++i) {
    if (all.moved[i].digest != parts[i].segment.wire_digest)
      return Differs("damaged on the way", all.first[i], parts[i].segment.wire_digest, all.moved[i].digest);
  }
  return absl::OkStatus();
}

}  // namespace baton
