#include "kvtransfer/device_passes.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "common/status.h"
#include "kvtransfer/run_memory.h"
#include "kvtransfer/transport.h"

namespace baton {
namespace {

/// What one device is asked for.
struct MoverWork {
  std::vector<KvMove> moves, copies;   ///< copies: of heads that another rank has, and whose digest counts there
  std::vector<KvMoved> moved, copied;  ///< by segment
  int64_t bytes = 0;                   ///< of its staging memory
};

/// Rows that lie packed in a mover's staging memory, and in a payload with the heads of other pieces between them.
struct Rows {
  size_t mover = 0, part = 0;
  int64_t staged = 0, at = 0, row_bytes = 0, stride = 0;
  int32_t count = 0;
};

/// The same heads in another mover's staging memory: from there, for the payload may have changed since.
struct Copy {
  size_t from = 0, to = 0;
  int64_t staged = 0, at = 0, bytes = 0;
};

struct Work {
  std::vector<MoverWork> movers;
  std::vector<Rows> rows;
  std::vector<Copy> copies;
  std::vector<KvRun> first;  ///< of each segment, for messages
};

KvMove MoveOf(const KvRun& run, const RunMemory& at, DType packed, DType cached) {
  KvMove move{.cache = at.first, .token_stride = at.row_bytes, .digests = at.digests, .digest_stride = at.digest_row};
  move.layer = static_cast<uint32_t>(run.layer);
  move.plane = static_cast<uint32_t>(run.plane);
  move.first_head = static_cast<uint32_t>(run.global_head + at.skipped);
  move.first_token = static_cast<uint32_t>(run.position);
  move.tokens = run.tokens;
  move.heads = at.heads;
  move.dim = run.dim;
  move.scale = at.scale;
  move.packed = packed;
  move.cached = cached;
  return move;
}

/// Between two devices: where each segment's payload begins in outbox or inbox. A run lies there as in the payload, for
/// one mover moves all of it.
using Places = std::vector<int64_t>;

absl::Status CheckConverts(const KvMover& mover, DType packed, DType cached) {
  if (mover.Converts(packed, cached)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      StrCat("KV of type ", DTypeName(packed), " cannot be placed as ", DTypeName(cached)));
}

int64_t PayloadPlace(const KvRun& run, DType packed) {
  return run.plane_bytes + run.payload_element * static_cast<int64_t>(DTypeBytes(packed));
}

absl::Status AddRunInPlace(const KvRun& run, size_t number, DType packed, DType cached, const KvPoolView& pool,
                           const KvBlockTables& tables, const Places& places, Work& work) {
  BATON_ASSIGN_OR_RETURN(const RunPieces pieces, Locate(run, cached, pool, tables));
  BATON_CHECK(pieces.size() == 1 && pieces[0].heads == run.heads, "heads of layer ", run.layer, " in ", pieces.size(),
              " pieces");
  BATON_RETURN_IF_ERROR(CheckConverts(*pool.movers.front(), packed, cached));
  KvMove& move = work.movers.front().moves.emplace_back(MoveOf(run, pieces[0], packed, cached));
  move.segment = static_cast<int32_t>(number);
  move.staged = places[number] + PayloadPlace(run, packed);
  return absl::OkStatus();
}

/// Adds a run of segment `number`, in as many pieces as the pool has it in.
absl::Status AddRun(const KvRun& run, size_t number, DType packed, DType cached, bool gather, const KvPoolView& pool,
                    const KvBlockTables& tables, Work& work) {
  BATON_ASSIGN_OR_RETURN(const RunPieces pieces, Locate(run, cached, pool, tables));
  std::vector<Rows> read;  // pieces that are no copies
  for (const RunMemory& piece : pieces) {
    if (gather && piece.copy) continue;
    const auto mover = static_cast<size_t>(piece.mover);
    BATON_RETURN_IF_ERROR(CheckConverts(*pool.movers[mover], packed, cached));
    MoverWork& own = work.movers[mover];
    KvMove& move = (piece.copy ? own.copies : own.moves).emplace_back(MoveOf(run, piece, packed, cached));
    move.segment = static_cast<int32_t>(number);
    move.staged = own.bytes;
    const int64_t vector_bytes = static_cast<int64_t>(run.dim) * static_cast<int64_t>(DTypeBytes(packed));
    const int64_t payload = PayloadPlace(run, packed);
    const Rows rows{mover,
                    number,
                    own.bytes,
                    payload + piece.skipped * vector_bytes,
                    piece.heads * vector_bytes,
                    run.heads * vector_bytes,
                    run.tokens};
    const int64_t bytes = run.tokens * rows.row_bytes;
    if (piece.copy) {
      const auto same = std::ranges::find_if(
          read, [&](const Rows& other) { return other.at == rows.at && other.row_bytes == rows.row_bytes; });
      BATON_CHECK(same != read.end(), "heads of layer ", run.layer, " are only in copies");
      work.copies.push_back({same->mover, mover, same->staged, own.bytes, bytes});
    } else {
      read.push_back(rows);
      work.rows.push_back(rows);
    }
    own.bytes += bytes;
    if (const size_t room = pool.movers[mover]->staging().size(); own.bytes > static_cast<int64_t>(room))
      return absl::ResourceExhaustedError(
          StrCat("segments of ", own.bytes, " bytes of KV, of which ", room, " can be staged"));
  }
  return absl::OkStatus();
}

/// The work of moving these segments, which the pool has at the plan's `end`. `places`: without staging memory.
absl::StatusOr<Work> WorkOf(const TransferPlan& plan, const LanePlan& lane, std::span<const uint32_t> segments,
                            TransferEnd end, const KvPoolView& pool, const KvBlockTables& tables,
                            const Places* places = nullptr) {
  Work work;
  work.movers.resize(pool.movers.size());
  for (MoverWork& own : work.movers) {
    own.moved.resize(segments.size());
    own.copied.resize(segments.size());
  }
  absl::Status status;
  for (size_t i = 0; i < segments.size(); ++i) {
    plan.ForEachRun(lane, static_cast<int>(segments[i]), end, [&](const KvRun& run) {
      if (!status.ok()) return;
      if (i == work.first.size()) work.first.push_back(run);
      const bool gather = end == TransferEnd::kSource;
      const DType packed = PlaneOf(plan.source(), run).dtype,
                  cached = PlaneOf(gather ? plan.source() : plan.target(), run).dtype;
      status = places != nullptr ? AddRunInPlace(run, i, packed, cached, pool, tables, *places, work)
                                 : AddRun(run, i, packed, cached, gather, pool, tables, work);
    });
  }
  if (!status.ok()) return status;
  return work;
}

/// fn(staged, in the payload, bytes) for every stretch that lies in one piece in both.
template <class Fn>
void ForEachStretch(const Work& work, const KvPoolView& pool, Fn fn) {
  for (const Rows& rows : work.rows) {
    std::byte* staged = pool.movers[rows.mover]->staging().data() + rows.staged;
    const bool whole = rows.row_bytes == rows.stride;
    const int32_t stretches = whole ? 1 : rows.count;
    const int64_t bytes = whole ? rows.count * rows.row_bytes : rows.row_bytes;
    for (int32_t t = 0; t < stretches; ++t)
      fn(staged + t * rows.row_bytes, rows.part, rows.at + t * rows.stride, static_cast<size_t>(bytes));
  }
}

KvMoved SumOf(const Work& work, size_t segment) {
  KvMoved sum;
  for (const MoverWork& own : work.movers) {
    sum.digest += own.moved[segment].digest;
    sum.unkept += own.moved[segment].unkept;
  }
  return sum;
}

absl::StatusOr<Places> PlacesIn(const KvMover& mover, const SlotToFill& to) {
  const KvOutbox outbox = mover.outbox();
  Places places;
  for (const std::span<std::byte>& payload : to.payloads) {
    const auto at = static_cast<size_t>(payload.data() - to.slot.data());
    if (at + payload.size() > outbox.buffer_bytes || to.outbox->buffer >= outbox.buffers) {
      return absl::ResourceExhaustedError(StrCat(at + payload.size(), " bytes of KV for buffer ", to.outbox->buffer,
                                                 " of an outbox with ", outbox.buffers, " of ", outbox.buffer_bytes));
    }
    places.push_back(static_cast<int64_t>(to.outbox->buffer * outbox.buffer_bytes + at));
  }
  return places;
}

/// DataLoss: a segment's bytes are not those that were sent.
absl::Status CheckArrived(const Work& work, std::span<const SlotContent::Part> parts) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const KvMoved moved = SumOf(work, i);
    if (moved.digest != parts[i].segment.wire_digest)
      return Differs("damaged on the way", work.first[i], parts[i].segment.wire_digest, moved.digest);
  }
  return absl::OkStatus();
}

