// Where the runs of a transfer plan lie in a rank's pool. Only addresses are computed: the memory may be a device's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "common/dtype.h"
#include "common/kv_digest.h"
#include "kvtransfer/slot_passes.h"
#include "kvtransfer/transfer_plan.h"

namespace baton {

/// One run, or the heads of it that one piece has, as pointers: row t of it is `heads` vectors of `dim` elements.
struct RunMemory {
  int heads = 0;
  int skipped = 0;              ///< heads of the run that come before
  bool copy = false;            ///< in another piece, too
  int mover = 0;                ///< of KvPoolView::movers
  std::byte* first = nullptr;   ///< of (token_in_block, local_head)
  int64_t row_bytes = 0;        ///< from one token to the next
  int64_t vector_bytes = 0;     ///< from one head to the next
  uint64_t* digests = nullptr;  ///< of (unit of token_in_block, local_head)
  int64_t digest_row = 0;       ///< from one unit to the next
  float scale = 1.0f;           ///< KvPlaneMemory::scale
};

using RunPieces = absl::InlinedVector<RunMemory, 1>;

/// A run in the pool's pieces. DataLoss when the table has no block for it.
absl::StatusOr<RunPieces> Locate(const KvRun& run, DType dtype, const KvPoolView& pool, const KvBlockTables& tables);

/// What the digest of a run's vector depends on, but for its bytes.
KvCoordinate At(const KvRun& run, int token, int head);

/// DataLoss: `what`, with the run's coordinates and both digests.
absl::Status Differs(const char* what, const KvRun& run, uint64_t expected, uint64_t found);

/// The plane that a run is of, as that side keeps it.
const KvPlane& PlaneOf(const KvSide& side, const KvRun& run);

}  // namespace baton
