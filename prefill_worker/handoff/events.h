// The events and actions of the prefill side of the handoff. Values; no clock, socket or memory address in
// them.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "kvtransfer/lane_messages.h"

namespace baton::prefill {

/// One prefill leg; the key under which Prefill and Cancel are idempotent.
struct JobKey {
  std::string request_id;
  uint32_t attempt = 0;
  uint32_t epoch = 0;
  std::string router{};  ///< whose request it is: another one's of the same id is another leg
  auto operator<=>(const JobKey&) const = default;
};

/// The way from one of our ranks to one rank of one incarnation of a decode worker, numbered by this side. 0: none.
using PeerId = uint64_t;

// ---- from the router
/// Compute the prompt and push what `lanes` say to the peer's ticket.
struct Prefill {
  JobKey key;
  PeerId peer = 0;
  TicketId ticket = 0;
  TicketSecret secret{};
  uint64_t plan_digest = 0;
  std::vector<std::vector<int64_t>> lanes;  ///< [lanes][segments] payload bytes, in the plan's order
  Duration expiry{};                        ///< remaining; of the ticket
  int64_t slot_bytes = 0;                   ///< payload that fits a slot of this peer; 0: as PushOptions says
  std::vector<PeerId> lane_peers{};         ///< [lanes] the peer that each leads to; empty: all to `peer`
};
struct Cancel {
  JobKey key;
};

// ---- from the engine
/// KV of these segments of a lane exists in our blocks.
struct Computed {
  JobKey key;
  uint32_t lane = 0;
  std::vector<uint32_t> segments;
};
/// The forward pass has ended; ok: every segment was Computed and the first tokens exist.
struct ComputeEnded {
  JobKey key;
  absl::Status status;
};

// ---- from the transfer thread
struct FromDecode {
  PeerId peer = 0;
  ToPrefill message;
};
/// A WriteSlot has ended. ok: the bytes are there. DataLoss: our blocks no longer hold what was computed; no write is
/// under way. Other errors: the bytes may still land.
struct Written {
  PeerId peer = 0;
  LaneKey lane;
  SlotTurn slot;
  absl::Status status;
  bool told = false;      ///< whoever wrote it has sent SlotFull
  bool may_wait = false;  ///< as in the WriteSlot
};
/// The lane's writes that were asked for have been gathered or dropped: its source blocks are read no more. Comes after
/// FlushLane, before Flushed.
struct Drained {
  PeerId peer = 0;
  LaneKey lane;
};
/// A FlushLane has ended. ok: nothing of the lane is in flight any more.
struct Flushed {
  PeerId peer = 0;
  LaneKey lane;
  bool ok = true;
};
/// The endpoint to that incarnation failed; every operation on it has ended.
struct PeerLost {
  PeerId peer = 0;
  std::string why{};
};
struct Tick {};

using Event =
    std::variant<Prefill, Cancel, Computed, ComputeEnded, FromDecode, Written, Drained, Flushed, PeerLost, Tick>;

// ---- actions
struct SendToDecode {
  PeerId peer = 0;
  ToDecode message;
};
/// Gather these segments from our blocks, check them against the digests kept beside them, pack them into the slot and
/// make sure that they are there; report Written, or send SlotFull and report that with it.
struct WriteSlot {
  PeerId peer = 0;
  LaneKey lane;
  SlotTurn slot;
  std::vector<uint32_t> segments;
  bool may_wait = false;  ///< the lane has more to send: Written is in time with what is next heard of the peer
};
/// Report Flushed when every write of the lane has ended.
struct FlushLane {
  PeerId peer = 0;
  LaneKey lane;
};
/// The peer has answered nothing for too long: close our endpoint to it, where that does not take away its chance to
/// hear Closed (shared memory, whose only other fence is our exit). Ends in PeerLost.
struct CutPeer {
  PeerId peer = 0;
};
/// The leg's answer, once per job (again, the same, for a repeated Prefill).
/// ok: the first tokens may go to the router. ResourceExhausted with no_room: the prompt was computed, but decode has
/// no room; its KV stays in the cache while there is room.
struct Reply {
  JobKey key;
  absl::Status status;
  bool no_room = false;
};
struct StopCompute {
  JobKey key;
};
/// The job's source blocks are not needed any more.
struct ReleaseSource {
  JobKey key;
};
struct CancelAnswer {
  JobKey key;
  bool known = false;
};

using Action =
    std::variant<SendToDecode, WriteSlot, FlushLane, CutPeer, Reply, StopCompute, ReleaseSource, CancelAnswer>;

}  // namespace baton::prefill
