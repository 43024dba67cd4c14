// The events and actions of the handoff core. Values; no clock, socket or memory address in them.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "kvtransfer/fence_kind.h"
#include "kvtransfer/lane_messages.h"

namespace baton::decode {

/// Attempt of a request; the key under which Reserve and Cancel are idempotent.
struct TicketKey {
  std::string request_id;
  uint32_t attempt = 0;
  std::string router{};  ///< whose request it is: another one's of the same id is another ticket
  auto operator<=>(const TicketKey&) const = default;
};

// ---- from the router
struct ReserveOrder {
  TicketKey key;
  std::string salt;             ///< of the prefix cache; tickets of one salt count as one tenant's
  std::vector<int32_t> prompt;  ///< whose cached prefix is pinned; empty: none
  int32_t prompt_len = 0;
  Duration expiry{};    ///< remaining
  std::string session;  ///< of the router
  Duration lease{};     ///< ended when no Renewed came for so long, attached or not; 0: the router renews nothing
};
/// ok: the ticket stands. ResourceExhausted: no room, try elsewhere or later. Cancelled: its Cancel came first.
struct ReserveAnswer {
  TicketKey key;
  absl::Status status;
  TicketId ticket = 0;
  TicketSecret secret{};
  int32_t cached_tokens = 0;  ///< pinned here; nothing below travels
  Duration expiry{};          ///< remaining
};
struct Attach {
  TicketId ticket = 0;
  uint32_t epoch = 0;       ///< whose Prefill answered; 0: no prefill leg, everything is computed here
  uint64_t attach_gen = 0;  ///< > 0, numbered by the router over all attempts
  uint64_t position = 0;    ///< of the next token
};
/// The router still waits for the ticket, or still listens to its sequence.
struct Renewed {
  TicketKey key;
  uint64_t attach_gen = 0;  ///< of its latest Attach; one that a later Attach has fenced renews nothing
};

// ---- from the data plane
/// One lane of the plan, as this side derived it.
struct LaneShape {
  int target_rank = 0;
  uint32_t segments = 0;
};
struct Opened {
  WriterId writer = 0;
  FenceKind fence = FenceKind::kReceiverWrites;
  OpenLane message;
  uint64_t plan_digest = 0;      ///< of the plan we derived
  std::vector<LaneShape> lanes;  ///< of that plan
  std::string process;           ///< incarnation of the prefill worker; it may have several connections
  uint32_t memory = 0;           ///< landing memory that this writer writes
};
struct Filled {
  WriterId writer = 0;
  SlotFull message;
};
struct Done {
  WriterId writer = 0;
  LaneDone message;
};
struct Closed {
  WriterId writer = 0;
  LaneClosed message;
};
/// Our placing pass over a slot has ended.
struct Scattered {
  LaneKey lane;
  SlotTurn slot;
  bool digest_ok = true;
  bool told = false;      ///< whoever placed it has sent SlotFree
  bool may_wait = false;  ///< as in the ScatterSlot
};
/// The connection broke. No fence by itself, unless the receiver writes.
struct WriterLost {
  WriterId writer = 0;
  bool connected = false;  ///< it is only silent, and may be heard again
};
/// That incarnation can write no more: our forced close completed, or its process has exited.
struct WriterFenced {
  WriterId writer = 0;
};

// ---- from the engine and the timer
struct Finished {
  TicketId ticket = 0;
};
/// Memory is short: give up the pins of the youngest reservation that is not bound yet.
struct ShedUnbound {};
struct Tick {};

using Event = std::variant<Attach, Renewed, Opened, Filled, Done, Closed, Scattered, WriterLost, WriterFenced, Finished,
                           ShedUnbound, Tick>;

// ---- actions
/// A reservation's pin given up before it was bound.
struct ReservationShed {
  TicketId ticket = 0;
};
struct SendToWriter {
  WriterId writer = 0;
  ToPrefill message;
};
/// Verify, convert and scatter `wanted` of this slot into the blocks of (ticket, epoch), nothing else of it: the other
/// segments are in place already and may be in use. Report Scattered; where the digest is right, SlotFree may be sent
/// before and reported with it: the slot is granted to the same lane anew.
struct ScatterSlot {
  LaneKey lane;
  SlotTurn slot;
  int target_rank = 0;
  std::vector<uint32_t> segments;  ///< in the slot, in payload order
  std::vector<uint32_t> wanted;
  bool may_wait = false;  ///< the lane lacks more: Scattered is in time with what its writer says next
};
/// Hand the pinned prefix and the blocks of (ticket, epoch) to a new sequence. recompute: there are no blocks, prefill
/// what is not pinned here.
struct StartSequence {
  TicketId ticket = 0;
  uint32_t epoch = 0;
  uint64_t attach_gen = 0;
  uint64_t position = 0;
  bool recompute = false;
};
/// A later Attach took the sequence over: its entries carry this generation from `position` on.
struct ContinueSequence {
  TicketId ticket = 0;
  uint64_t attach_gen = 0;
  uint64_t position = 0;
};
struct StopSequence {
  TicketId ticket = 0;
};
/// prefill_again: the ticket stands, but its KV was lost and is too long to recompute here: send a later epoch.
struct AttachRefused {
  TicketId ticket = 0;
  uint64_t attach_gen = 0;
  bool prefill_again = false;
  std::string reason;
};
/// Close our endpoint to this incarnation and report WriterFenced when that has completed.
struct CutWriter {
  WriterId writer = 0;
};
/// It was lost and holds nothing, nor may write any slot that it held: its WriterFenced would change nothing.
struct ReleaseWriter {
  WriterId writer = 0;
};
/// Slots of this landing memory are written off: later writers get another memory.
struct ReplaceMemory {
  uint32_t memory = 0;
};
/// Nobody can write this replaced memory any more, and no lane needs it.
struct DropMemory {
  uint32_t memory = 0;
};

using Action = std::variant<ReservationShed, SendToWriter, ScatterSlot, StartSequence, ContinueSequence, StopSequence,
                            AttachRefused, CutWriter, ReleaseWriter, ReplaceMemory, DropMemory>;

}  // namespace baton::decode
