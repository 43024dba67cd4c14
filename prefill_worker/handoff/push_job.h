// The prefill side of one ticket's epoch: its lanes and what each still has to send. Values, changed by Push alone.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <vector>

#include "prefill_worker/handoff/events.h"

namespace baton::prefill {

// kOpening ─Bound→ kOpen ─nothing left to send→ kDone ─Verified→ kFlushing ─Flushed→ kClosing ─ClosedAck→ kOver
//   kDone ─a slot failed verification→ kOpen        kOpening | kOpen | kDone ─stopped→ kFlushing       any ─peer lost→
//   kOver
enum class LanePhase : uint8_t { kOpening, kOpen, kDone, kFlushing, kClosing, kOver };

/// A slot we were granted and have used.
struct UsedSlot {
  uint32_t turn = 0;
  std::vector<uint32_t> segments;
  bool written = false;  ///< and SlotFull sent
};

struct PushLane {
  PeerId peer = 0;  ///< the decode worker's rank that it leads to
  LanePhase phase = LanePhase::kOpening;
  std::vector<int64_t> segment_bytes;
  std::vector<bool> computed;         ///< [segments]
  uint32_t unsent = 0;                ///< segments not yet computed, or in `ready`
  std::deque<uint32_t> ready;         ///< computed, waiting for a slot
  std::deque<SlotTurn> credit;        ///< slots we may write, each once
  std::map<uint32_t, UsedSlot> used;  ///< slot -> the segments that we put there; until answered
  bool write_failed = false;          ///< bytes may still land, whatever a flush says
  bool drained = false;               ///< kFlushing: our blocks are read no more
  bool flushed = false;               ///< what Closed said
  TimePoint repeat_at{};              ///< the message that waits for an answer is sent again
};

struct PushJob {
  JobKey key;
  std::set<PeerId> peers;  ///< of its lanes
  TicketId ticket = 0;
  TicketSecret secret{};
  uint64_t plan_digest = 0;
  int64_t slot_bytes = 0;  ///< payload that fits a landing slot
  std::vector<PushLane> lanes;
  TimePoint stop_at{};      ///< the ticket's expiry less a margin: the *writer* stops, nothing is released by it
  TimePoint progress_at{};  ///< in own time: the peer last took something, or there was nothing to take
  TimePoint no_room_at = TimePoint::max();  ///< computed, and still refused at that time
  bool elsewhere = false;                   ///< refused, and there may never be room at this address
  bool computing = true;
  bool computed = false;  ///< to its end
  bool replied = false;
  bool stopped = false;
  bool released = false;
  Reply reply;
  bool Opening() const {
    for (const PushLane& lane : lanes) {
      if (lane.phase == LanePhase::kOpening) return true;
    }
    return false;
  }
  /// The peer has slots to answer, or segments wait for its answers.
  bool Owed() const {
    for (const PushLane& lane : lanes) {
      if (lane.phase == LanePhase::kDone) return true;
      if (lane.phase == LanePhase::kOpen && (!lane.used.empty() || !lane.ready.empty())) return true;
    }
    return false;
  }
  bool Over() const {
    for (const PushLane& lane : lanes) {
      if (lane.phase != LanePhase::kOver) return false;
    }
    return !computing && replied;
  }
};

}  // namespace baton::prefill
