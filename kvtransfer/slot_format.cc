#include "kvtransfer/slot_format.h"

#include <xxhash.h>

#include <cstring>

#include "common/status.h"

namespace baton {
namespace {

constexpr uint64_t kMagic = 0x31544f4c534e5442;  // "BTNSLOT1"
constexpr uint64_t kAlign = 64;

struct Header {
  uint64_t magic = kMagic;
  uint64_t ticket = 0;
  uint32_t epoch = 0, lane = 0, turn = 0, segments = 0;
  uint64_t table_check = 0;  ///< XXH3 of the fields above and the table
};
static_assert(sizeof(Header) == 40);

constexpr uint64_t Aligned(uint64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

uint64_t CheckOf(Header header, std::span<const SlotSegment> segments) {
  header.table_check = XXH3_64bits(segments.data(), segments.size_bytes());
  return XXH3_64bits(&header, sizeof(header));
}

}  // namespace

uint64_t SlotOverheadBytes(size_t segments) { return Aligned(sizeof(Header) + segments * sizeof(SlotSegment)); }

uint64_t SlotBytes(std::span<const SlotSegment> segments) {
  uint64_t bytes = SlotOverheadBytes(segments.size());
  for (const SlotSegment& segment : segments) bytes += Aligned(segment.bytes);
  return bytes;
}

absl::StatusOr<std::vector<std::span<std::byte>>> BeginSlot(std::span<std::byte> slot, const LaneKey& lane,
                                                            uint32_t turn, std::span<const SlotSegment> segments) {
  if (const uint64_t need = SlotBytes(segments); need > slot.size()) {
    return absl::InvalidArgumentError(
        StrCat(segments.size(), " segments need ", need, " bytes, a slot has ", slot.size()));
  }
  Header header{kMagic, lane.ticket, lane.epoch, lane.lane, turn, static_cast<uint32_t>(segments.size())};
  header.table_check = CheckOf(header, segments);
  std::memcpy(slot.data(), &header, sizeof(header));
  if (!segments.empty()) std::memcpy(slot.data() + sizeof(header), segments.data(), segments.size_bytes());
  std::vector<std::span<std::byte>> payloads;
  uint64_t at = SlotOverheadBytes(segments.size());
  for (const SlotSegment& segment : segments) {
    payloads.push_back(slot.subspan(at, segment.bytes));
    at += Aligned(segment.bytes);
  }
  return payloads;
}

absl::StatusOr<SlotContent> ReadSlot(std::span<const std::byte> slot, const LaneKey& lane, uint32_t turn) {
  Header header;
  if (slot.size() < sizeof(header)) return absl::DataLossError(StrCat("a slot of ", slot.size(), " bytes"));
  std::memcpy(&header, slot.data(), sizeof(header));
  if (header.magic != kMagic) return absl::DataLossError("the slot holds no header");
  const uint64_t table_bytes = uint64_t{header.segments} * sizeof(SlotSegment);
  if (table_bytes > slot.size() - sizeof(header))
    return absl::DataLossError(StrCat("a table of ", header.segments, " segments"));
  std::vector<SlotSegment> table(header.segments);
  if (!table.empty()) std::memcpy(table.data(), slot.data() + sizeof(header), table_bytes);
  if (CheckOf(header, table) != header.table_check) return absl::DataLossError("the slot's table is damaged");
  SlotContent content{{header.ticket, header.epoch, header.lane}, header.turn, {}};
  if (content.lane != lane || content.turn != turn) {
    return absl::DataLossError(StrCat("the slot was filled for ticket ", header.ticket, " epoch ", header.epoch,
                                      " lane ", header.lane, " turn ", header.turn, ", expected ", lane.ticket, " ",
                                      lane.epoch, " ", lane.lane, " ", turn));
  }
  uint64_t at = SlotOverheadBytes(table.size());
  for (const SlotSegment& segment : table) {
    if (at > slot.size() || segment.bytes > slot.size() - at) {
      return absl::DataLossError(StrCat("segment ", segment.segment, " of ", segment.bytes, " bytes leaves the slot"));
    }
    content.parts.push_back({segment, slot.subspan(at, segment.bytes), at});
    at += Aligned(segment.bytes);
  }
  return content;
}

}  // namespace baton
