#include "decode_node.h"

#include <algorithm>

#include "prefill_node.h"
#include "router_model.h"

namespace baton::sim {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Phase = decode::LandingRing::Phase;

DecodeNode::DecodeNode(World& world, int index) : Node(world), index_(index) { Reborn(); }

void DecodeNode::Reborn() {
  const Scenario& s = world_.scenario;
  decode::HandoffOptions options;
  options.ring_slots = {s.ring_slots};
  options.slots_per_lane = s.slots_per_lane;
  options.max_reserved_tokens = 1000;
  options.max_recompute_tokens = s.seed % 2 == 0 ? 1 << 30 : 0;
  options.tombstone = seconds(10);
  options.first_ticket = life() * 1000 + static_cast<uint64_t>(index_) * 1000000 + 1;
  options.new_secret = [next = options.first_ticket]() mutable { return TicketSecret{~next, next++}; };
  core_ = std::make_unique<decode::Handoff>(options, *this);
  slots_.clear(), refused_.clear();
  blocks_.assign(static_cast<size_t>(s.blocks), {});
  pins_.clear(), requests_.clear(), sequences_.clear(), closing_since_.clear(), cancelled_.clear();
  renewals_.clear(), lapsed_.clear();
  Timer();
}

void DecodeNode::Timer() {
  Post(milliseconds(50), [this] {
    Handle(decode::Tick{});
    CheckClosing();
    CheckLapsed();
    Timer();
  });
}

void DecodeNode::Handle(const decode::Event& event) {
  if (world_.broken()) return;
  std::vector<decode::Action> actions;
  core_->Handle(event, Local(), actions);
  CheckSometimes();
  DoAll(actions, /*may_stop_sequences=*/std::holds_alternative<decode::Tick>(event));
}

void DecodeNode::CheckSometimes() {
  if (world_.Pick(0, 7) == 0) core_->CheckInvariants();
}

void DecodeNode::DoAll(const std::vector<decode::Action>& actions, bool may_stop_sequences) {
  may_stop_sequences_ = may_stop_sequences;
  for (const decode::Action& action : actions) std::visit([this](const auto& a) { Do(a); }, action);
}

/// What has been renewed is not ended for want of lease, however long this process stood still.
void DecodeNode::CheckLapsed() {
  for (const auto& [id, request] : requests_) {
    const decode::Ticket* ticket = core_->Find(id);
    if (ticket == nullptr || !ticket->lapsed) continue;
    if (!lapsed_.insert(id).second) continue;
    const auto renewed = renewals_.find(ticket->key);
    if (renewed == renewals_.end()) continue;
    const auto [gen, at] = renewed->second;
    const bool counts = ticket->attach_gen == 0 || ticket->attach_gen == gen;
    if (counts && world_.now - at < seconds(3)) world_.Break(StrCat("ticket ", id, " lapsed though it was renewed"));
  }
}

// ---- control

void DecodeNode::OnReserve(int request, uint32_t attempt) {
  if (world_.broken()) return;
  decode::ReserveOrder order;
  order.key = {StrCat("r", request), attempt};
  order.salt = "tenant";
  order.prompt = {request};  // names whose KV is pinned
  order.prompt_len = 99;
  order.expiry = milliseconds(world_.scenario.expiry_ms);
  order.lease = seconds(4);
  const decode::ReserveAnswer answer = core_->Reserve(order, Local());
  CheckSometimes();
  if (answer.status.ok() && cancelled_.contains(answer.key)) world_.Break("a cancelled ticket was granted");
  world_.Send([this, answer, life = life()](Duration latency) {
    world_.After(latency, [this, answer, life] { world_.router->OnTicket(index_, life, answer); });
  });
}

void DecodeNode::OnCancel(const decode::TicketKey& key) {
  if (world_.broken()) return;
  std::vector<decode::Action> actions;
  core_->Cancel(key, /*asks_again=*/false, Local(), actions);
  CheckSometimes();
  world_.Send([this, key, life = life()](Duration latency) {
    world_.After(latency, [this, key, life] { world_.router->OnDecodeCancelled(index_, life, key); });
  });
  DoAll(actions, /*may_stop_sequences=*/true);
  cancelled_.insert(key);
  for (const auto& [ticket, request] : requests_) {
    const decode::Ticket* found = core_->Find(ticket);
    if (found == nullptr || found->key != key) continue;
    if (found->state != decode::TicketState::kClosing && found->state != decode::TicketState::kGone)
      world_.Break("a cancelled ticket lives on");
  }
}

void DecodeNode::Do(const decode::AttachRefused& action) {
  world_.Send([this, action, life = life()](Duration latency) {
    world_.After(latency, [this, action, life] { world_.router->OnAttachRefused(index_, life, action); });
  });
}

// ---- data plane

void DecodeNode::OnMessage(uint64_t connection, const ToDecode& message, const Payload& payload) {
  if (const auto* open = std::get_if<OpenLane>(&message)) return Open(world_.connection(connection), *open);
  if (const auto* full = std::get_if<SlotFull>(&message)) {
    if (world_.scenario.wire == Wire::kRecv && core_->MayLand(connection, full->lane, full->slot))
      Land(connection, full->lane, full->slot, payload);
    return Handle(decode::Filled{connection, *full});
  }
  if (const auto* done = std::get_if<LaneDone>(&message)) return Handle(decode::Done{connection, *done});
  Handle(decode::Closed{connection, std::get<LaneClosed>(message)});
}

void DecodeNode::Open(const Connection& c, const OpenLane& message) {
  const auto fence = world_.scenario.wire == Wire::kRdma  ? FenceKind::kForcedClose
                     : world_.scenario.wire == Wire::kShm ? FenceKind::kPeerExit
                                                          : FenceKind::kReceiverWrites;
  const std::vector<decode::LaneShape> lanes(static_cast<size_t>(world_.scenario.lanes),
                                             {0, static_cast<uint32_t>(world_.scenario.segments)});
  const decode::Opened event{c.id, fence, message, 42, lanes, StrCat("p", c.prefill, ".", c.prefill_life), c.memory};
  const auto bound = [&] {
    const decode::Ticket* ticket = core_->Find(message.lane.ticket);
    return ticket != nullptr && ticket->epochs.contains(message.lane.epoch);
  };
  const bool was_bound = bound();
  const int64_t refused = core_->Stats().opens_refused;
  Handle(event);
  if (core_->Stats().opens_refused > refused) return NoteRefused(event);
  if (was_bound || !bound()) return;
  ForgetEarlier(message.lane.ticket);
  CheckShare(event);
  refused_.erase(message.lane.ticket);
  for (auto& [id, refusal] : refused_) refusal.stuck_since = TimePoint::max();
}

/// A request that asks with a later ticket does not wait with its earlier ones.
void DecodeNode::ForgetEarlier(TicketId ticket) {
  const decode::Ticket* const later = core_->Find(ticket);
  std::erase_if(refused_, [&](const auto& refused) {
    const decode::Ticket* const earlier = core_->Find(refused.first);
    return later != nullptr && earlier != nullptr && refused.first < ticket &&
           earlier->key.request_id == later->key.request_id;
  });
}

/// A process waited for room a moment ago: nobody else gets more than half meanwhile.
void DecodeNode::CheckShare(const decode::Opened& event) {
  const decode::LandingRing& ring = core_->ring(0);
  if (ring.held_by(event.process) <= ring.size() / 2) return;
  for (const auto& [id, refusal] : refused_) {
    const decode::Ticket* ticket = core_->Find(id);
    const bool waits = ticket != nullptr && ticket->state == decode::TicketState::kReserved && !ticket->shed &&
                       world_.now - refusal.at < milliseconds(500);
    if (waits && refusal.process != event.process && !refusal.aside)
      return world_.Break(StrCat("a process has ", ring.held_by(event.process), " of ", ring.size(),
                                 " slots though ticket ", id, " of another waits"));
  }
}

/// One for which there is room waits for nobody who is over his own share.
void DecodeNode::NoteRefused(const decode::Opened& event) {
  const decode::LandingRing& ring = core_->ring(0);
  const int need = static_cast<int>(event.lanes.size()) *
                   std::min(world_.scenario.slots_per_lane, ring.size() / 2 / static_cast<int>(event.lanes.size()));
  const bool over = ring.held_by(event.process) + need > ring.size() / 2;
  NoteStandstill();
  ForgetEarlier(event.message.lane.ticket);
  Refusal& refusal = refused_[event.message.lane.ticket];
  refusal.at = world_.now, refusal.process = event.process, refusal.aside = over || event.memory != memory_;
  if (!over) {
    for (auto& [id, other] : refused_) {
      if (&other != &refusal) other.stuck_since = TimePoint::max();  // it may stand in front of them
    }
  }
  const bool block = std::any_of(blocks_.begin(), blocks_.end(), [](const Block& b) { return b.ticket == 0; });
  const bool room = !over && block && event.memory == memory_ && ring.free_slots(event.memory) >= need;
  refusal.stuck_since = room ? std::min(refusal.stuck_since, world_.now) : TimePoint::max();
  if (room && world_.now - refusal.stuck_since > milliseconds(1200))
    world_.Break(StrCat("ticket ", event.message.lane.ticket, " waits though there is room and nobody in front of it"));
}

void DecodeNode::Do(const decode::ReplaceMemory& action) {
  if (action.memory == memory_) ++memory_;
}

void DecodeNode::Land(uint64_t connection, const LaneKey& lane, SlotTurn slot, const Payload& payload) {
  const decode::Ticket* ticket = core_->Find(lane.ticket);
  const bool known = ticket != nullptr && ticket->epochs.contains(lane.epoch);
  const uint32_t memory = world_.connection(connection).memory;
  if (core_->ring(0).Lost(connection, lane, slot.slot)) return;  // nobody reads it, nobody else is granted it
  if (!known || !core_->ring(0).Holds(lane, slot, Phase::kGranted) ||
      ticket->epochs.at(lane.epoch).lanes[lane.lane].writer != connection) {
    return world_.Break(StrCat("ticket ", lane.ticket, " epoch ", lane.epoch, " landed in slot ", slot.slot, " turn ",
                               slot.turn, ", which it does not hold"));
  }
  slots_[{memory, slot.slot}] = payload;
}

void DecodeNode::Do(const decode::SendToWriter& action) {
  Connection& c = world_.connection(action.writer);
  PrefillNode& p = *world_.prefills[static_cast<size_t>(c.prefill)];
  world_.Send([this, &c, &p, action](Duration latency) {
    world_.After(latency, [&c, &p, action] {
      if (c.lost || p.life() != c.prefill_life) return;
      p.Post(Duration::zero(), [&p, action] { p.OnMessage(action.writer, action.message); });
    });
  });
}

void DecodeNode::Do(const decode::ScatterSlot& action) {
  Duration pass = microseconds(world_.Pick(10, 500));
  if (!world_.scenario.faultless() && world_.Pick(0, 9) == 0) pass += milliseconds(world_.Pick(0, 300));
  Post(pass, [this, action] { Place(action); });
}

/// The pass ends: every word was read once, digested and stored.
void DecodeNode::Place(const decode::ScatterSlot& action) {
  const decode::Ticket* ticket = core_->Find(action.lane.ticket);
  if (ticket == nullptr || !ticket->epochs.contains(action.lane.epoch))
    return world_.Break("our own pass read for an epoch that is over");
  const Payload payload =
      slots_[{ticket->epochs.at(action.lane.epoch).lanes[action.lane.lane].memory, action.slot.slot}];
  const int block = BlockOf(action.lane.ticket, action.lane.epoch);
  if (block < 0) return world_.Break("our own pass wrote into blocks that had been returned");
  bool ok = true;
  for (uint32_t segment : action.wanted) {
    const auto cell = std::find_if(payload.cells.begin(), payload.cells.end(),
                                   [segment](const auto& c) { return c.first == segment; });
    const uint64_t content = cell == payload.cells.end() ? 0 : cell->second;
    const int request = RequestOf(action.lane.ticket);
    const uint64_t right = RightCell(request, action.lane.lane, segment);
    ok &= content == right || (Planted("digest not keyed by position") && content / 100 == right / 100);
    blocks_[static_cast<size_t>(block)].cells[action.lane.lane][segment] = content;
  }
  if (!ok && !payload.corrupted) return world_.Break("a digest did not match although nothing was corrupted");
  Handle(decode::Scattered{action.lane, action.slot, ok});
}

void DecodeNode::Do(const decode::CutWriter& action) {
  Post(microseconds(world_.Pick(10, 2000)), [this, action] {
    Connection& c = world_.connection(action.writer);
    c.cut = true;
    world_.Reset(c);
    Handle(decode::WriterFenced{action.writer});
  });
}

// ---- sequences

void DecodeNode::Do(const decode::StartSequence& action) {
  Sequence& sequence = sequences_[action.ticket];
  sequence = {RequestOf(action.ticket), action.attach_gen, action.position};
  pins_.erase(action.ticket);
  if (!action.recompute) {
    sequence.block = BlockOf(action.ticket, action.epoch);
    if (!Readable(sequence)) return world_.Break("a sequence was started on KV that is not there");
  } else if (world_.scenario.faultless()) {
    return world_.Break("recomputed although nothing went wrong");
  }
  Post(milliseconds(world_.Pick(1, 20)), [this, ticket = action.ticket] { Step(ticket, 0); });
}

void DecodeNode::Do(const decode::ContinueSequence& action) {
  const auto found = sequences_.find(action.ticket);
  if (found == sequences_.end()) return;
  Sequence& sequence = found->second;
  sequence.attach_gen = action.attach_gen;
  if (!Planted("second Attach without position")) sequence.position = action.position;
  Post(milliseconds(world_.Pick(1, 20)),
       [this, ticket = action.ticket, step = ++sequence.step] { Step(ticket, step); });
}

void DecodeNode::Step(TicketId ticket, uint64_t step) {
  const auto found = sequences_.find(ticket);
  if (found == sequences_.end() || found->second.step != step) return;
  Sequence& sequence = found->second;
  if (!Readable(sequence)) return world_.Break("KV in use was overwritten");
  if (sequence.position < static_cast<uint64_t>(world_.scenario.tokens)) {
    world_.router->OnToken(index_, life(), ticket, sequence.request, sequence.attach_gen, sequence.position++);
    Post(milliseconds(world_.Pick(1, 60)), [this, ticket, step] { Step(ticket, step); });
    return;
  }
  if (!world_.router->Acknowledged(sequence.request, ticket)) {  // its tokens may be asked for again
    return Post(milliseconds(50), [this, ticket, step] { Step(ticket, step); });
  }
  EndSequence(ticket);
  Handle(decode::Finished{ticket});
}

void DecodeNode::EndSequence(TicketId ticket) {
  const auto found = sequences_.find(ticket);
  if (found == sequences_.end()) return;
  if (found->second.block >= 0) blocks_[static_cast<size_t>(found->second.block)].ticket = 0;
  sequences_.erase(found);
}

void DecodeNode::Do(const decode::StopSequence& action) {
  if (!may_stop_sequences_) world_.Break("a running sequence was stopped though nobody asked for it");
  EndSequence(action.ticket);
}

bool DecodeNode::Readable(const Sequence& sequence) const {
  if (sequence.block < 0) return true;
  const Block& block = blocks_[static_cast<size_t>(sequence.block)];
  for (uint32_t lane = 0; lane < block.cells.size(); ++lane) {
    for (uint32_t segment = 0; segment < block.cells[lane].size(); ++segment) {
      if (block.cells[lane][segment] != RightCell(sequence.request, lane, segment)) return false;
    }
  }
  return true;
}

// ---- memory

int32_t DecodeNode::Pin(TicketId ticket, const decode::ReserveOrder& order) {
  pins_.insert(ticket);
  requests_[ticket] = order.prompt[0];
  return 16;
}

bool DecodeNode::Bind(TicketId ticket, uint32_t epoch, int32_t) {
  for (Block& block : blocks_) {
    if (block.ticket != 0) continue;
    block.ticket = ticket, block.epoch = epoch;
    block.cells.assign(static_cast<size_t>(world_.scenario.lanes),
                       std::vector<uint64_t>(static_cast<size_t>(world_.scenario.segments), 0));
    return true;
  }
  return false;
}

void DecodeNode::Release(TicketId ticket, uint32_t epoch) {
  const int block = BlockOf(ticket, epoch);
  if (block < 0) return world_.Break("blocks were returned twice");
  blocks_[static_cast<size_t>(block)].ticket = 0;
}

void DecodeNode::Unpin(TicketId ticket) {
  if (pins_.erase(ticket) == 0) world_.Break("a prefix was unpinned twice");
}

int DecodeNode::RequestOf(TicketId ticket) const { return requests_.at(ticket); }

int DecodeNode::BlockOf(TicketId ticket, uint32_t epoch) const {
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (blocks_[i].ticket == ticket && blocks_[i].epoch == epoch) return static_cast<int>(i);
  }
  return -1;
}

