// The frames of a byte-stream connection. Little-endian, fixed size; a frame's payload follows its header.
#pragma once

#include <cstdint>

#include "kvtransfer/transport.h"

namespace baton::tcp {

enum class FrameKind : uint32_t {
  kHello = 1,  ///< payload: HelloBody
  kMessage,
  kWrite,  ///< payload: the slot's bytes
  kFlush,  ///< answered by kFlushed with the same `sequence`
  kFlushed,
};

inline constexpr uint32_t kFrameMagic = 0x4e544142;  // "BATN"
inline constexpr uint64_t kMaxGreetingBytes =
    256;  ///< the payload of the first frame; until then nothing is kept for a peer

struct FrameHeader {
  uint32_t magic = kFrameMagic;
  FrameKind kind = FrameKind::kMessage;
  uint64_t payload_bytes = 0;
  uint64_t ticket = 0;  ///< kWrite; the flush's number in kFlush and kFlushed
  uint32_t epoch = 0, lane = 0, slot = 0, turn = 0;
  uint64_t check = 0;  ///< XXH3 of the fields above: a frame that lost its place is noticed
};
static_assert(sizeof(FrameHeader) == 48);

struct HelloBody {
  uint64_t slots = 0;
  uint64_t slot_bytes = 0;
  int64_t pid = 0;  ///< for people who look at the wire; nothing is made of it
};
static_assert(sizeof(HelloBody) == 24);

/// Fills `check`.
void Seal(FrameHeader& header);
bool Sealed(const FrameHeader& header);

}  // namespace baton::tcp
