// Control of tickets: Reserve, Attach, Cancel, deadlines, closing.
#include "decode_worker/handoff/handoff.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/planted_bug.h"
#include "common/status.h"

namespace baton::decode {

Handoff::Handoff(HandoffOptions options, TicketBlocks& blocks)
    : options_(std::move(options)),
      blocks_(blocks),
      line_(options_.open_turn, options_.tombstone),
      next_ticket_(options_.first_ticket) {
  BATON_CHECK(options_.slots_per_lane > 0 && options_.first_ticket > 0);
  for (int slots : options_.ring_slots) rings_.emplace_back(slots);
}

void Handoff::Handle(const Event& event, TimePoint now, std::vector<Action>& out) {
  now_ = now;
  out_ = &out;
  std::visit([this](const auto& e) { On(e); }, event);
  out_ = nullptr;
}

ReserveAnswer Handoff::Reserve(const ReserveOrder& order, TimePoint now) {
  now_ = now;
  if (const auto known = by_key_.find(order.key); known != by_key_.end()) return AnswerOf(tickets_.at(known->second));
  if (tombstones_.Has(order.key)) return {order.key, absl::CancelledError("cancelled before it was reserved")};
  Ticket ticket{.id = next_ticket_, .secret = options_.new_secret(), .key = order.key, .tenant = order.salt};
  ticket.cached_tokens = blocks_.Pin(ticket.id, order);
  ticket.pinned = true;
  ticket.tokens = order.prompt_len + 1 - ticket.cached_tokens;  // and room to start decoding
  ticket.expires = now_ + order.expiry;
  ticket.lease = order.lease;
  Renew(ticket);
  if (absl::Status admitted = Admit(order, ticket.tokens); !admitted.ok()) {
    blocks_.Unpin(ticket.id);
    return {order.key, std::move(admitted)};
  }
  ++next_ticket_;
  reserved_tokens_ += ticket.tokens;
  by_key_[ticket.key] = ticket.id;
  open_.insert(ticket.id);
  return AnswerOf(tickets_[ticket.id] = std::move(ticket));
}

absl::Status Handoff::Admit(const ReserveOrder& order, int32_t tokens) const {
  if (tokens <= 0) {
    return absl::InvalidArgumentError(StrCat("a ticket for a prompt of ", order.prompt_len, " tokens binds ", tokens));
  }
  if (order.expiry <= Duration::zero()) return absl::DeadlineExceededError("the reservation has expired already");
  if (reserved_tokens_ + tokens > options_.max_reserved_tokens) {
    return absl::ResourceExhaustedError(StrCat("need ", tokens, " KV tokens, ",
                                               options_.max_reserved_tokens - reserved_tokens_, " of ",
                                               options_.max_reserved_tokens, " can be reserved"));
  }
  const int held = OverdueOfTenant(order.salt);
  if (held > options_.max_quarantined_slots) {
    return absl::ResourceExhaustedError(StrCat(held, " landing slots of tenant '", order.salt,
                                               "' are overdue in quarantine, limit ", options_.max_quarantined_slots));
  }
  return absl::OkStatus();
}

ReserveAnswer Handoff::AnswerOf(const Ticket& ticket) const {
  if (ticket.state == TicketState::kClosing || ticket.state == TicketState::kGone)
    return {ticket.key, absl::CancelledError(StrCat("ticket closed: ", ticket.why_closed))};
  return {ticket.key, absl::OkStatus(), ticket.id, ticket.secret, ticket.cached_tokens, ticket.expires - now_};
}

void Handoff::On(const Attach& event) {
  Ticket* found = FindTicket(event.ticket);
  if (found == nullptr) return RefuseAttach(event, "unknown ticket");
  Ticket& ticket = *found;
  if (ticket.state == TicketState::kClosing || ticket.state == TicketState::kGone) {
    return RefuseAttach(event, StrCat("ticket closed: ", ticket.why_closed));
  }
  Renew(ticket);
  if (ticket.state == TicketState::kAttached) {
    if (event.attach_gen < ticket.attach_gen)
      return RefuseAttach(event, StrCat("attach_gen ", ticket.attach_gen, " came first"));
    if (event.attach_gen == ticket.attach_gen) return;
    ticket.attach_gen = event.attach_gen;
    const bool forgotten = PlantedBug("second Attach without position");
    out_->push_back(ContinueSequence{ticket.id, event.attach_gen, forgotten ? 0 : event.position});
    return;
  }
  if (event.epoch == 0) {
    Supersede(ticket, ticket.epoch, "computed on the decode worker");
    Start(ticket, event, /*recompute=*/true);
    return Sweep(ticket);
  }
  if (event.epoch != ticket.epoch)
    return RefuseAttach(event, StrCat("epoch ", event.epoch, ", current ", ticket.epoch));
  if (ticket.state == TicketState::kReady) return Start(ticket, event, /*recompute=*/false);
  if (ticket.state != TicketState::kReceiving) return Recover(ticket, event);
  if (PlantedBug("Attach only in kReady")) return Start(ticket, event, /*recompute=*/false);
  if (ticket.parked && ticket.parked->attach_gen > event.attach_gen) {
    return RefuseAttach(event, StrCat("attach_gen ", ticket.parked->attach_gen, " came first"));
  }
  if (!ticket.parked) ticket.progress_at = Listened();
  ticket.parked = event;
}

void Handoff::Start(Ticket& ticket, const Attach& attach, bool recompute) {
  if (!recompute) {
    Epoch& epoch = ticket.epochs.at(ticket.epoch);
    epoch.holds_blocks = false;
    epoch.ended = Listened();
  }
  ticket.state = TicketState::kAttached;
  ticket.parked.reset();
  ticket.pinned = false;
  ticket.attach_gen = attach.attach_gen;
  reserved_tokens_ -= ticket.tokens;
  line_.Leave(ticket.id, ticket.key.request_id);
  out_->push_back(StartSequence{ticket.id, ticket.epoch, attach.attach_gen, attach.position, recompute});
}

void Handoff::Recover(Ticket& ticket, const Attach& attach) {
  if (ticket.tokens > options_.max_recompute_tokens) {
    return RefuseAttach(attach,
                        StrCat("KV of epoch ", attach.epoch, " was lost; ", ticket.tokens, " tokens, ",
                               options_.max_recompute_tokens, " may be computed here"),
                        /*prefill_again=*/true);
  }
  ++counters_.recomputes;
  Start(ticket, attach, /*recompute=*/true);
}

void Handoff::RefuseAttach(const Attach& attach, std::string reason, bool prefill_again) {
  out_->push_back(AttachRefused{attach.ticket, attach.attach_gen, prefill_again, std::move(reason)});
}

void Handoff::On(const Renewed& event) {
  const auto known = by_key_.find(event.key);
  if (known == by_key_.end()) return;
  Ticket& ticket = tickets_.at(known->second);
  if (ticket.state != TicketState::kAttached || event.attach_gen == ticket.attach_gen) Renew(ticket);
}

void Handoff::Renew(Ticket& ticket) const {
  ticket.wanted_at = Listened();
  if (ticket.lease > Duration::zero()) ticket.lease_until = Listened() + ticket.lease;
}

bool Handoff::Cancel(const TicketKey& key, bool asks_again, TimePoint now, std::vector<Action>& out) {
  now_ = now;
  const auto known = by_key_.find(key);
  if (known == by_key_.end()) {
    if (!PlantedBug("no tombstone")) tombstones_.Add(key, now_);
    return false;
  }
  if (PlantedBug("forget cancel on decode leg")) return true;
  out_ = &out;
  Close(tickets_.at(known->second), "cancelled", asks_again ? Why::kAskedAgain : Why::kOver);
  out_ = nullptr;
  return true;
}

void Handoff::On(const Finished& event) {
  Ticket* ticket = FindTicket(event.ticket);
  if (ticket == nullptr || ticket->state != TicketState::kAttached) return;
  if (PlantedBug("Finished forgets the ticket")) {
    open_.erase(ticket->id);
    by_key_.erase(ticket->key);
    tickets_.erase(ticket->id);
    return;
  }
  Close(*ticket, "finished", Why::kSequenceEnded);
}

/// A ticket that pins no blocks keeps no memory from others. The youngest one that pins some gives them up. The ticket
/// stands: an Attach without a prefill leg computes the whole prompt here.
void Handoff::On(const ShedUnbound&) {
  for (auto it = open_.rbegin(); it != open_.rend(); ++it) {
    Ticket& ticket = tickets_.at(*it);
    if (ticket.state != TicketState::kReserved && ticket.state != TicketState::kRepair) continue;
    if (!ticket.pinned || ticket.cached_tokens == 0) continue;
    ticket.pinned = false;
    ticket.shed = true;
    blocks_.Unpin(ticket.id);
    line_.Leave(ticket.id, ticket.key.request_id);
    out_->push_back(ReservationShed{ticket.id});
    return;
  }
}

void Handoff::On(const Tick&) {
  own_.Tick(now_);
  tombstones_.Tick(now_);
  line_.Tick(Listened());
  for (auto it = open_.begin(); it != open_.end();) {
    Ticket& ticket = tickets_.at(*it);
    ++it;
    TickTicket(ticket);
  }
  for (const WriterId writer : std::exchange(silent_, {})) WriteOff(writer);
  DropMemories();
  gone_.PopDue(now_, [this](TicketId id) {
    if (const auto ticket = tickets_.find(id); ticket != tickets_.end()) {
      by_key_.erase(ticket->second.key);
      tickets_.erase(ticket);
    }
  });
}

/// The ticket waits for its segments and gets none, although its writer may send those of other tickets.
void Handoff::GiveUpWithoutProgress(Ticket& ticket) {
  if (!ticket.parked || ticket.state != TicketState::kReceiving || ticket.epochs.at(ticket.epoch).Placing()) return;
  const Duration none = Listened() - ticket.progress_at;
  if (none >= options_.progress) Repair(ticket, StrCat("nothing of it came for ", Milliseconds(none), " ms"));
}

/// A router that renews nothing may have forgotten it, and it would stand until its expiry.
bool Handoff::HoldsUpADrain(const Ticket& ticket) const {
  if (!drains_since_ || ticket.parked || ticket.state == TicketState::kAttached) return false;
  const auto epoch = ticket.epochs.find(ticket.epoch);
  if (epoch != ticket.epochs.end() && epoch->second.Placing()) return false;
  return Listened() - std::max(ticket.wanted_at, *drains_since_) >= options_.drain_patience;
}

void Handoff::TickTicket(Ticket& ticket) {
  GiveUpWithoutProgress(ticket);
  if (Listened() >= ticket.lease_until && !PlantedBug("lease never expires")) {
    ticket.lapsed = true;
    Close(ticket, "no router has renewed it");
  }
  if (HoldsUpADrain(ticket)) {
    ticket.lapsed = true;
    Close(ticket,
          StrCat("the worker drains, and nobody has asked for it for ", Milliseconds(options_.drain_patience), " ms"));
  }
  switch (ticket.state) {
    case TicketState::kReserved:
    case TicketState::kReceiving:
    case TicketState::kReady:
    case TicketState::kRepair:
      if (now_ < ticket.expires) break;
      Close(ticket, "its deadline has passed");
      if (!PlantedBug("release on expiry")) break;
      for (auto& [number, epoch] : ticket.epochs) {
        for (uint32_t i = 0; i < epoch.lanes.size(); ++i) FenceLane({ticket.id, number, i}, epoch.lanes[i]);
      }
      break;
    case TicketState::kAttached:
    case TicketState::kClosing:
    case TicketState::kGone: break;
  }
  for (auto& [number, epoch] : ticket.epochs) {
    for (uint32_t i = 0; i < epoch.lanes.size(); ++i) {
      const Lane& lane = epoch.lanes[i];
      if (lane.over()) continue;
      if (lane.fence == FenceKind::kForcedClose && Overdue(epoch)) Cut(lane.writer);
      if (lane.fence != FenceKind::kPeerExit) continue;
      if (Silent(lane.writer)) silent_.insert(lane.writer);
      const bool late = Listened() - epoch.ended >= options_.write_off_after;
      if (lane.state == LaneState::kDirty && late) WriteOffLane(ticket.id, number, epoch, i);
    }
  }
  Sweep(ticket);
}

/// A writer that has a lane open sends at least one message a second.
bool Handoff::Silent(WriterId writer) const {
  const auto heard = heard_.find(writer);
  return heard != heard_.end() && Listened() - heard->second >= options_.write_off_after;
}

void Handoff::Close(Ticket& ticket, const std::string& reason, Why why) {
  if (ticket.state == TicketState::kClosing || ticket.state == TicketState::kGone) return;
  if (ticket.parked) RefuseAttach(*std::exchange(ticket.parked, std::nullopt), StrCat("ticket closed: ", reason));
  if (ticket.state == TicketState::kAttached) {
    if (why != Why::kSequenceEnded) out_->push_back(StopSequence{ticket.id});
  } else {
    reserved_tokens_ -= ticket.tokens;
  }
  if (std::exchange(ticket.pinned, false)) blocks_.Unpin(ticket.id);
  if (why == Why::kAskedAgain) {
    line_.LeaveForNow(ticket.id, ticket.key.request_id, Listened());
  } else {
    line_.Leave(ticket.id, ticket.key.request_id);
  }
  ticket.state = TicketState::kClosing;
  ticket.why_closed = reason;
  Supersede(ticket, ticket.epoch, reason);
  Sweep(ticket);
}

}  // namespace baton::decode
