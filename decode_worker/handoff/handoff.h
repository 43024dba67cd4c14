// The decode side of every ticket: what is reserved, what is landing, what may be read. Sans-IO: events and the time
// come in, actions go out; it knows no clock, thread, socket or address.
//
// Promises: blocks become readable only after every segment of the current epoch was verified; a landing slot gets a
// new owner in the same memory only after its writer was fenced, and a timeout is never a fence; everything a ticket
// holds comes back; a writer that is frozen for ever holds up nobody else.
// Others' silence (a router that renews nothing, a writer that does not close, an Open that is not repeated) is judged
// in own time, which Ticks move on: handle what has come before each. Own promises (expiry) are kept by the clock.
// Scheduler thread, as the block pool. Rank 0 keeps the ledger of all ranks' rings.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/expiry_line.h"
#include "common/own_time.h"
#include "common/planted_bug.h"
#include "common/random_word.h"
#include "common/tombstones.h"
#include "decode_worker/handoff/events.h"
#include "decode_worker/handoff/landing_ring.h"
#include "decode_worker/handoff/open_line.h"
#include "decode_worker/handoff/ticket.h"

namespace baton::decode {

/// The block pool as a ticket sees it. Called from inside the core; must not call back.
class TicketBlocks {
 public:
  virtual ~TicketBlocks() = default;
  /// Pins the prompt's cached prefix; how many tokens that are (less than the prompt's).
  virtual int32_t Pin(TicketId ticket, const ReserveOrder& order) = 0;
  /// Blocks for the positions of a ticket's epoch that are not pinned, on every rank, all or nothing.
  virtual bool Bind(TicketId ticket, uint32_t epoch, int32_t tokens) = 0;
  /// Returns them. Not called for what StartSequence handed to the engine; so is Unpin.
  virtual void Release(TicketId ticket, uint32_t epoch) = 0;
  virtual void Unpin(TicketId ticket) = 0;
};

struct HandoffOptions {
  std::vector<int> ring_slots;            ///< [ranks] landing slots of each rank
  int slots_per_lane = 2;                 ///< granted when a lane is bound; a ticket takes at most half of a ring
  int64_t max_reserved_tokens = 1 << 20;  ///< over all tickets that are not attached
  int max_quarantined_slots = 16;  ///< per writing process, and per named tenant of overdue ones; over it only theirs
                                   ///< is refused
  int max_resends = 2;             ///< of one segment; then the lane has failed
  int32_t max_recompute_tokens = 1 << 30;        ///< lost KV longer than this is asked from another prefill worker
  Duration cut_after = std::chrono::seconds(3);  ///< a writer that leaves a finished or dead lane open is cut off
  /// An Attach that waits for KV of which nothing came for so long is answered by computing it.
  Duration progress = std::chrono::seconds(8);
  Duration write_off_after = std::chrono::seconds(5);  ///< a silent writer that has a lane open, where cutting it off
                                                       ///< would be no fence: its slots are lost
  /// How long a ticket of which nobody says anything holds up a worker that drains.
  Duration drain_patience = std::chrono::seconds(4);
  Duration tombstone = std::chrono::seconds(60);
  size_t most_tombstones = 32768;                ///< a ticket cancelled beyond its router's share ends with its lease
  Duration open_turn = std::chrono::seconds(1);  ///< others wait no longer for an Open that is not repeated
  TicketId first_ticket = 1;                     ///< differs at every start of the worker
  /// Simulators and tests have one that is not random.
  std::function<TicketSecret()> new_secret = [] { return TicketSecret{RandomWord(), RandomWord()}; };
};

struct HandoffStats {
  int64_t reserved_tokens = 0;
  int tickets = 0;            ///< not gone
  int granted_slots = 0;      ///< of live lanes
  int quarantined_slots = 0;  ///< of dead lanes that are not fenced
  int free_slots = 0;
  int64_t digest_mismatches = 0;
  int64_t lanes_failed = 0;
  int64_t recomputes = 0;
  int64_t opens_refused = 0;
  int64_t memories_written_off = 0;
};

class Handoff {
 public:
  /// `blocks` must outlive it.
  Handoff(HandoffOptions options, TicketBlocks& blocks);

  /// A ticket, or why there is none. Asked again for the same key, it answers alike.
  ReserveAnswer Reserve(const ReserveOrder& order, TimePoint now);
  /// Ends the ticket of this key; where none is known (false), a Reserve that comes later is refused. `asks_again`: the
  /// router will ask for another ticket, and the request keeps its place in the line.
  bool Cancel(const TicketKey& key, bool asks_again, TimePoint now, std::vector<Action>& out);
  /// The worker wants to be rid of its tickets, until Resume: one that nobody has attached to, renewed or written for
  /// `HandoffOptions::drain_patience` ends, whatever its expiry.
  void Drain() { drains_since_ = Listened(); }
  void Resume() { drains_since_.reset(); }
  /// Applies one event and appends what is to be done, in order.
  void Handle(const Event& event, TimePoint now, std::vector<Action>& out);

  /// Whether `writer` may fill this slot now. Where the receiver writes, this check is the fence: ask it with the
  /// header of every arriving slot, before the first byte is stored.
  bool MayLand(WriterId writer, const LaneKey& lane, SlotTurn slot) const;
  /// Null when unknown or forgotten.
  const Ticket* Find(TicketId ticket) const;
  const LandingRing& ring(int rank) const { return rings_[static_cast<size_t>(rank)]; }
  HandoffStats Stats() const;
  /// Dies when slots, lanes and tickets do not agree.
  void CheckInvariants() const;

