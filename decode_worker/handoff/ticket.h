// The decode side of one ticket: its state, its epochs and their lanes. Values, changed by Handoff alone.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "decode_worker/handoff/events.h"

namespace baton::decode {

// kReserved ─Open (bind blocks)→ kReceiving ─all lanes done and verified→ kReady ─Attach→ kAttached ─Finished→ kClosing
//   kReceiving ─a lane cannot finish→ kRepair ─Open at a later epoch→ kReceiving, or ─Attach→ recompute here
//   kReceiving, kReady ─Open at a later epoch, no room→ kReserved: only the new epoch can fill it
//   any ─Cancel | expiry | no lease→ kClosing ─all lanes over→ kGone (answers the same key until its deadline)
enum class TicketState : uint8_t { kReserved, kReceiving, kReady, kAttached, kRepair, kClosing, kGone };

enum class LaneState : uint8_t {
  kOpen,        ///< holds slots; its writer may write them
  kDirty,       ///< closed after a failed flush: waits for a fence that we make
  kWrittenOff,  ///< its writer shows no sign of life; slots are back, but lost to the memory that it may still write
  kFenced,      ///< nothing can land any more; slots are back
};

/// The result of our pass over a slot, kept so that a repeated SlotFull gets the same answer.
struct Verdict {
  uint32_t turn = 0;  ///< of the SlotFull
  bool ok = true;
};

/// A lane to one of our ranks, from one writer.
struct Lane {
  LaneState state = LaneState::kOpen;
  int target_rank = 0;
  WriterId writer = 0;  ///< 0: bound, but its writer has not opened it and knows no slot
  uint32_t memory = 0;  ///< that it writes; until it has opened the lane: that of who bound the epoch
  FenceKind fence = FenceKind::kReceiverWrites;
  std::vector<bool> have;                             ///< [segments] placed and verified
  uint32_t missing = 0;                               ///< segments not in `have`
  std::map<uint32_t, int> resends;                    ///< segment -> times its digest failed
  std::map<uint32_t, std::vector<uint32_t>> placing;  ///< slot -> segments our pass is placing
  std::map<uint32_t, Verdict> verdicts;               ///< slot -> the latest
  bool done = false;                                  ///< LaneDone came
  bool complete() const;    ///< every segment is placed and verified, and its writer has said that this is all
  bool lacks_more() const;  ///< segments have not even come
  bool over() const { return state == LaneState::kFenced || state == LaneState::kWrittenOff; }
};

/// One prefill's worth of lanes. Kept until every lane is over.
struct Epoch {
  std::vector<Lane> lanes;
  std::string process;  ///< that writes it
  bool holds_blocks = false;
  bool superseded = false;             ///< nothing of it counts any more
  TimePoint ended = TimePoint::max();  ///< since then its writers have only to close their lanes; own time
  bool Placing() const {
    for (const Lane& lane : lanes) {
      if (!lane.placing.empty()) return true;
    }
    return false;
  }
  bool Over() const {
    for (const Lane& lane : lanes) {
      if (!lane.over()) return false;
    }
    return true;
  }
  /// Slots of it may be written there, or read.
  bool UsesMemory(uint32_t memory) const {
    if (Over() && !Placing()) return false;
    for (const Lane& lane : lanes) {
      if (lane.memory == memory) return true;
    }
    return false;
  }
};

struct Ticket {
  TicketId id = 0;
  TicketSecret secret;
  TicketKey key;
  std::string tenant;
  int32_t tokens = 0;         ///< that are bound: what is not pinned
  int32_t cached_tokens = 0;  ///< pinned
  bool pinned = false;
  bool shed = false;  ///< the pin was given up: no writer may send what is above it, an Attach computes here
  TicketState state = TicketState::kReserved;
  uint32_t epoch = 0;         ///< latest that a writer tried to open; 0: none yet
  uint32_t closed_epoch = 0;  ///< epochs up to here can not be opened (any more)
  std::map<uint32_t, Epoch> epochs;
  std::optional<Attach> parked;  ///< an Attach that came before kReady
  TimePoint progress_at{};       ///< in own time: it was parked, or a slot of the current epoch came or was placed
  TimePoint wanted_at{};         ///< in own time: its router or a writer of its said something of it
  uint64_t attach_gen = 0;
  TimePoint expires{};
  Duration lease{};                          ///< 0: it needs none
  TimePoint lease_until = TimePoint::max();  ///< in own time
  bool lapsed = false;                       ///< closed because no router renewed it
  std::string why_closed;                    ///< kClosing, kGone
};

}  // namespace baton::decode
