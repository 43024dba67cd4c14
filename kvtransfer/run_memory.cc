#include "kvtransfer/run_memory.h"

#include <algorithm>

#include "common/check.h"
#include "common/status.h"

namespace baton {
namespace {

RunMemory PieceOf(const KvRun& run, DType dtype, const KvPlaneMemory& plane, int32_t block, IntRange has) {
  const IntRange heads = Intersect({run.local_head, run.local_head + run.heads}, has);
  RunMemory at{
      .heads = heads.size(), .skipped = heads.begin - run.local_head, .copy = plane.copy, .mover = plane.mover};
  at.vector_bytes = static_cast<int64_t>(run.dim) * static_cast<int64_t>(DTypeBytes(dtype));
  at.row_bytes = at.vector_bytes * has.size();
  at.first = plane.base + block * plane.block_stride_bytes + run.token_in_block * at.row_bytes +
             (heads.begin - has.begin) * at.vector_bytes;
  at.scale = plane.scale;
  at.digest_row = has.size();
  at.digests = plane.digests + block * plane.digest_block_stride + run.token_in_block / kUnitTokens * at.digest_row +
               heads.begin - has.begin;
  return at;
}

}  // namespace

absl::StatusOr<RunPieces> Locate(const KvRun& run, DType dtype, const KvPoolView& pool, const KvBlockTables& tables) {
  const KvPoolView::Group& group = pool.groups[static_cast<size_t>(run.group)];
  const auto layer = std::lower_bound(group.layers.begin(), group.layers.end(), run.layer);
  BATON_CHECK(layer != group.layers.end() && *layer == run.layer, "layer ", run.layer, " is not of this rank");
  const std::vector<int32_t>& table = tables[static_cast<size_t>(run.group)];
  const auto index = static_cast<size_t>(run.table_block);
  if (index >= table.size() || table[index] < 0 || table[index] >= group.blocks) {
    return absl::DataLossError(
        StrCat("no block for position ", run.position, " of group ", run.group, ": the table has ", table.size()));
  }
  const KvPlaneMemory& plane =
      group.planes[static_cast<size_t>(layer - group.layers.begin())][static_cast<size_t>(run.plane)];
  RunPieces pieces;
  const auto add = [&](const KvPlaneMemory& piece) {
    const IntRange has = piece.heads.size() > 0 ? piece.heads : IntRange{0, run.local_heads};
    const RunMemory at = PieceOf(run, dtype, piece, table[index], has);
    if (at.heads > 0) pieces.push_back(at);
  };
  add(plane);
  for (const KvPlaneMemory& piece : plane.others) add(piece);
  return pieces;
}

KvCoordinate At(const KvRun& run, int token, int head) {
  return {static_cast<uint32_t>(run.layer), static_cast<uint32_t>(run.plane),
          static_cast<uint32_t>(run.global_head + head), static_cast<uint32_t>(run.position + token)};
}

absl::Status Differs(const char* what, const KvRun& run, uint64_t expected, uint64_t found) {
  return absl::DataLossError(StrCat(what, " at layer ", run.layer, " plane ", run.plane, " position ", run.position,
                                    ": digest ", absl::Hex(expected), " expected, ", absl::Hex(found), " found"));
}

const KvPlane& PlaneOf(const KvSide& side, const KvRun& run) {
  return side.layout.groups[static_cast<size_t>(run.group)].planes[static_cast<size_t>(run.plane)];
}

}  // namespace baton