 private:
  using Actions = std::vector<Action>;

  // control (handoff.cc)
  void On(const Attach& event);
  void On(const Renewed& event);
  void On(const Finished& event);
  void On(const ShedUnbound& event);
  void On(const Tick& event);
  absl::Status Admit(const ReserveOrder& order, int32_t tokens) const;
  ReserveAnswer AnswerOf(const Ticket& ticket) const;
  void Start(Ticket& ticket, const Attach& attach, bool recompute);
  void Renew(Ticket& ticket) const;
  bool HoldsUpADrain(const Ticket& ticket) const;
  /// The time that others' silence is judged by.
  TimePoint Listened() const { return PlantedBug("renewal after clock") ? now_ : own_.Now(); }
  void Recover(Ticket& ticket, const Attach& attach);
  void RefuseAttach(const Attach& attach, std::string reason, bool prefill_again = false);
  enum class Why : uint8_t { kOver, kSequenceEnded, kAskedAgain };
  void Close(Ticket& ticket, const std::string& reason, Why why = Why::kOver);
  void TickTicket(Ticket& ticket);
  void GiveUpWithoutProgress(Ticket& ticket);

  // opening lanes (handoff_open.cc)
  void On(const Opened& event);
  std::string WhyGone(const Ticket* ticket, const Opened& event) const;
  std::string WhyNoRing(const Opened& event) const;
  void BeginEpoch(Ticket& ticket, uint32_t number);
  bool Bind(Ticket& ticket, const Opened& event);
  bool MustStandAside(const Opened& event);
  bool OverItsShare(const Opened& event);
  bool GrantSlots(const Opened& event, const LaneKey& key);
  bool MayWriteIn(uint32_t memory, const Lane& lane, const LaneKey& key) const;
  std::map<int, int> SlotsNeeded(const Opened& event) const;
  static int LanesTo(const Opened& event, int rank);
  int SlotsPerLane(const Opened& event, int rank) const;
  bool RingsHaveRoom(const Opened& event) const;

  // lanes (handoff_lanes.cc)
  void On(const Filled& event);
  void On(const Done& event);
  void On(const Closed& event);
  void On(const Scattered& event);
  void On(const WriterLost& event);
  void On(const WriterFenced& event);
  void AnswerSlot(const LaneKey& key, Lane& lane, SlotTurn full, SlotTurn grant, bool ok, bool told = false);
  void Advance(Ticket& ticket, const LaneKey& key, const Lane& lane);
  void Supersede(Ticket& ticket, uint32_t number, const std::string& reason, bool at_once = false);
  void FenceLane(const LaneKey& key, Lane& lane);
  void WriteOff(WriterId writer);
  void WriteOffLane(TicketId ticket, uint32_t number, Epoch& epoch, uint32_t lane);
  void DropMemories();
  void LoseWriter(WriterId writer, bool fenced);
  bool NeedsFenceOf(WriterId writer) const;
  void Repair(Ticket& ticket, const std::string& reason);
  void Sweep(Ticket& ticket);
  void Cut(WriterId writer);
  void Send(WriterId writer, ToPrefill message) { out_->push_back(SendToWriter{writer, std::move(message)}); }
  Ticket* FindTicket(TicketId ticket);
  /// The lane and, when what arrives on it still counts, its ticket; nulls.
  Lane* FindLane(const LaneKey& key);
  Lane* FindLiveLane(WriterId writer, const LaneKey& key);
  int Quarantined(const Ticket& ticket, const Epoch& epoch, uint32_t number) const;
  bool Silent(WriterId writer) const;
  bool Overdue(const Epoch& epoch) const { return Listened() - epoch.ended >= options_.cut_after; }
  int QuarantinedOf(const std::string& process);
  int OverdueOfTenant(const std::string& tenant) const;

  const HandoffOptions options_;
  TicketBlocks& blocks_;
  std::vector<LandingRing> rings_;
  std::map<TicketId, Ticket> tickets_;
  std::map<TicketKey, TicketId> by_key_;
  Tombstones<TicketKey> tombstones_{options_.most_tombstones, options_.tombstone};  ///< before they were reserved
  std::set<TicketId> open_;                                                         ///< not gone: what a Tick looks at
  ExpiryLine<TicketId> gone_;
  OpenLine line_;                           ///< tickets whose Open waits for slots or blocks
  std::set<WriterId> cut_;                  ///< asked to cut, not fenced yet
  std::map<WriterId, TimePoint> heard_;     ///< own time of its last message
  std::set<WriterId> silent_;               ///< during a Tick: to be written off
  std::map<uint32_t, TimePoint> replaced_;  ///< memories with slots written off, since when (own time)
  std::set<uint32_t> dropped_;              ///< memories
  std::map<std::string, int> quarantined_;  ///< by process
  bool count_quarantined_ = false;          ///< `quarantined_` is out of date
  TicketId next_ticket_;
  int64_t reserved_tokens_ = 0;
  HandoffStats counters_;
  OwnTime own_;
  std::optional<TimePoint> drains_since_;  ///< in own time
  TimePoint now_{};                        ///< during a call
  Actions* out_ = nullptr;                 ///< during Handle and Cancel
};

}  // namespace baton::decode
