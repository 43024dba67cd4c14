// Counting: gauges, quarantine, and the check that everything adds up.
#include <utility>
#include <vector>

#include "common/check.h"
#include "decode_worker/handoff/handoff.h"

namespace baton::decode {

using Phase = LandingRing::Phase;

const Ticket* Handoff::Find(TicketId ticket) const {
  const auto found = tickets_.find(ticket);
  return found == tickets_.end() ? nullptr : &found->second;
}

/// Slots of the epoch's lanes that are not fenced, although nothing of it counts any more.
int Handoff::Quarantined(const Ticket& ticket, const Epoch& epoch, uint32_t number) const {
  int slots = 0;
  for (uint32_t i = 0; epoch.superseded && i < epoch.lanes.size(); ++i)
    slots += static_cast<int>(ring(epoch.lanes[i].target_rank).SlotsOf({ticket.id, number, i}, Phase::kGranted).size());
  return slots;
}

int Handoff::QuarantinedOf(const std::string& process) {
  if (std::exchange(count_quarantined_, false)) {
    quarantined_.clear();
    for (TicketId id : open_) {
      const Ticket& ticket = tickets_.at(id);
      for (const auto& [number, epoch] : ticket.epochs) {
        if (epoch.superseded) quarantined_[epoch.process] += Quarantined(ticket, epoch, number);
      }
    }
  }
  const auto found = quarantined_.find(process);
  return found == quarantined_.end() ? 0 : found->second;
}

/// Many clients that leave at once are no offence: their lanes close within a moment.
int Handoff::OverdueOfTenant(const std::string& tenant) const {
  if (tenant.empty()) return 0;  // everybody
  int slots = 0;
  for (TicketId id : open_) {
    const Ticket& ticket = tickets_.at(id);
    if (ticket.tenant != tenant) continue;
    for (const auto& [number, epoch] : ticket.epochs) slots += Overdue(epoch) ? Quarantined(ticket, epoch, number) : 0;
  }
  return slots;
}

HandoffStats Handoff::Stats() const {
  HandoffStats stats = counters_;
  stats.reserved_tokens = reserved_tokens_;
  int held = 0;
  for (const LandingRing& ring : rings_) {
    stats.free_slots += ring.free_slots();
    held += ring.size() - ring.free_slots();
  }
  stats.tickets = static_cast<int>(open_.size());
  for (TicketId id : open_) {
    const Ticket& ticket = tickets_.at(id);
    for (const auto& [number, epoch] : ticket.epochs) stats.quarantined_slots += Quarantined(ticket, epoch, number);
  }
  stats.granted_slots = held - stats.quarantined_slots;
  return stats;
}

void Handoff::CheckInvariants() const {
  int64_t reserved = 0;
  std::vector<int> held(rings_.size(), 0);
  BATON_CHECK(by_key_.size() == tickets_.size(), by_key_.size(), " keys of ", tickets_.size(), " tickets");
  for (const auto& [key, id] : by_key_) BATON_CHECK(tickets_.at(id).key == key, "ticket ", id);
  for (const auto& [id, ticket] : tickets_) {
    const bool open = ticket.state != TicketState::kClosing && ticket.state != TicketState::kGone;
    if (open && ticket.state != TicketState::kAttached) reserved += ticket.tokens;
    BATON_CHECK(ticket.pinned == (open && ticket.state != TicketState::kAttached && !ticket.shed), "ticket ", id);
    BATON_CHECK(ticket.state != TicketState::kGone || ticket.epochs.empty(), "ticket ", id);
    BATON_CHECK(open_.contains(id) == (ticket.state != TicketState::kGone), "ticket ", id);
    BATON_CHECK(!ticket.parked || ticket.state == TicketState::kReceiving, "ticket ", id);
    for (const auto& [number, epoch] : ticket.epochs) {
      BATON_CHECK(epoch.superseded || number == ticket.epoch, "ticket ", id, " epoch ", number);
      for (uint32_t i = 0; i < epoch.lanes.size(); ++i) {
        const Lane& lane = epoch.lanes[i];
        const auto granted = ring(lane.target_rank).CountOf({id, number, i}, Phase::kGranted);
        const auto placing = ring(lane.target_rank).CountOf({id, number, i}, Phase::kPlacing);
        BATON_CHECK(placing == lane.placing.size(), "ticket ", id, " lane ", i);
        BATON_CHECK(granted == 0 || !lane.over(), "ticket ", id, " lane ", i, " holds ", granted);
        BATON_CHECK(granted + placing > 0 || lane.over(), "ticket ", id, " lane ", i, " was bound without slots");
        held[static_cast<size_t>(lane.target_rank)] += static_cast<int>(granted + placing);
      }
    }
  }
  BATON_CHECK(reserved == reserved_tokens_, reserved, " tokens reserved, counted ", reserved_tokens_);
  for (size_t rank = 0; rank < rings_.size(); ++rank) {
    BATON_CHECK(held[rank] + rings_[rank].free_slots() == rings_[rank].size(), "rank ", rank, ": ", held[rank],
                " slots held, ", rings_[rank].free_slots(), " free of ", rings_[rank].size());
  }
}

}  // namespace baton::decode
