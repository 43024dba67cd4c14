// Messages on bound lanes, fences, and the way back of slots and blocks that a ticket held.
#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/planted_bug.h"
#include "common/str_cat.h"
#include "decode_worker/handoff/handoff.h"

namespace baton::decode {

using Phase = LandingRing::Phase;

bool Lane::complete() const { return done && (missing == 0 || PlantedBug("ignore bitmap")); }

bool Lane::lacks_more() const {
  size_t placed_soon = 0;
  for (const auto& [slot, segments] : placing) placed_soon += segments.size();
  return !done && missing > placed_soon;
}

void Handoff::On(const Filled& event) {
  heard_[event.writer] = Listened();
  const SlotFull& message = event.message;
  const LaneKey& key = message.lane;
  Lane* lane = FindLiveLane(event.writer, key);
  if (lane == nullptr) return Send(event.writer, LaneGone{key, "the lane is not open"});
  LandingRing& ring = rings_[static_cast<size_t>(lane->target_rank)];
  Ticket& ticket = *FindTicket(key.ticket);
  if (ring.Holds(key, message.slot, Phase::kPlacing)) return;  // answered when our pass has ended
  if (!ring.Holds(key, message.slot, Phase::kGranted)) {       // a repetition
    if (PlantedBug("count messages, not bitmap") && lane->missing > 0) --lane->missing;
    const SlotTurn grant = ring.CurrentGrant(key, message.slot.slot);
    const auto verdict = lane->verdicts.find(message.slot.slot);
    if (verdict == lane->verdicts.end() || verdict->second.turn != message.slot.turn ||
        grant.turn != message.slot.turn + 1)
      return;
    return Send(event.writer, SlotFree{key, grant, verdict->second.ok});
  }
  std::vector<uint32_t> wanted;
  for (uint32_t segment : message.segments) {
    if (segment >= lane->have.size()) {
      return Repair(ticket, StrCat("segment ", segment, " of ", lane->have.size(), " was sent"));
    }
    const bool placing = std::any_of(lane->placing.begin(), lane->placing.end(), [segment](const auto& slot) {
      return std::find(slot.second.begin(), slot.second.end(), segment) != slot.second.end();
    });
    if (!lane->have[segment] && !placing) wanted.push_back(segment);
  }
  ring.StartPlacing(message.slot);
  ticket.progress_at = ticket.wanted_at = Listened();
  if (wanted.empty()) return AnswerSlot(key, *lane, message.slot, ring.EndPlacing(message.slot), true);
  if (PlantedBug("ack early")) {
    for (uint32_t segment : wanted) {
      lane->have[segment] = true;
      --lane->missing;
    }
    Advance(ticket, key, *lane);
  }
  lane->placing[message.slot.slot] = wanted;
  out_->push_back(ScatterSlot{key, message.slot, lane->target_rank, message.segments, std::move(wanted),
                              /*may_wait=*/lane->lacks_more()});
}

void Handoff::On(const Scattered& event) {
  const LaneKey& key = event.lane;
  Lane* lane = FindLane(key);
  BATON_CHECK(lane != nullptr && lane->placing.contains(event.slot.slot), "no pass over slot ", event.slot.slot,
              " of lane ", key.lane, " of ticket ", key.ticket);
  Ticket& ticket = *FindTicket(key.ticket);
  LandingRing& ring = rings_[static_cast<size_t>(lane->target_rank)];
  const SlotTurn grant = ring.EndPlacing(event.slot);
  const std::vector<uint32_t> segments = std::move(lane->placing.extract(event.slot.slot).mapped());
  ticket.progress_at = ticket.wanted_at = Listened();
  if (!event.digest_ok) ++counters_.digest_mismatches;
  if (ticket.epochs.at(key.epoch).superseded) count_quarantined_ = true;  // during the pass its slot was in none
  if (lane->state == LaneState::kFenced) ring.ReleaseGranted(key);
  if (lane->state == LaneState::kWrittenOff) ring.WriteOffGranted(key, lane->writer, lane->memory);
  if (FindLiveLane(lane->writer, key) == nullptr) return Sweep(ticket);
  if (event.digest_ok || PlantedBug("no digest")) {
    for (uint32_t segment : segments) {
      if (!lane->have[segment] && lane->missing > 0) --lane->missing;
      lane->have[segment] = true;
    }
    AnswerSlot(key, *lane, event.slot, grant, true, event.told);
    return Advance(ticket, key, *lane);
  }
  for (uint32_t segment : segments) {
    if (++lane->resends[segment] > options_.max_resends) {
      return Repair(ticket, StrCat("segment ", segment, " failed verification ", lane->resends[segment], " times"));
    }
  }
  AnswerSlot(key, *lane, event.slot, grant, false);
}

void Handoff::AnswerSlot(const LaneKey& key, Lane& lane, SlotTurn full, SlotTurn grant, bool ok, bool told) {
  lane.verdicts[full.slot] = {full.turn, ok};
  if (!told) Send(lane.writer, SlotFree{key, grant, ok});
}

void Handoff::On(const Done& event) {
  heard_[event.writer] = Listened();
  const LaneKey& key = event.message.lane;
  Lane* lane = FindLiveLane(event.writer, key);
  if (lane == nullptr) return Send(event.writer, LaneGone{key, "the lane is not open"});
  if (event.message.segments != lane->have.size()) {
    return Repair(*FindTicket(key.ticket),
                  StrCat("a lane of ", event.message.segments, " segments, here ", lane->have.size()));
  }
  lane->done = true;
  FindTicket(key.ticket)->wanted_at = Listened();
  Advance(*FindTicket(key.ticket), key, *lane);
}

/// Tells the writer of a complete lane, and starts what waited for the last one.
void Handoff::Advance(Ticket& ticket, const LaneKey& key, const Lane& lane) {
  if (!lane.complete()) return;
  Send(lane.writer, LaneVerified{key});
  Epoch& epoch = ticket.epochs.at(ticket.epoch);
  const bool all = std::all_of(epoch.lanes.begin(), epoch.lanes.end(), [](const Lane& l) { return l.complete(); });
  if (ticket.state != TicketState::kReceiving || !all) return;
  ticket.state = TicketState::kReady;
  epoch.ended = Listened();
  if (ticket.parked) Start(ticket, *std::exchange(ticket.parked, std::nullopt), /*recompute=*/false);
}

void Handoff::On(const Closed& event) {
  const LaneKey& key = event.message.lane;
  heard_[event.writer] = Listened();
  Send(event.writer, LaneClosedAck{key});
  if (event.message.flushed) {
    for (LandingRing& ring : rings_) ring.Restore(event.writer, key);
  }
  Ticket* ticket = FindTicket(key.ticket);
  if (ticket == nullptr) return;
  Lane* lane = FindLane(key);
  if (lane == nullptr ||
      lane->writer == 0) {  // closed before it was opened: an Open that comes later must find it shut
    if (ticket->secret != event.message.secret) return;  // it is not this peer's to shut
    if (key.epoch >= ticket->epoch) ticket->closed_epoch = std::max(ticket->closed_epoch, key.epoch);
    if (lane == nullptr) return;
  } else if (lane->writer != event.writer && !PlantedBug("reuse epoch number")) {
    return;
  }
  if (event.message.flushed) {
    FenceLane(key, *lane);
  } else if (lane->state == LaneState::kOpen) {
    lane->state = LaneState::kDirty;
    if (lane->fence == FenceKind::kForcedClose) Cut(lane->writer);
  }
  if (!lane->complete() && !ticket->epochs.at(key.epoch).superseded)
    Repair(*ticket, StrCat("lane ", key.lane, " was closed"));
  Sweep(*ticket);
}

void Handoff::On(const WriterLost& event) {
  LoseWriter(event.writer, false);
  if (event.connected || NeedsFenceOf(event.writer)) return;
  heard_.erase(event.writer);
  out_->push_back(ReleaseWriter{event.writer});
}

/// Of a lost one: it opens no lane any more, so what needs no fence now needs none later.
bool Handoff::NeedsFenceOf(WriterId writer) const {
  const auto lost_by_it = [writer](const LandingRing& ring) { return ring.LostBy(writer); };
  if (cut_.contains(writer) || std::ranges::any_of(rings_, lost_by_it)) return true;
  for (const TicketId id : open_) {
    for (const auto& [number, epoch] : tickets_.at(id).epochs) {
      for (const Lane& lane : epoch.lanes) {
        if (lane.writer == writer && lane.state != LaneState::kFenced) return true;
      }
    }
  }
  return false;
}

void Handoff::On(const WriterFenced& event) {
  cut_.erase(event.writer);
  heard_.erase(event.writer);
  for (LandingRing& ring : rings_) ring.Restore(event.writer);
  LoseWriter(event.writer, true);
}

void Handoff::LoseWriter(WriterId writer, bool fenced) {
  bool cut = false;
  for (auto it = open_.begin(); it != open_.end();) {
    const TicketId id = *it;
    Ticket& ticket = tickets_.at(id);
    ++it;
    bool broken = false, held = false;
    for (auto& [number, epoch] : ticket.epochs) {
      for (uint32_t i = 0; i < epoch.lanes.size(); ++i) {
        Lane& lane = epoch.lanes[i];
        if (lane.writer != writer || lane.state == LaneState::kFenced) continue;
        held = true;
        broken |= !epoch.superseded && !lane.complete();
        cut |= lane.fence == FenceKind::kForcedClose;
        const bool no_access = fenced || lane.fence == FenceKind::kReceiverWrites || PlantedBug("fence answered early");
        if (no_access) FenceLane({id, number, i}, lane);
      }
    }
    if (held && PlantedBug("peer lost closes the ticket")) Close(ticket, "peer lost");
    if (broken) Repair(ticket, fenced ? "its writer was cut off" : "its writer was lost");
    Sweep(ticket);
  }
  if (cut && !fenced) Cut(writer);
}

/// The current epoch cannot be completed. P's answer lets the router send a later one; if the router has attached
/// already, P is done with the request, and what was lost is computed here.
void Handoff::Repair(Ticket& ticket, const std::string& reason) {
  if (ticket.state != TicketState::kReceiving) return;
  ++counters_.lanes_failed;
  Supersede(ticket, ticket.epoch, reason);
  ticket.state = TicketState::kRepair;
  if (ticket.parked) Recover(ticket, *std::exchange(ticket.parked, std::nullopt));
  Sweep(ticket);
}

/// Nothing of the epoch counts any more. Lanes that nobody can write to are fenced by that; the others are told to
/// close, and keep their slots until a fence.
void Handoff::Supersede(Ticket& ticket, uint32_t number, const std::string& reason, bool at_once) {
  ticket.closed_epoch = std::max(ticket.closed_epoch, number);
  const auto found = ticket.epochs.find(number);
  if (found == ticket.epochs.end() || std::exchange(found->second.superseded, true)) return;
  found->second.ended = Listened();
  count_quarantined_ = true;
  for (uint32_t i = 0; i < found->second.lanes.size(); ++i) {
    Lane& lane = found->second.lanes[i];
    const LaneKey key{ticket.id, number, i};
    if (lane.over()) continue;
    if (lane.writer != 0 && !lane.complete()) Send(lane.writer, LaneGone{key, reason});
    const bool nobody_writes = lane.writer == 0 || lane.fence == FenceKind::kReceiverWrites;
    if (nobody_writes || at_once || PlantedBug("skip quarantine")) FenceLane(key, lane);
  }
}

void Handoff::FenceLane(const LaneKey& key, Lane& lane) {
  lane.state = LaneState::kFenced;
  rings_[static_cast<size_t>(lane.target_rank)].ReleaseGranted(key);
  count_quarantined_ = true;
}

/// The writer shows no sign of life, and its exit would be the only fence: it may be frozen for ever. The slots that it
/// holds are lost in the landing memory that it maps and in no other: later writers get another memory.
void Handoff::WriteOff(WriterId writer) {
  LoseWriter(writer, false);
  for (auto it = open_.begin(); it != open_.end();) {
    Ticket& ticket = tickets_.at(*it);
    ++it;
    for (auto& [number, epoch] : ticket.epochs) {
      for (uint32_t i = 0; i < epoch.lanes.size(); ++i) {
        if (epoch.lanes[i].writer == writer && !epoch.lanes[i].over()) WriteOffLane(ticket.id, number, epoch, i);
      }
    }
    Sweep(ticket);
  }
}

void Handoff::WriteOffLane(TicketId ticket, uint32_t number, Epoch& epoch, uint32_t i) {
  Lane& lane = epoch.lanes[i];
  lane.state = LaneState::kWrittenOff;
  rings_[static_cast<size_t>(lane.target_rank)].WriteOffGranted({ticket, number, i}, lane.writer, lane.memory);
  count_quarantined_ = true;
  if (!replaced_.try_emplace(lane.memory, Listened()).second) return;
  ++counters_.memories_written_off;
  out_->push_back(ReplaceMemory{lane.memory});
}

/// Tickets that name the replaced memory have ended by then, and so have the lanes of healthy writers.
void Handoff::DropMemories() {
  std::erase_if(replaced_, [this](const auto& replaced) {
    const auto& [memory, since] = replaced;
    if (Listened() - since < options_.tombstone) return false;
    for (const LandingRing& ring : rings_) {
      if (ring.lost(memory) > 0) return false;
    }
    for (const TicketId id : open_) {
      for (const auto& [number, epoch] : tickets_.at(id).epochs) {
        if (epoch.UsesMemory(memory)) return false;
      }
    }
    dropped_.insert(memory);
    out_->push_back(DropMemory{memory});
    return true;
  });
}

/// Gives back what the ticket needs no longer. Blocks wait for our own passes over them and for nothing else; slots
/// went back with their lanes' fences.
void Handoff::Sweep(Ticket& ticket) {
  for (auto it = ticket.epochs.begin(); it != ticket.epochs.end();) {
    auto& [number, epoch] = *it;
    const bool closing = ticket.state == TicketState::kClosing;
    bool idle = !epoch.Placing() || PlantedBug(closing ? "blocks released at once" : "same blocks at epoch+1");
    if (PlantedBug("blocks wait for the fence")) idle = epoch.Over() && !epoch.Placing();
    if (epoch.superseded && epoch.holds_blocks && idle) {
      blocks_.Release(ticket.id, number);
      epoch.holds_blocks = false;
    }
    it = !epoch.holds_blocks && epoch.Over() && !epoch.Placing() ? ticket.epochs.erase(it) : std::next(it);
  }
  if (ticket.state != TicketState::kClosing || !ticket.epochs.empty()) return;
  ticket.state = TicketState::kGone;
  open_.erase(ticket.id);
  gone_.Add(ticket.id, now_ + options_.tombstone);
}

void Handoff::Cut(WriterId writer) {
  if (writer != 0 && cut_.insert(writer).second) out_->push_back(CutWriter{writer});
}

bool Handoff::MayLand(WriterId writer, const LaneKey& key, SlotTurn slot) const {
  const Lane* lane = const_cast<Handoff*>(this)->FindLiveLane(writer, key);
  return lane != nullptr && ring(lane->target_rank).Holds(key, slot, Phase::kGranted);
}

Ticket* Handoff::FindTicket(TicketId ticket) {
  const auto found = tickets_.find(ticket);
  return found == tickets_.end() ? nullptr : &found->second;
}

Lane* Handoff::FindLane(const LaneKey& key) {
  Ticket* ticket = FindTicket(key.ticket);
  if (ticket == nullptr) return nullptr;
  const auto epoch = ticket->epochs.find(key.epoch);
  return epoch == ticket->epochs.end() || key.lane >= epoch->second.lanes.size() ? nullptr
                                                                                 : &epoch->second.lanes[key.lane];
}

/// Null unless the lane is open, `writer` opened it and its epoch counts.
Lane* Handoff::FindLiveLane(WriterId writer, const LaneKey& key) {
  Lane* lane = FindLane(key);
  if (lane == nullptr || lane->writer != writer || lane->state != LaneState::kOpen) return nullptr;
  return FindTicket(key.ticket)->epochs.at(key.epoch).superseded ? nullptr : lane;
}

}  // namespace baton::decode
