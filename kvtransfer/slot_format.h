// The format of a landing slot: header, table of segments, payloads one after the other. The sender's gather pass
// writes a slot; the receiver reads it before it places the payloads, and trusts nothing in it. Between two GPUs of one
// machine payloads may lie in the sender's outbox instead (common/kv_mover.h): at the same places of one of its
// buffers, and the slot ends with its table.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kvtransfer/lane_messages.h"

namespace baton {

struct SlotSegment {
  uint32_t segment = 0;        ///< of the lane
  uint32_t outbox = 0;         ///< 0: the payload is in the slot; n: in buffer n - 1 of the sender's outbox
  uint64_t bytes = 0;          ///< of the payload
  uint64_t source_digest = 0;  ///< of the KV as it was computed
  uint64_t wire_digest = 0;  ///< of the bytes as they were sent; differs from the source's when the type was converted
};
static_assert(sizeof(SlotSegment) == 32);

/// A slot that was read; views into its bytes.
struct SlotContent {
  struct Part {
    SlotSegment segment;
    std::span<const std::byte> payload;  ///< not there where it is in an outbox
    uint64_t at = 0;                     ///< from the start of the slot, or of the buffer
  };
  LaneKey lane;
  uint32_t turn = 0;
  std::vector<Part> parts;
};

/// Bytes of header and table before the first payload; payloads begin at multiples of 64.
uint64_t SlotOverheadBytes(size_t segments);

/// Writes header and table at the start of `slot`; returns where each payload belongs. InvalidArgument with both
/// numbers when they do not fit.
absl::StatusOr<std::vector<std::span<std::byte>>> BeginSlot(std::span<std::byte> slot, const LaneKey& lane,
                                                            uint32_t turn, std::span<const SlotSegment> segments);
/// Bytes of the slot that are to be sent, where no payload is in an outbox.
uint64_t SlotBytes(std::span<const SlotSegment> segments);

/// Reads a slot that `lane` is said to have filled at `turn`. DataLoss says what does not fit together.
absl::StatusOr<SlotContent> ReadSlot(std::span<const std::byte> slot, const LaneKey& lane, uint32_t turn);

}  // namespace baton