/// While we were stopped no time went by: memory comes back 5 s after resuming, and nobody has waited longer.
void DecodeNode::NoteStandstill() {
  const Duration stood = world_.now - checked_at_;
  checked_at_ = world_.now;
  if (stood <= milliseconds(200)) return;
  closing_since_.clear();
  for (auto& [id, refusal] : refused_) {
    if (refusal.stuck_since != TimePoint::max()) refusal.stuck_since += stood;
  }
}

/// Memory of a closing ticket comes back in 5 s; slots as soon as the wire has a fence to offer.
void DecodeNode::CheckClosing() {
  NoteStandstill();
  for (const auto& [ticket, request] : requests_) {
    const decode::Ticket* found = core_->Find(ticket);
    if (found == nullptr || found->state != decode::TicketState::kClosing) {
      closing_since_.erase(ticket);
      continue;
    }
    const auto [since, fresh] = closing_since_.try_emplace(ticket, world_.now);
    if (world_.now - since->second < seconds(5)) continue;
    for (const auto& [number, epoch] : found->epochs) {
      if (epoch.holds_blocks) world_.Break("a closing ticket held blocks for 5 s");
      if (world_.scenario.wire == Wire::kRdma) world_.Break("a closing ticket held slots for 5 s");
      if (world_.now - since->second > seconds(12)) world_.Break("a closing ticket held slots for 12 s");
    }
  }
}

std::string DecodeNode::Holds() const {
  const decode::HandoffStats stats = core_->Stats();
  const auto used = std::count_if(blocks_.begin(), blocks_.end(), [](const Block& b) { return b.ticket != 0; });
  if (stats.tickets + stats.granted_slots + stats.quarantined_slots + stats.reserved_tokens == 0 && used == 0 &&
      pins_.empty())
    return "";
  return StrCat(stats.tickets, " tickets, ", stats.granted_slots, " + ", stats.quarantined_slots, " slots, ", used,
                " blocks, ", pins_.size(), " pins");
}

void DecodeNode::CheckEnd() {
  if (dead()) return;
  if (!Holds().empty()) world_.Break(StrCat("decode ", index_, " still holds ", Holds()));
  const decode::HandoffStats stats = core_->Stats();
  // One token: the request ends with prefill's reply, and its ticket is cancelled in mid-transfer.
  if (world_.scenario.faultless() && world_.scenario.tokens > 1 && stats.lanes_failed + stats.digest_mismatches > 0) {
    world_.Break("a lane failed though nothing went wrong");
  }
}

}  // namespace baton::sim
