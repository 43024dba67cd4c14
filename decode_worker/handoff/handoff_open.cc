// The first Open of an epoch binds the blocks and the ring share of every lane of the ticket, or nothing: bound rank by
// rank, two tickets could each hold blocks that the other waits for.
#include <algorithm>
#include <map>

#include "common/check.h"
#include "common/planted_bug.h"
#include "common/str_cat.h"
#include "decode_worker/handoff/handoff.h"

namespace baton::decode {

void Handoff::On(const Opened& event) {
  heard_[event.writer] = Listened();
  const LaneKey& key = event.message.lane;
  Ticket* ticket = FindTicket(key.ticket);
  if (std::string why = WhyGone(ticket, event); !why.empty()) return Send(event.writer, LaneGone{key, std::move(why)});
  ticket->wanted_at = Listened();
  if (key.epoch > ticket->epoch) BeginEpoch(*ticket, key.epoch);
  if (!ticket->epochs.contains(key.epoch) && !Bind(*ticket, event)) {
    ++counters_.opens_refused;
    return Send(event.writer, LaneBusy{key, /*elsewhere=*/replaced_.contains(event.memory)});
  }
  Lane& lane = ticket->epochs.at(key.epoch).lanes[key.lane];
  if (PlantedBug("slots bound lane by lane") && !GrantSlots(event, key)) return Send(event.writer, LaneBusy{key});
  lane.writer = event.writer;
  lane.memory = event.memory;
  lane.fence = event.fence;
  Send(event.writer, LaneBound{key, ring(lane.target_rank).SlotsOf(key, LandingRing::Phase::kGranted)});
}

/// Why this Open can never be granted; empty when it can, now or later.
std::string Handoff::WhyGone(const Ticket* ticket, const Opened& event) const {
  const LaneKey& key = event.message.lane;
  if (ticket == nullptr || ticket->secret != event.message.secret) return "unknown ticket";
  if (ticket->state == TicketState::kClosing || ticket->state == TicketState::kGone) {
    return StrCat("ticket closed: ", ticket->why_closed);
  }
  if (key.epoch == 0 || key.epoch < ticket->epoch) return StrCat("epoch ", key.epoch, ", current ", ticket->epoch);
  if (ticket->shed) return "given up unbound: KV memory is short";
  if (key.epoch <= ticket->closed_epoch) return StrCat("epoch ", key.epoch, " is closed");
  if (cut_.contains(event.writer)) return "this writer was cut off";
  if (dropped_.contains(event.memory)) return "the landing memory that it writes was replaced";
  if (event.message.plan_digest != event.plan_digest) {
    return "the transfer plan differs from this worker's";  // which one is right is not for a stranger to hear
  }
  if (key.lane >= event.lanes.size()) return StrCat("lane ", key.lane, " of ", event.lanes.size());
  const auto bound = ticket->epochs.find(key.epoch);
  if (bound == ticket->epochs.end()) {
    return ticket->state == TicketState::kAttached ? "the sequence runs already" : WhyNoRing(event);
  }
  if (event.process != bound->second.process) return "another prefill worker has opened the epoch";
  const Lane& lane = bound->second.lanes[key.lane];
  if (lane.state != LaneState::kOpen) return "the lane is closed";
  if (event.memory != lane.memory && !MayWriteIn(event.memory, lane, key))
    return "the lane's slots are in another landing memory";
  if (lane.writer != 0 && lane.writer != event.writer && !PlantedBug("reuse epoch number")) {
    return "another writer has opened the lane";
  }
  return "";
}

std::string Handoff::WhyNoRing(const Opened& event) const {
  for (const LaneShape& shape : event.lanes) {
    if (shape.target_rank < 0 || shape.target_rank >= static_cast<int>(rings_.size())) {
      return StrCat("target rank ", shape.target_rank, " of ", rings_.size());
    }
    if (SlotsPerLane(event, shape.target_rank) == 0) {
      return StrCat("the lanes to rank ", shape.target_rank, " need ", 2 * LanesTo(event, shape.target_rank),
                    " landing slots, its ring has ", ring(shape.target_rank).size());
    }
  }
  return "";
}

/// The router sent the prompt to another prefill worker: the segments of the older epoch are of no use any more.
void Handoff::BeginEpoch(Ticket& ticket, uint32_t number) {
  if (ticket.parked) {
    RefuseAttach(*ticket.parked, StrCat("epoch ", ticket.parked->epoch, " was replaced by ", number));
    ticket.parked.reset();
  }
  Supersede(ticket, ticket.epoch, StrCat("replaced by epoch ", number), PlantedBug("same slots at epoch+1"));
  ticket.epoch = number;
  ticket.state = TicketState::kReserved;
  Sweep(ticket);
}

/// For reasons of its own, not for want of room: nobody waits behind it.
bool Handoff::MustStandAside(const Opened& event) {
  return OverItsShare(event) || (replaced_.contains(event.memory) && !RingsHaveRoom(event));
}

/// A process has at most half of a ring while others wait. And while it holds too much that only its own fence brings
/// back, it gets no more.
bool Handoff::OverItsShare(const Opened& event) {
  if (QuarantinedOf(event.process) > options_.max_quarantined_slots) return true;
  if (!line_.OthersWait(event.process) || PlantedBug("share ignored")) return false;
  const std::map<int, int> need = SlotsNeeded(event);
  return std::any_of(need.begin(), need.end(), [&](const auto& n) {
    return ring(n.first).held_by(event.process) + n.second > ring(n.first).size() / 2;
  });
}

bool Handoff::Bind(Ticket& ticket, const Opened& event) {
  const uint32_t number = event.message.lane.epoch;
  if (MustStandAside(event)) {
    if (PlantedBug("line never left")) {
      line_.Ask(ticket.id, ticket.key.request_id, event.process, Listened());
    } else {
      line_.StandAside(ticket.id, ticket.key.request_id);
    }
    return false;
  }
  if (!line_.Ask(ticket.id, ticket.key.request_id, event.process, Listened())) return false;
  if (!RingsHaveRoom(event) || !blocks_.Bind(ticket.id, number, ticket.tokens)) return false;
  line_.Leave(ticket.id, ticket.key.request_id);
  Epoch& epoch = ticket.epochs[number];
  epoch.process = event.process;
  epoch.holds_blocks = true;
  for (uint32_t i = 0; i < event.lanes.size(); ++i) {
    const LaneShape& shape = event.lanes[i];
    Lane& lane = epoch.lanes.emplace_back();
    lane.target_rank = shape.target_rank;
    lane.memory = event.memory;
    lane.have.assign(shape.segments, false);
    lane.missing = shape.segments;
    if (!PlantedBug("slots bound lane by lane")) GrantSlots(event, {ticket.id, number, i});
  }
  ticket.state = TicketState::kReceiving;
  return true;
}

/// The lane's share of its ring, all or nothing. True: it has it.
bool Handoff::GrantSlots(const Opened& event, const LaneKey& key) {
  const int rank = event.lanes[key.lane].target_rank, slots = SlotsPerLane(event, rank);
  LandingRing& ring = rings_[static_cast<size_t>(rank)];
  if (!ring.SlotsOf(key, LandingRing::Phase::kGranted).empty()) return true;
  if (ring.free_slots(event.memory) < slots && !PlantedBug("credits beyond the ring")) return false;
  for (int s = 0; s < slots; ++s) ring.Grant(key, event.process, event.memory);
  return true;
}

/// Lanes are bound by the first of them that is opened, whose writer may come another way than theirs: ranks have
/// landing memories of their own. Nobody has heard of an unopened lane's slots yet.
bool Handoff::MayWriteIn(uint32_t memory, const Lane& lane, const LaneKey& key) const {
  return lane.writer == 0 && ring(lane.target_rank).Usable(key, memory);
}

int Handoff::LanesTo(const Opened& event, int rank) {
  return static_cast<int>(std::count_if(event.lanes.begin(), event.lanes.end(),
                                        [rank](const LaneShape& shape) { return shape.target_rank == rank; }));
}

/// As configured; fewer when all lanes of the ticket would take more than half of the ring of `rank`.
int Handoff::SlotsPerLane(const Opened& event, int rank) const {
  return std::min(options_.slots_per_lane, ring(rank).size() / 2 / LanesTo(event, rank));
}

/// Of all lanes of the ticket, by rank.
std::map<int, int> Handoff::SlotsNeeded(const Opened& event) const {
  std::map<int, int> need;
  for (const LaneShape& shape : event.lanes) need[shape.target_rank] += SlotsPerLane(event, shape.target_rank);
  return need;
}

bool Handoff::RingsHaveRoom(const Opened& event) const {
  if (PlantedBug("credits beyond the ring") || PlantedBug("slots bound lane by lane")) return true;
  const std::map<int, int> need = SlotsNeeded(event);
  return std::all_of(need.begin(), need.end(),
                     [&](const auto& n) { return ring(n.first).free_slots(event.memory) >= n.second; });
}

}  // namespace baton::decode
