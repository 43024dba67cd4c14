// The data-plane vocabulary of a lane, shared by the sending and the receiving core. Values; any thread.
//
// Every message is answered and may be repeated: Open → Bound | Busy | Gone, SlotFull → SlotFree (ok or send again),
// LaneDone → Verified, Closed → ClosedAck. A lane that is open and has nothing to say repeats Open every second: where
// only the writer's exit is a fence, a silent writer is taken for frozen. Grants of a slot are named by (slot, turn),
// so that a duplicate can neither mint a credit nor place twice.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace baton {

/// Given by the decode worker; never reused, not even over its restarts.
using TicketId = uint64_t;
/// What only those know whom the ticket was given to. Zero: none, of tests.
struct TicketSecret {
  uint64_t high = 0, low = 0;                         ///< random bits
  bool operator==(const TicketSecret& other) const {  // as long for a near miss as for any other
    return ((high ^ other.high) | (low ^ other.low)) == 0;
  }
};
/// One incarnation of a sending rank's endpoint, numbered by the receiver. 0: none.
using WriterId = uint64_t;

/// One lane of one epoch of a ticket. Epochs count from 1.
struct LaneKey {
  TicketId ticket = 0;
  uint32_t epoch = 0;
  uint32_t lane = 0;  ///< index in TransferPlan::lanes()
  auto operator<=>(const LaneKey&) const = default;
};

/// A grant: the right to fill landing slot `slot` of the lane's target rank once.
struct SlotTurn {
  uint32_t slot = 0;
  uint32_t turn = 0;
  auto operator<=>(const SlotTurn&) const = default;
};

// ---- prefill → decode
struct OpenLane {
  LaneKey lane;
  uint64_t plan_digest = 0;
  TicketSecret secret{};
};
/// The slot holds these segments; sent behind the bytes' own fence, so a wrong digest is corruption, never impatience.
struct SlotFull {
  LaneKey lane;
  SlotTurn slot;
  std::vector<uint32_t> segments;
};
/// Every segment was sent and answered ok.
struct LaneDone {
  LaneKey lane;
  uint32_t segments = 0;  ///< of the lane
};
/// Nothing of this lane is in flight any more and nothing will be. Always sent last, whatever the outcome.
struct LaneClosed {
  LaneKey lane;
  bool flushed = true;  ///< false: the flush failed, so this is not a fence
  TicketSecret secret{};
};
using ToDecode = std::variant<OpenLane, SlotFull, LaneDone, LaneClosed>;

// ---- decode → prefill
struct LaneBound {
  LaneKey lane;
  std::vector<SlotTurn> grants;
  bool reads_outbox = false;  ///< payloads may lie in the writer's outbox, which its hello named
};
/// No blocks or no landing slots now: ask again. `elsewhere`: there may never be any at this address of the decode
/// worker, another ticket will name another.
struct LaneBusy {
  LaneKey lane;
  bool elsewhere = false;
};
/// This lane has no future: stop, flush, close.
struct LaneGone {
  LaneKey lane;
  std::string reason;
};
/// Answers SlotFull{slot, turn - 1} and grants the slot anew. Not ok: its segments failed verification, send them
/// again.
struct SlotFree {
  LaneKey lane;
  SlotTurn grant;
  bool ok = true;
};
struct LaneVerified {
  LaneKey lane;
};
struct LaneClosedAck {
  LaneKey lane;
};
using ToPrefill = std::variant<LaneBound, LaneBusy, LaneGone, SlotFree, LaneVerified, LaneClosedAck>;

}  // namespace baton