/// Where parts of one memory lie in it, and the stretch that they span.
struct Stretch {
  Places places;
  uint64_t begin, end;
};
Stretch StretchOf(std::span<const SlotContent::Part> parts) {
  Stretch out{{}, parts.front().at, parts.front().at};
  for (const SlotContent::Part& part : parts) {
    out.places.push_back(static_cast<int64_t>(part.at));
    out.begin = std::min(out.begin, part.at);
    out.end = std::max(out.end, part.at + part.segment.bytes);
  }
  return out;
}

std::vector<uint32_t> SegmentsOf(std::span<const SlotContent::Part> parts) {
  std::vector<uint32_t> segments;
  for (const SlotContent::Part& part : parts) segments.push_back(part.segment.segment);
  return segments;
}

}  // namespace

KvMover* LenderOf(const KvPoolView& pool) {
  return pool.movers.size() == 1 && !pool.movers.front()->outbox().card.empty() ? pool.movers.front() : nullptr;
}

absl::StatusOr<PeerOutbox> OpenOutbox(const KvPoolView& pool, std::string_view card, uint64_t buffer_bytes) {
  if (pool.movers.size() != 1) return absl::FailedPreconditionError("the KV of this worker's GPUs is in parts");
  if (card.empty() || buffer_bytes == 0 || buffer_bytes > kMaxLandingSlotBytes)
    return absl::FailedPreconditionError("it lends no memory of a GPU");
  BATON_ASSIGN_OR_RETURN(std::shared_ptr<OpenedOutbox> memory, pool.movers.front()->Open(card));
  return PeerOutbox{std::move(memory), buffer_bytes};
}

