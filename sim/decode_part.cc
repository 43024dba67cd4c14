#include "sim/decode_part.h"

#include <string_view>

#include "decode_worker/ticket_codec.h"
#include "worker/transfer/kv_pool_view.h"

namespace baton::sim {
namespace {

worker::WorkerConfig LandingConfig(const ClusterScenario& scenario) {
  worker::WorkerConfig config;
  config.landing_slots = scenario.landing_slots;
  config.landing_slot_bytes = scenario.slot_bytes;
  return config;
}

decode_worker::DeskFacts Facts(const ClusterScenario& scenario, const KvSide& side, const std::string& incarnation,
                               const std::string& numerics_id, const ProtocolVersions& kv_protocol) {
  decode_worker::DeskFacts facts{.side = side,
                                 .piece_tokens = scenario.piece_tokens,
                                 .incarnation = incarnation,
                                 .model_digest = "m",
                                 .numerics_id = numerics_id,
                                 .kv_protocol = kv_protocol};
  facts.handoff.ring_slots.assign(static_cast<size_t>(side.ranks()), scenario.landing_slots);
  facts.handoff.max_reserved_tokens =
      scenario.max_reserved_tokens > 0 ? scenario.max_reserved_tokens : 10 * scenario.max_model_len;
  facts.handoff.max_quarantined_slots = side.ranks() * scenario.landing_slots;
  facts.handoff.new_secret = [given = uint64_t{0}]() mutable { return TicketSecret{++given, ~given}; };
  return facts;
}

}  // namespace

DecodePart::DecodePart(WorkerNode& node, engine::SteppedEngine& engine)
    : node_(node),
      engine_(engine),
      loop_(node),
      side_(SideOfRole(node.plant().scenario, v1::WORKER_ROLE_DECODE, engine.memory().layout())),
      landing_(decode_worker::Landing::Create(LandingConfig(node.plant().scenario),
                                              PoolOfRank(engine.memory(), side_, node.plant().scenario.heads, 0),
                                              node.incarnation(), node.plant().time, loop_, *this, TransportsOf(0))
                   .value()),
      ranks_(side_.ranks() == 1
                 ? nullptr
                 : std::make_unique<RankGroup>(node, loop_, engine.memory(), side_, decode_worker::MakeRankLanding,
                                               [this](int rank) { return TransportsOf(rank); })),
      landings_(ranks_ == nullptr ? nullptr
                                  : std::make_unique<decode_worker::RankLandings>(
                                        *landing_, side_, *ranks_, static_cast<decode_worker::LandingEvents&>(*this))),
      facts_(Facts(node.plant().scenario, side_, node.incarnation(), node.numerics_id(), node.kv_protocol())),
      desk_(facts_, *this, loop_, node.plant().time) {
  policy_.desk = &desk_;
}

TransportMaker DecodePart::TransportsOf(int rank) {
  return node_.MakeTransport([this, rank](uint32_t made, PeerNumber peer, const LandingPlace& place) {
    OnLanded(FirstMemoryOf(rank) + made, peer, place);
  });
}

void DecodePart::OnTick(engine::Scheduler&) {
  desk_.Tick();
  if (!landings_) return;
  loop_.Post([this] {  // every tick wakes, as PrefillPart's
    if (beat_.Due(node_.plant().time.Now())) landings_->Tick();
  });
}

void DecodePart::Start(worker::PostTask, worker::RelayBook* relay) {
  desk_.SetRelay(relay);
  desk_.Use(engine_.scheduler());
}

void DecodePart::ToDesk(std::function<void()> work, bool wake) {
  node_.ToScheduler([this, here = std::weak_ptr(here_), work = std::move(work), wake] {
    if (here.expired()) return;
    work();
    if (wake) node_.Wake();
  });
}

void DecodePart::Reserve(const v1::ReserveRequest& request, const std::string& router,
                         std::function<void(v1::ReserveReply)> answer) {
  const decode::ReserveAnswer reserved =
      desk_.Reserve(*decode_worker::DecodeReserve(request, router), decode_worker::GrammarOf(request));
  decode_worker::LandingWays ways = landing_->ways();
  ways.address = LandingAddress();
  answer(decode_worker::EncodeReserved(reserved, facts_, ways, Duration::zero()));
}

void DecodePart::Cancel(const v1::CancelRequest& request, const std::string& router,
                        std::function<void(v1::CancelReply)> answer) {
  v1::CancelReply reply;
  reply.set_known(desk_.Cancel(decode_worker::KeyOf(request.key(), router), request.asks_again()));
  answer(std::move(reply));
}

/// Where others write, a slot is that lane's to which it was granted until its writer is fenced. A rank grants it anew
/// itself before rank 0 hears that its pass has ended. (Where we write, it changes hands on the transfer thread, and
/// MayLand is the fence.)
void DecodePart::OnLanded(uint32_t memory, PeerNumber peer, const LandingPlace& place) {
  if (node_.plant().scenario.fence == FenceKind::kReceiverWrites || node_.plant().plans()) return;
  const WriterId writer = decode_worker::Landing::WriterBy(peer, memory);
  const decode::LandingRing& ring = desk_.ring(RankOfMemory(memory));
  if (ring.lost(memory) > 0) return;  // written off: what its frozen writer does there harms nobody
  const decode::Ticket* ticket = desk_.Find(place.lane.ticket);
  const auto epoch = ticket == nullptr ? decltype(ticket->epochs.end()){} : ticket->epochs.find(place.lane.epoch);
  const bool known = ticket != nullptr && epoch != ticket->epochs.end() && place.lane.lane < epoch->second.lanes.size();
  using Phase = decode::LandingRing::Phase;
  const SlotTurn before{place.slot.slot, place.slot.turn - 1};
  if (known && epoch->second.lanes[place.lane.lane].writer == writer &&
      (ring.Holds(place.lane, place.slot, Phase::kGranted) ||
       (side_.ranks() > 1 && ring.Holds(place.lane, before, Phase::kPlacing)))) {
    return;
  }
  node_.plant().Break(StrCat(node_.name(), ": ticket ", place.lane.ticket, " epoch ", place.lane.epoch,
                             " landed in slot ", place.slot.slot, " turn ", place.slot.turn,
                             ", which it does not hold"));
}

void DecodePart::Place(const decode_worker::ScatterOrder& order) {
  if (!desk_.HoldsBlocks(order.lane.ticket, order.lane.epoch)) {
    node_.plant().Break(StrCat(node_.name(), ": a pass writes blocks of ticket ", order.lane.ticket, " epoch ",
                               order.lane.epoch, ", which were given back"));
  }
  control().Place(order);
}

const char* DecodePart::Moment() const {
  const char* moment = "idle";
  for (TicketId id = 1; desk_.Find(id) != nullptr || id < 100; ++id) {
    const decode::Ticket* ticket = desk_.Find(id);
    if (ticket == nullptr) continue;
    if (ticket->state == decode::TicketState::kReceiving) return "during";
    if (ticket->state == decode::TicketState::kReserved) moment = "before";
    if (ticket->state == decode::TicketState::kAttached && moment == std::string_view("idle")) moment = "after";
  }
  return moment;
}

std::string DecodePart::TicketsHeld() const {
  std::string out;
  for (TicketId id = 1; desk_.Find(id) != nullptr || id < 100; ++id) {
    const decode::Ticket* ticket = desk_.Find(id);
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

std::string DecodePart::Holds() const {
  const decode::HandoffStats stats = desk_.Stats();
  if (stats.tickets + stats.granted_slots + stats.quarantined_slots + stats.reserved_tokens == 0) return "";
  return StrCat(stats.tickets, " tickets, ", stats.granted_slots, " + ", stats.quarantined_slots, " slots, ",
                stats.reserved_tokens, " tokens (", TicketsHeld(), ")");
}

}  // namespace baton::sim
