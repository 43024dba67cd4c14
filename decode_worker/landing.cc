#include "decode_worker/landing.h"

#include <utility>

#include "common/status.h"
#include "kvtransfer/slot_format.h"
#include "spdlog/spdlog.h"
#include "worker/transports.h"

namespace baton::decode_worker {

absl::StatusOr<std::unique_ptr<Landing>> Landing::Create(const worker::WorkerConfig& config, KvPoolView pool,
                                                         const Clock& clock, worker::TransferThread& thread,
                                                         LandingEvents& events) {
  const LandingShape shape{static_cast<uint32_t>(config.landing_slots),
                           static_cast<uint64_t>(config.landing_slot_bytes)};
  const std::string kind = worker::TransportKind(config);
  std::unique_ptr<Landing> landing(new Landing(kind, shape, std::move(pool), clock, thread, events));
  BATON_ASSIGN_OR_RETURN(
      landing->transport_,
      worker::MakeTransport(kind, config.host, static_cast<uint16_t>(config.landing_port), shape, *landing));
  landing->address_ = landing->transport_->address();
  thread.Watch(landing->transport_.get());
  return landing;
}

Landing::Landing(std::string kind, const LandingShape& shape, KvPoolView pool, const Clock& clock,
                 worker::TransferThread& thread, LandingEvents& events)
    : kind_(std::move(kind)),
      shape_(shape),
      pool_(std::move(pool)),
      clock_(clock),
      thread_(thread),
      events_(events),
      grants_(shape.slots) {}

decode::FenceKind Landing::fence() const {
  switch (transport_->fence()) {
    case FenceStyle::kReceiverWrites: return decode::FenceKind::kReceiverWrites;
    case FenceStyle::kForcedClose: return decode::FenceKind::kForcedClose;
    case FenceStyle::kPeerExit: break;
  }
  return decode::FenceKind::kWriterExit;
}

void Landing::NoteGrant(WriterId writer, const LaneKey& lane, SlotTurn grant) {
  Grant& known = grants_[grant.slot];
  if (known.writer == writer && known.lane == lane && known.turn == grant.turn) return;  // said again
  known = {writer, lane, grant.turn, true};
}

void Landing::Send(WriterId writer, const ToPrefill& message) {
  if (const auto* bound = std::get_if<LaneBound>(&message)) {
    for (SlotTurn grant : bound->grants) NoteGrant(writer, bound->lane, grant);
  }
  if (const auto* free = std::get_if<SlotFree>(&message)) NoteGrant(writer, free->lane, free->grant);
  transport_->Send(writer, EncodeLaneMessage(message), [](const absl::Status&) {});  // a lost writer is told by OnLost
}

bool Landing::MayLand(PeerNumber peer, const LandingPlace& place) {
  const Grant& grant = grants_[place.slot.slot];
  return grant.open && grant.writer == peer && grant.lane == place.lane && grant.turn == place.slot.turn;
}

void Landing::OnMessage(PeerNumber peer, std::string_view bytes) {
  absl::StatusOr<LaneMessage> message = DecodeLaneMessage(bytes);
  if (message.ok() && std::holds_alternative<ToPrefill>(*message))
    message = absl::InvalidArgumentError("a message for the other side");
  if (!message.ok()) {
    spdlog::warn("landing: peer {} is cut off: {}", peer, View(message.status().message()));
    thread_.Post([this, peer] { Cut(peer); });
    return events_.OnWriterLost(peer);
  }
  if (auto* hello = std::get_if<LaneHello>(&*message)) return events_.OnHello(peer, std::move(*hello));
  ToDecode& lane = std::get<ToDecode>(*message);
  if (const auto* full = std::get_if<SlotFull>(&lane); full != nullptr && full->slot.slot < grants_.size()) {
    Grant& grant = grants_[full->slot.slot];
    if (grant.writer == peer && grant.lane == full->lane && grant.turn == full->slot.turn) grant.open = false;
  }
  events_.OnLane(peer, std::move(lane));
}

void Landing::OnLost(PeerNumber peer, const absl::Status& why) {
  spdlog::info("landing: peer {} is gone: {}", peer, View(why.message()));
  events_.OnWriterLost(peer);
  thread_.Post([this, peer] { Cut(peer); });
}

void Landing::Cut(WriterId writer) {
  transport_->Close(writer, [this, writer] { events_.OnWriterFenced(writer); });
}

absl::Status Landing::VerifyAndScatter(const PlaceOrder& order) {
  const std::span<const std::byte> slot =
      transport_->landing().subspan(order.slot.slot * shape_.slot_bytes, shape_.slot_bytes);
  BATON_ASSIGN_OR_RETURN(const SlotContent content, ReadSlot(slot, order.lane, order.slot.turn));
  for (const SlotContent::Part& part : content.parts) counters_.bytes += static_cast<int64_t>(part.payload.size());
  return PlaceSlot(*order.plan, order.plan->lanes()[order.lane.lane], content, order.wanted, pool_, *order.tables);
}

void Landing::Place(const PlaceOrder& order) {
  const TimePoint start = clock_.Now();
  const absl::Status status = VerifyAndScatter(order);
  counters_.nanoseconds += (clock_.Now() - start).count();
  ++counters_.slots;
  if (!status.ok()) {
    ++counters_.digest_mismatches;
    spdlog::warn("landing: ticket {} epoch {} lane {} slot {}: {}", order.lane.ticket, order.lane.epoch,
                 order.lane.lane, order.slot.slot, View(status.message()));
  }
  events_.OnPlaced({order.lane, order.slot, status.ok()});
}

}  // namespace baton::decode_worker
