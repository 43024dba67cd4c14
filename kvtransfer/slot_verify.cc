// The receiver's pass over KV bytes: out of a slot into its blocks, verified by digest.
#include <algorithm>
#include <cstring>

#include "absl/container/inlined_vector.h"
#include "common/check.h"
#include "common/float8.h"
#include "common/half.h"
#include "common/kv_digest.h"
#include "common/planted_bug.h"
#include "common/status.h"
#include "kvtransfer/device_passes.h"
#include "kvtransfer/run_memory.h"
#include "kvtransfer/slot_passes.h"

namespace baton {
namespace {

float ToFloat(const std::byte* element, DType type) {
  uint16_t half = 0;
  float value = 0;
  if (type == DType::kF32) {
    std::memcpy(&value, element, 4);
    return value;
  }
  if (type == DType::kF8E4M3) return FloatOfE4m3(static_cast<uint8_t>(*element));
  std::memcpy(&half, element, 2);
  return type == DType::kBF16 ? FloatOfBf16(half) : FloatOfF16(half);
}

void FromFloat(float value, DType type, std::byte* element) {
  if (type == DType::kF32) {
    std::memcpy(element, &value, 4);
  } else if (type == DType::kF8E4M3) {
    *element = static_cast<std::byte>(E4m3OfFloat(value));
  } else {
    const uint16_t half = type == DType::kBF16 ? Bf16OfFloat(value) : F16OfFloat(value);
    std::memcpy(element, &half, 2);
  }
}

/// Another type: what is e4m3 of the two is value / scale.
void Convert(const std::byte* from, DType from_type, std::byte* to, DType to_type, float scale, int elements) {
  const float factor = from_type == DType::kF8E4M3 ? scale : to_type == DType::kF8E4M3 ? 1.0f / scale : 1.0f;
  const size_t from_bytes = DTypeBytes(from_type), to_bytes = DTypeBytes(to_type);
  for (int i = 0; i < elements; ++i, from += from_bytes, to += to_bytes)
    FromFloat(ToFloat(from, from_type) * factor, to_type, to);
}

bool IsFloat(DType type) {
  return type == DType::kF32 || type == DType::kBF16 || type == DType::kF16 || type == DType::kF8E4M3;
}
bool CanConvert(DType from, DType to) { return from == to || (IsFloat(from) && IsFloat(to)); }

/// Copies a vector that a peer may write meanwhile into memory of our own; the digest of the copy.
uint64_t ReadVector(const KvCoordinate& at, const std::byte* from, uint32_t bytes, std::byte* to) {
  const uint64_t key = KvDigestKey(at);
  uint64_t sum = 0;
  for (uint32_t w = 0; w < bytes / 8; ++w) {
    uint64_t word = 0;
    std::memcpy(&word, from + 8 * w, 8);
    std::memcpy(to + 8 * w, &word, 8);
    sum += KvDigestMix(key, w, word);
  }
  return sum;
}

/// Copies or converts a piece of a packed run into its blocks and sets their digests; the digest of the packed bytes.
/// A peer may write the payload at any time: each byte of it is read once, and what was verified is what will be read.
uint64_t ScatterPiece(const KvRun& run, const std::byte* payload, DType from_type, const RunMemory& to, DType to_type) {
  const auto from_vector = static_cast<size_t>(run.dim) * DTypeBytes(from_type);
  const bool same = from_type == to_type;
  absl::InlinedVector<std::byte, 2048> read(same ? 0 : from_vector);
  uint64_t packed = 0;
  for (int t = 0; t < run.tokens; ++t) {
    std::byte* row = to.first + t * to.row_bytes;
    uint64_t* digests = to.digests + t / kUnitTokens * to.digest_row;
    const std::byte* from = payload + static_cast<size_t>(t * run.heads + to.skipped) * from_vector;
    if (same) std::memcpy(row, from, static_cast<size_t>(to.heads) * from_vector);
    for (int h = 0; h < to.heads; ++h, from += from_vector, row += to.vector_bytes) {
      const KvCoordinate at = At(run, t, to.skipped + h);
      const uint64_t digest = same ? KvDigestVector(at, row, static_cast<uint32_t>(from_vector))
                                   : ReadVector(at, from, static_cast<uint32_t>(from_vector), read.data());
      packed += digest;
      if (!same) Convert(PlantedBug("double fetch") ? from : read.data(), from_type, row, to_type, to.scale, run.dim);
      const uint64_t placed = same ? digest : KvDigestVector(at, row, static_cast<uint32_t>(to.vector_bytes));
      digests[h] = t % kUnitTokens == 0 ? placed : digests[h] + placed;
    }
  }
  return packed;
}

/// Heads that an earlier piece has: as they lie there, for the payload may have changed since.
void CopyPiece(const KvRun& run, const RunPieces& pieces, const RunMemory& to) {
  for (int h = 0; h < to.heads; ++h) {
    const int head = to.skipped + h;
    const auto from = std::find_if(pieces.begin(), pieces.end(), [head](const RunMemory& piece) {
      return !piece.copy && head >= piece.skipped && head < piece.skipped + piece.heads;
    });
    BATON_CHECK(from != pieces.end(), "head ", head, " of layer ", run.layer, " is only in copies");
    const int at = head - from->skipped;
    for (int t = 0; t < run.tokens; ++t) {
      std::memcpy(to.first + t * to.row_bytes + h * to.vector_bytes,
                  from->first + t * from->row_bytes + at * from->vector_bytes, static_cast<size_t>(to.vector_bytes));
    }
    for (int unit = 0; unit * kUnitTokens < run.tokens; ++unit)
      to.digests[unit * to.digest_row + h] = from->digests[unit * from->digest_row + at];
  }
}

uint64_t ScatterRun(const KvRun& run, const std::byte* payload, DType from_type, const RunPieces& pieces,
                    DType to_type) {
  uint64_t digest = 0;
  for (const RunMemory& piece : pieces) {
    if (!piece.copy) digest += ScatterPiece(run, payload, from_type, piece, to_type);
  }
  for (const RunMemory& piece : pieces) {
    if (!piece.copy) continue;
    if (PlantedBug("double fetch"))
      ScatterPiece(run, payload, from_type, piece, to_type);
    else
      CopyPiece(run, pieces, piece);
  }
  return digest;
}

absl::Status VerifyAndScatterSegment(const TransferPlan& plan, const LanePlan& lane, const SlotContent::Part& part,
                                     const KvPoolView& pool, const KvBlockTables& tables) {
  const int segment = static_cast<int>(part.segment.segment);
  absl::Status status;
  uint64_t digest = 0;
  KvRun first;
  plan.ForEachRun(lane, segment, TransferEnd::kTarget, [&](const KvRun& run) {
    if (!status.ok()) return;
    if (digest == 0) first = run;
    const DType from_type = PlaneOf(plan.source(), run).dtype, to_type = PlaneOf(plan.target(), run).dtype;
    if (!CanConvert(from_type, to_type)) {
      status = absl::FailedPreconditionError(
          StrCat("KV of type ", DTypeName(from_type), " cannot be placed as ", DTypeName(to_type)));
      return;
    }
    const absl::StatusOr<RunPieces> to = Locate(run, to_type, pool, tables);
    if (!to.ok()) {
      status = to.status();
      return;
    }
    const std::byte* from =
        part.payload.data() + run.plane_bytes + run.payload_element * static_cast<int64_t>(DTypeBytes(from_type));
    digest += ScatterRun(run, from, from_type, *to, to_type);
  });
  if (status.ok() && digest != part.segment.wire_digest)
    return Differs("damaged on the way", first, part.segment.wire_digest, digest);
  return status;
}

}  // namespace

absl::Status VerifyAndScatterSlot(const TransferPlan& plan, const LanePlan& lane, const SlotContent& content,
                                  std::span<const uint32_t> wanted, const KvPoolView& pool, const KvBlockTables& tables,
                                  const PeerOutbox& from, bool pinned) {
  std::vector<SlotContent::Part> parts;
  for (uint32_t segment : wanted) {
    const auto part = std::find_if(content.parts.begin(), content.parts.end(),
                                   [segment](const SlotContent::Part& p) { return p.segment.segment == segment; });
    if (part == content.parts.end() || static_cast<int>(segment) >= lane.segments) {
      return absl::DataLossError(StrCat("segment ", segment, " of ", lane.segments, " is not in the slot"));
    }
    if (const int64_t want = plan.SegmentBytes(lane, static_cast<int>(segment));
        static_cast<int64_t>(part->payload.size()) != want) {
      return absl::DataLossError(StrCat("segment ", segment, " has ", part->payload.size(), " bytes, expected ", want));
    }
    parts.push_back(*part);
  }
  if (parts.empty()) return absl::OkStatus();
  const uint32_t outbox = parts.front().segment.outbox;
  if (std::ranges::any_of(parts, [&](const SlotContent::Part& part) { return part.segment.outbox != outbox; }))
    return absl::DataLossError("a slot whose payloads are in two memories");
  if (outbox != 0) return ScatterFromOutbox(plan, lane, parts, pool, tables, from);
  if (pinned) return ScatterFromPinned(plan, lane, parts, pool, tables);
  if (!pool.movers.empty()) return ScatterToDevice(plan, lane, parts, pool, tables);
  for (const SlotContent::Part& part : parts)
    BATON_RETURN_IF_ERROR(VerifyAndScatterSegment(plan, lane, part, pool, tables));
  return absl::OkStatus();
}

}  // namespace baton