absl::StatusOr<std::vector<uint64_t>> GatherFromDevice(const TransferPlan& plan, const LanePlan& lane,
                                                       std::span<const uint32_t> segments, const KvPoolView& pool,
                                                       const KvBlockTables& tables, const SlotToFill& to) {
  Places places;
  if (to.outbox != nullptr) {
    BATON_CHECK(LenderOf(pool) != nullptr, "KV for the outbox of a device that has none");
    BATON_ASSIGN_OR_RETURN(places, PlacesIn(*pool.movers.front(), to));
  }
  BATON_ASSIGN_OR_RETURN(Work work, WorkOf(plan, lane, segments, TransferEnd::kSource, pool, tables,
                                           to.outbox != nullptr ? &places : nullptr));
  const KvPacked packed = to.outbox != nullptr ? KvPacked::kOutbox : KvPacked::kStaging;
  for (size_t m = 0; m < work.movers.size(); ++m)
    BATON_RETURN_IF_ERROR(pool.movers[m]->Gather(work.movers[m].moves, work.movers[m].moved, packed));
  std::vector<uint64_t> digests;
  for (size_t i = 0; i < segments.size(); ++i) {
    const KvMoved moved = SumOf(work, i);
    if (moved.unkept > 0) {
      const KvRun& run = work.first[i];
      return absl::DataLossError(StrCat("a source block no longer holds what was computed at layer ", run.layer,
                                        " from position ", run.position, ": ", moved.unkept,
                                        " units differ from their digests"));
    }
    digests.push_back(moved.digest);
  }
  ForEachStretch(work, pool, [&](const std::byte* staged, size_t part, int64_t at, size_t bytes) {
    std::memcpy(to.payloads[part].data() + at, staged, bytes);
  });
  return digests;
}

