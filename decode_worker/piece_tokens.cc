#include "decode_worker/piece_tokens.h"

#include <algorithm>

#include "common/str_cat.h"
#include "kvtransfer/slot_passes.h"
#include "worker/worker_config.h"

namespace baton::decode_worker {
namespace {

constexpr int kMostPieceTokens = 256;

}  // namespace

absl::StatusOr<int> PieceTokens(const KvLayout& layout, int64_t slot_bytes) {
  int64_t widest = 1;
  for (const KvGroup& group : layout.groups) {
    int64_t bytes = 0;
    for (const KvPlane& plane : group.planes) bytes += int64_t{plane.heads} * plane.dim * 4;
    widest = std::max(widest, bytes);
  }
  const auto fit = [widest](int64_t slot) {
    return (SlotRoom(static_cast<uint64_t>(slot)) - SegmentRoom(0) - 64) / widest / kUnitTokens * kUnitTokens;
  };
  if (fit(slot_bytes) < kUnitTokens)
    return absl::InvalidArgumentError(StrCat("--landing-slot-bytes ", slot_bytes, ": ", kUnitTokens,
                                             " tokens of one layer take ", kUnitTokens * widest));
  const int64_t tokens = fit(std::min(slot_bytes, worker::kCpuLandingSlotBytes));
  return static_cast<int>(std::clamp<int64_t>(tokens, kUnitTokens, kMostPieceTokens));
}

}  // namespace baton::decode_worker
