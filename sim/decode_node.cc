#include "sim/decode_node.h"

#include "decode_worker/ticket_codec.h"
#include "sim/one_rank.h"
#include "worker/transfer/kv_pool_view.h"

namespace baton::sim {
namespace {

worker::WorkerConfig LandingConfig(const ClusterScenario& scenario) {
  worker::WorkerConfig config;
  config.landing_slots = scenario.landing_slots;
  config.landing_slot_bytes = scenario.slot_bytes;
  return config;
}

decode_worker::DeskFacts Facts(const ClusterScenario& scenario, const KvLayout& layout, const std::string& incarnation,
                               const std::string& numerics_id) {
  decode_worker::DeskFacts facts{.side = worker::SideOf(layout),
                                 .piece_tokens = scenario.piece_tokens,
                                 .incarnation = incarnation,
                                 .model_digest = "m",
                                 .numerics_id = numerics_id};
  facts.handoff.ring_slots = {scenario.landing_slots};
  facts.handoff.max_reserved_tokens =
      scenario.max_reserved_tokens > 0 ? scenario.max_reserved_tokens : 10 * scenario.max_model_len;
  facts.handoff.max_quarantined_slots = scenario.landing_slots;
  facts.handoff.new_secret = [given = uint64_t{0}]() mutable { return TicketSecret{++given, ~given}; };
  return facts;
}

}  // namespace

DecodeNode::Life::Life(DecodeNode& node)
    : engine(node.plant_.engines.Make(node.role(), node.odd(), &policy)),
      loop(node),
      landing(decode_worker::Landing::Create(
                  LandingConfig(node.plant_.scenario), worker::PoolOf(engine.memory()), node.incarnation(), node.time_,
                  loop, node, node.MakeTransport([&node](uint32_t memory, PeerNumber peer, const LandingPlace& place) {
                    node.OnLanded(memory, peer, place);
                  }))
                  .value()),
      facts(Facts(node.plant_.scenario, engine.memory().layout(), node.incarnation(), node.numerics_id())),
      desk(facts, node, loop, node.time_),
      book({.vocab_size = engine::kFakeVocab}, &desk),
      hub(node.incarnation()) {
  policy.desk = &desk;
  desk.SetRelay(&book);
  desk.Use(engine.scheduler());
}

DecodeNode::DecodeNode(const Plant& plant, std::string name, bool odd) : WorkerNode(plant, std::move(name), odd) {}

DecodeNode::~DecodeNode() = default;

void DecodeNode::OnBirth() {
  life_now_ = std::make_unique<Life>(*this);
  Run(life_now_->engine, &life_now_->loop, life_now_->hub);
}

void DecodeNode::OnDeath() {
  WorkerNode::OnDeath();
  life_now_.reset();
}

v1::ReserveReply DecodeNode::OnReserve(const v1::ReserveRequest& request) {
  const decode::ReserveAnswer answer =
      life_now_->desk.Reserve(decode_worker::DecodeReserve(request), decode_worker::GrammarOf(request));
  WakeGrammars();
  return decode_worker::EncodeReserved(answer, life_now_->facts, life_now_->landing->ways(), Duration::zero());
}

void DecodeNode::OnRelay(const std::shared_ptr<worker::RelayWriter>& stream, const v1::RelayUp& message) {
  life_now_->book.OnMessage(stream, message, life_now_->engine.scheduler(), time_.Now());
  for (const v1::Renewal& r : message.renewal())
    life_now_->desk.Renew({r.key().request_id(), r.key().attempt()}, r.attach_gen());
  Wake();
}

void DecodeNode::OnPrefill(const v1::PrefillRequest&, std::shared_ptr<worker::PrefillSink> sink) {
  sink->Finish(absl::UnimplementedError("this worker does not prefill for others"));
  plant_.Break(StrCat(name(), ": a decode worker was asked for a prefill leg"));
}

void DecodeNode::OnCancel(const v1::CancelRequest& request) {
  life_now_->desk.Cancel({request.key().request_id(), request.key().attempt()}, request.asks_again());
  Wake();
}

void DecodeNode::OnRelayEnd(const worker::RelayWriter& stream, const std::string& session) {
  life_now_->book.OnStreamEnd(&stream, life_now_->engine.scheduler(), time_.Now());
  life_now_->desk.OnRouterLeft(session);
  Wake();
}

/// Where others write, a slot is that lane's to which it was granted until its writer is fenced. (Where we write, it
/// changes hands on the transfer thread, and MayLand is the fence.)
void DecodeNode::OnLanded(uint32_t memory, PeerNumber peer, const LandingPlace& place) {
  if (plant_.scenario.fence == FenceKind::kReceiverWrites || plant_.plans()) return;
  const decode_worker::TicketDesk& desk = life_now_->desk;
  const WriterId writer = decode_worker::Landing::WriterBy(peer, memory);
  if (desk.ring(0).lost(memory) > 0) return;  // written off: what its frozen writer does there harms nobody
  const decode::Ticket* ticket = desk.Find(place.lane.ticket);
  const auto epoch = ticket == nullptr ? decltype(ticket->epochs.end()){} : ticket->epochs.find(place.lane.epoch);
  const bool known = ticket != nullptr && epoch != ticket->epochs.end() && place.lane.lane < epoch->second.lanes.size();
  if (known && epoch->second.lanes[place.lane.lane].writer == writer &&
      desk.ring(0).Holds(place.lane, place.slot, decode::LandingRing::Phase::kGranted)) {
    return;
  }
  plant_.Break(StrCat(name(), ": ticket ", place.lane.ticket, " epoch ", place.lane.epoch, " landed in slot ",
                      place.slot.slot, " turn ", place.slot.turn, ", which it does not hold"));
}

void DecodeNode::Place(const decode_worker::ScatterOrder& order) {
  if (!life_now_->desk.HoldsBlocks(order.lane.ticket, order.lane.epoch)) {
    plant_.Break(StrCat(name(), ": a pass writes blocks of ticket ", order.lane.ticket, " epoch ", order.lane.epoch,
                        ", which were given back"));
  }
  life_now_->landing->Place(order);
}

void DecodeNode::OnOutputs(std::vector<engine::SequenceOutput> outputs, uint64_t step) {
  life_now_->book.OnOutputs(std::move(outputs), step);
}

void DecodeNode::OnTick() {
  life_now_->book.Tick(life_now_->engine.scheduler(), time_.Now());
  life_now_->desk.Tick();
}

void DecodeNode::OnTurnEnd() {
  WorkerNode::OnTurnEnd();
  if (life_now_ && !plant_.plans()) life_now_->desk.CheckInvariants();
}

std::string DecodeNode::TicketsHeld() const {
  std::string out;
  for (TicketId id = 1; life_now_->desk.Find(id) != nullptr || id < 100; ++id) {
    const decode::Ticket* ticket = life_now_->desk.Find(id);
    if (ticket == nullptr || ticket->state == decode::TicketState::kGone) continue;
    out += StrCat(" ", id, " of ", ticket->key.request_id, "/", ticket->key.attempt, " in state ",
                  static_cast<int>(ticket->state), " ", ticket->why_closed);
    for (const auto& [number, epoch] : ticket->epochs) {
      for (const decode::Lane& lane : epoch.lanes)
        out += StrCat(", epoch ", number, " lane of writer ", lane.writer, " in state ", static_cast<int>(lane.state),
                      ", ", lane.missing, " missing, ", lane.placing.size(), " placing");
    }
  }
  return out;
}

std::string DecodeNode::Holds() const {
  if (!life_now_) return "";
  const decode::HandoffStats stats = life_now_->desk.Stats();
  const auto blocks = life_now_->engine.cache().pool(0).used_blocks();
  if (stats.tickets + stats.granted_slots + stats.quarantined_slots + stats.reserved_tokens + blocks == 0) return "";
  return StrCat(name(), ": ", stats.tickets, " tickets, ", stats.granted_slots, " + ", stats.quarantined_slots,
                " slots, ", stats.reserved_tokens, " tokens, ", blocks, " blocks (", TicketsHeld(), "); ");
}

}  // namespace baton::sim