absl::Status ScatterToDevice(const TransferPlan& plan, const LanePlan& lane, std::span<const SlotContent::Part> parts,
                             const KvPoolView& pool, const KvBlockTables& tables) {
  BATON_ASSIGN_OR_RETURN(Work work, WorkOf(plan, lane, SegmentsOf(parts), TransferEnd::kTarget, pool, tables));
  ForEachStretch(work, pool, [&](std::byte* staged, size_t part, int64_t at, size_t bytes) {
    std::memcpy(staged, parts[part].payload.data() + at, bytes);
  });
  for (const Copy& copy : work.copies) {
    std::memcpy(pool.movers[copy.to]->staging().data() + copy.at,
                pool.movers[copy.from]->staging().data() + copy.staged, static_cast<size_t>(copy.bytes));
  }
  for (size_t m = 0; m < work.movers.size(); ++m) {
    MoverWork& own = work.movers[m];
    BATON_RETURN_IF_ERROR(pool.movers[m]->Scatter(own.moves, own.moved, KvPacked::kStaging));
    BATON_RETURN_IF_ERROR(pool.movers[m]->Scatter(own.copies, own.copied, KvPacked::kStaging));
  }
  return CheckArrived(work, parts);
}

absl::StatusOr<std::unique_ptr<PinnedMemory>> PinLanding(const KvPoolView& pool, std::span<std::byte> memory) {
  if (pool.movers.size() != 1) return absl::FailedPreconditionError("the KV of this worker's GPUs is in parts");
  return pool.movers.front()->Pin(memory);
}

absl::Status ScatterFromPinned(const TransferPlan& plan, const LanePlan& lane, std::span<const SlotContent::Part> parts,
                               const KvPoolView& pool, const KvBlockTables& tables) {
  const Stretch all = StretchOf(parts);
  KvMover& mover = *pool.movers.front();
  BATON_ASSIGN_OR_RETURN(Work work,
                         WorkOf(plan, lane, SegmentsOf(parts), TransferEnd::kTarget, pool, tables, &all.places));
  const std::byte* const slot = parts.front().payload.data() - parts.front().at;
  mover.FetchPinned({slot + all.begin, slot + all.end}, static_cast<int64_t>(all.begin));
  MoverWork& own = work.movers.front();
  BATON_RETURN_IF_ERROR(mover.Scatter(own.moves, own.moved, KvPacked::kInbox));
  return CheckArrived(work, parts);
}

absl::Status ScatterFromOutbox(const TransferPlan& plan, const LanePlan& lane, std::span<const SlotContent::Part> parts,
                               const KvPoolView& pool, const KvBlockTables& tables, const PeerOutbox& from) {
  if ((from.memory == nullptr && !from.in_inbox) || pool.movers.size() != 1)
    return absl::DataLossError("a slot whose payloads are in memory that is not open here");
  const Stretch all = StretchOf(parts);
  const uint64_t buffer = parts.front().segment.outbox - 1;
  if (all.end > from.buffer_bytes)
    return absl::DataLossError(StrCat("a slot of ", all.end, " bytes in buffers of ", from.buffer_bytes));
  KvMover& mover = *pool.movers.front();
  if (const size_t inbox = mover.rooms().inbox.size(); from.in_inbox && all.end > inbox)
    return absl::DataLossError(StrCat("a slot of ", all.end, " bytes in an inbox of ", inbox));
  BATON_ASSIGN_OR_RETURN(Work work,
                         WorkOf(plan, lane, SegmentsOf(parts), TransferEnd::kTarget, pool, tables, &all.places));
  if (!from.in_inbox) {
    BATON_RETURN_IF_ERROR(mover.Fetch(*from.memory, static_cast<int64_t>(buffer * from.buffer_bytes + all.begin),
                                      static_cast<int64_t>(all.begin), static_cast<int64_t>(all.end - all.begin)));
  }
  MoverWork& own = work.movers.front();
  BATON_RETURN_IF_ERROR(mover.Scatter(own.moves, own.moved, KvPacked::kInbox));
  return CheckArrived(work, parts);
}

}  // namespace baton
