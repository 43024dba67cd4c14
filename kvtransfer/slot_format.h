// The format of a landing slot: header, table of segments, payloads one after the other. The sender's gather pass
// writes a slot; the receiver reads it before it places the payloads, and trusts nothing in it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kvtransfer/lane_messages.h"

namespace baton {

struct SlotSegment {
  uint32_t segment = 0;  ///< of the lane
  uint32_t padding = 0;
  uint64_t bytes = 0;          ///< of the payload
  uint64_t source_digest = 0;  ///< of the KV as it was computed
  uint64_t wire_digest = 0;  ///< of the bytes as they were sent; differs from the source's when the type was converted
};
static_assert(sizeof(SlotSegment) == 32);

/// A slot that was read; views into its bytes.
struct SlotContent {
  struct Part {
    SlotSegment segment;
    std::span<const std::byte> payload;
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
/// Bytes of the slot that are to be sent.
uint64_t SlotBytes(std::span<const SlotSegment> segments);

/// Reads a slot that `lane` is said to have filled at `turn`. DataLoss says what does not fit together.
absl::StatusOr<SlotContent> ReadSlot(std::span<const std::byte> slot, const LaneKey& lane, uint32_t turn);

}  // namespace baton
