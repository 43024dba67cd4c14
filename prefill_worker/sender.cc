#include "prefill_worker/sender.h"

#include <algorithm>
#include <utility>

#include "common/log.h"
#include "common/planted_bug.h"
#include "common/status.h"
#include "kvtransfer/lent_outbox.h"

namespace baton::prefill_worker {
namespace {

constexpr size_t kBuffers = 16;

/// Who shares memory with a peer already may say where more of it is.
bool MayLend(const Transport& transport) { return transport.name() == "shm"; }

}  // namespace

Sender::Sender(DialOptions dial, size_t slot_bytes, KvPoolView pool, LaneHello hello, const Clock& clock,
               worker::TransferLoop& thread, SenderEvents& events)
    : pool_(std::move(pool)),
      lender_(LenderOf(pool_)),
      hello_(EncodeLaneMessage(hello)),
      clock_(clock),
      thread_(thread),
      events_(events),
      source_fault_rate_(dial.fault_rate / 4),
      memory_(kBuffers * slot_bytes),
      buffers_(memory_, slot_bytes),
      outbox_(lender_ != nullptr ? lender_->outbox().buffers : 0),
      dialer_(std::move(dial), clock, thread, *this) {
  lending_hello_ = std::move(hello);
  if (lender_ != nullptr) {
    lending_hello_.outbox = lender_->outbox().card;
    lending_hello_.outbox_buffer_bytes = lender_->outbox().buffer_bytes;
  }
  local_hello_ = EncodeLaneMessage(lending_hello_);
}

Sender::~Sender() = default;

RankFigures Sender::Figures() const {
  RankFigures out{.bytes = counters_.bytes,
                  .slots = counters_.slots,
                  .nanoseconds = counters_.nanoseconds,
                  .waiting = counters_.waiting,
                  .peers_lost = counters_.peers_lost,
                  .self_tests_failed = dialer_.failed_self_tests()};
  for (const PeerPath& path : dialer_.paths())
    out.ways.push_back({path.incarnation, path.transport, path.path, path.gigabytes_per_second});
  return out;
}

void Sender::Connect(prefill::PeerId peer, const std::string& addresses) {
  peers_[peer];
  dialer_.Dial(peer, addresses);
}

void Sender::OnReached(prefill::PeerId id, Way way) {
  Peer& peer = peers_.at(id);
  peer.way = way;
  way.transport->Send(way.number, HelloBy(*way.transport), [](const absl::Status&) {});
  for (const auto& work : std::exchange(peer.waiting, {})) work();
}

/// With what the transport lends of the device's memory; it is asked once.
const std::string& Sender::HelloBy(Transport& transport) {
  if (lender_ == nullptr || MayLend(transport)) return local_hello_;
  const auto [known, fresh] = hellos_.try_emplace(&transport, hello_);
  if (!fresh) return known->second;
  const KvDeviceRooms rooms = lender_->rooms();
  absl::StatusOr<std::string> lent = absl::UnimplementedError("");
  if (!rooms.outbox.empty()) lent = transport.Lend(rooms.outbox);
  if (lent.ok()) {
    LogInfo("sender: peers by {} read KV from this GPU's memory, {} bytes, where it arrives", transport.name(),
            rooms.outbox.size());
    lending_hello_.outbox =
        LentOutbox{rooms.outbox.size(), rooms.mark.size(), MarkDigest(rooms.mark), *std::move(lent)}.Pack();
    known->second = EncodeLaneMessage(lending_hello_);
  } else if (!absl::IsUnimplemented(lent.status())) {
    LogInfo("sender: KV is staged through host memory for peers by {}: {}", transport.name(),
            View(lent.status().message()));
  }
  return known->second;
}

Sender::Peer* Sender::Find(prefill::PeerId peer) {
  const auto found = peers_.find(peer);
  return found == peers_.end() ? nullptr : &found->second;
}

bool Sender::Waits(prefill::PeerId id, std::function<void()> work) {
  Peer* peer = Find(id);
  if (peer == nullptr || peer->reached()) return false;
  peer->waiting.push_back(std::move(work));
  return true;
}

void Sender::OnPeerLost(prefill::PeerId id, const absl::Status& why) {
  ++counters_.peers_lost;
  peers_.erase(id);
  DropWaiting(id);
  TakeBack(id, [](const SlotOfLane&) { return true; });
  events_.OnPush(prefill::PeerLost{id, std::string(why.message())});
}

void Sender::OnPeerMessage(prefill::PeerId id, std::string_view bytes) {
  absl::StatusOr<LaneMessage> message = DecodeLaneMessage(bytes);
  if (message.ok() && std::holds_alternative<SelfTestMessage>(*message)) return;  // a late one
  if (message.ok() && !std::holds_alternative<ToPrefill>(*message))
    message = absl::InvalidArgumentError("a message for the other side");
  if (!message.ok()) return dialer_.Drop(id, message.status());
  ToPrefill& lane = std::get<ToPrefill>(*message);
  if (const auto* bound = std::get_if<LaneBound>(&lane); bound != nullptr && bound->reads_outbox) OnReadsOutbox(id);
  if (const auto* free = std::get_if<SlotFree>(&lane)) {
    Arrive(id, free->lane, 1);
    const SlotOfLane answered{free->lane, {free->grant.slot, free->grant.turn - 1}};
    TakeBack(id, [&](const SlotOfLane& slot) { return slot == answered; });
  }
  if (const auto* ended = std::get_if<LaneClosedAck>(&lane))
    TakeBack(id, [&](const SlotOfLane& slot) { return slot.first == ended->lane; });
  events_.OnPush(prefill::FromDecode{id, std::move(lane)});
}

void Sender::Send(prefill::PeerId id, const ToDecode& message) {
  if (Waits(id, [this, id, message] { Send(id, message); })) return;
  if (Peer* peer = Find(id))
    peer->way.transport->Send(peer->way.number, EncodeLaneMessage(message), [](const absl::Status&) {});
}

void Sender::Depart(prefill::PeerId peer, const LaneKey& lane) {
  if (under_way_.empty()) under_way_since_ = clock_.Now();
  ++under_way_[{peer, lane}];
}

void Sender::Arrive(prefill::PeerId peer, const LaneKey& lane, int slots) {
  const auto found = under_way_.find({peer, lane});
  if (found == under_way_.end()) return;
  found->second -= slots;
  if (found->second <= 0) under_way_.erase(found);
  if (under_way_.empty()) counters_.nanoseconds += (clock_.Now() - under_way_since_).count();
}

void Sender::Write(WriteOrder order) {
  if (Find(order.peer) == nullptr) {
    return events_.OnPush(
        prefill::Written{order.peer, order.lane, order.slot, absl::UnavailableError("the decode worker was lost")});
  }
  std::optional<Room> room;
  if (!waiting_.contains(order.peer)) room = RoomFor(order);
  if (!room) {
    ++counters_.waiting;
    return waiting_[order.peer].push_back(std::move(order));
  }
  Begin(std::move(order), *std::move(room));
}

std::optional<Sender::Room> Sender::RoomFor(const WriteOrder& order) {
  const Peer& peer = *Find(order.peer);
  const std::span<std::byte> there = peer.way.transport->slot_of(peer.way.number, order.slot.slot);
  std::optional<Buffer> lent;
  if (peer.reads_outbox) lent = outbox_.Take(order.peer);
  if (peer.reads_outbox && !lent && outbox_.Holds(order.peer)) return std::nullopt;
  // Staged, where all are others', who may be frozen: nobody waits for another's answers.
  if (!there.empty()) return Room{there, nullptr, std::move(lent)};
  std::optional<Buffer> bounce = buffers_.Take(order.peer);
  if (!bounce) return std::nullopt;
  auto held = std::make_shared<Buffer>(*std::move(bounce));
  return Room{held->bytes(), held, std::move(lent)};
}

void Sender::BeginWaiting() {
  for (bool begun = true; begun && !waiting_.empty();) {
    begun = false;
    for (size_t i = waiting_.size(); i > 0 && !waiting_.empty(); --i) {
      auto next = waiting_.upper_bound(begun_last_);
      if (next == waiting_.end()) next = waiting_.begin();
      begun_last_ = next->first;
      std::optional<Room> room = RoomFor(next->second.front());
      if (!room) continue;
      WriteOrder order = std::move(next->second.front());
      next->second.pop_front();
      --counters_.waiting;
      if (next->second.empty()) waiting_.erase(next);
      Begin(std::move(order), *std::move(room));
      begun = true;
    }
  }
}

/// `lane` null: all of them.
void Sender::DropWaiting(prefill::PeerId peer, const LaneKey* lane) {
  const auto found = waiting_.find(peer);
  if (found == waiting_.end()) return;
  counters_.waiting -= static_cast<int64_t>(
      std::erase_if(found->second, [lane](const WriteOrder& order) { return lane == nullptr || order.lane == *lane; }));
  if (found->second.empty()) waiting_.erase(found);
}

/// As if the prompt's blocks had changed hands too early: they are read in another order. (Never another prompt's, for
/// digests know positions, not prompts.)
void Sender::SpoilSource(WriteOrder& order) {
  if (std::uniform_real_distribution<double>(0, 1)(random_) >= source_fault_rate_) return;
  for (std::vector<int32_t>& blocks : order.tables) std::ranges::reverse(blocks);
}

absl::StatusOr<uint64_t> Sender::Gather(const WriteOrder& order, const Room& room) {
  OutboxRoom outbox;
  if (room.outbox) outbox.buffer = outbox.named = static_cast<uint32_t>(room.outbox->number());
  // As if the decode worker read it at the wrong time: another slot's.
  if (room.outbox && std::uniform_real_distribution<double>(0, 1)(random_) < source_fault_rate_)
    outbox.named = static_cast<uint32_t>((outbox.named + 1) % outbox_.size());
  return GatherSlot(*order.plan, order.plan->lanes()[order.lane.lane], order.lane, order.slot.turn, order.segments,
                    pool_, order.tables, room.slot, room.outbox ? &outbox : nullptr);
}

/// It says so with every lane.
void Sender::OnReadsOutbox(prefill::PeerId id) {
  Peer* peer = Find(id);
  if (lender_ == nullptr || peer == nullptr || std::exchange(peer->reads_outbox, true)) return;
  dialer_.AddToPath(id, MayLend(*peer->way.transport) ? "CUDA IPC" : "the GPU's memory");
}

template <class AreRead>
void Sender::TakeBack(prefill::PeerId peer, AreRead are_read) {
  const auto found = lent_.find(peer);
  if (found == lent_.end()) return;
  const size_t read = std::erase_if(found->second, [&](const auto& one) { return are_read(one.first); });
  if (found->second.empty()) lent_.erase(found);
  if (read > 0 && !waiting_.empty()) thread_.Post([this] { BeginWaiting(); });
}

void Sender::Begin(WriteOrder order, Room room) {
  if (source_fault_rate_ > 0) SpoilSource(order);
  Depart(order.peer, order.lane);
  const absl::StatusOr<uint64_t> bytes = Gather(order, room);
  if (!bytes.ok()) {
    Arrive(order.peer, order.lane, 1);
    if (!waiting_.empty()) thread_.Post([this] { BeginWaiting(); });  // for the buffer that it did not need
    LogWarning("sender: ticket {} epoch {} lane {}: {}", order.lane.ticket, order.lane.epoch, order.lane.lane,
               View(bytes.status().message()));
    const absl::Status why = absl::DataLossError(bytes.status().message());  // whatever it was: decode hears of no slot
    return events_.OnPush(prefill::Written{order.peer, order.lane, order.slot, why});
  }
  const Way way = Find(order.peer)->way;
  int64_t kv_bytes = 0;  // without header, entries and padding: what the other side places
  for (const uint32_t segment : order.segments)
    kv_bytes += order.plan->SegmentBytes(order.plan->lanes()[order.lane.lane], static_cast<int>(segment));
  const SlotOfLane written{order.lane, order.slot};
  if (room.outbox) lent_[order.peer].emplace(written, *std::move(room.outbox));
  std::shared_ptr<Buffer> buffer = std::move(room.bounce);
  const auto place = LandingPlace{order.lane, order.slot};
  way.transport->Write(way.number, place, room.slot.first(*bytes),
                       [this, buffer, kv_bytes, written, tell = order.tell, full = std::move(order.segments),
                        event = prefill::Written{order.peer, order.lane, order.slot, {}, false, order.may_wait}](
                           const absl::Status& status) mutable {
                         buffer.reset();
                         event.status = status;
                         if (status.ok()) {
                           counters_.bytes += kv_bytes;
                           ++counters_.slots;
                           event.told = tell && TellFull(event, std::move(full));
                         } else {
                           Arrive(event.peer, event.lane, 1);
                           TakeBack(event.peer, [&](const SlotOfLane& one) { return one == written; });
                         }
                         events_.OnPush(event);
                         if (!waiting_.empty()) thread_.Post([this] { BeginWaiting(); });
                       });
  if (PlantedBug("bounce buffer returned early") && buffer) const Buffer early = std::move(*buffer);
}

/// Behind the bytes. False: there is nobody any more.
bool Sender::TellFull(const prefill::Written& written, std::vector<uint32_t> segments) {
  if (Find(written.peer) == nullptr) return false;
  Send(written.peer, SlotFull{written.lane, written.slot, std::move(segments)});
  return true;
}

void Sender::Flush(prefill::PeerId id, const LaneKey& lane) {
  if (Waits(id, [this, id, lane] { Flush(id, lane); })) return;
  DropWaiting(id, &lane);
  Arrive(id, lane, 1 << 30);
  events_.OnPush(prefill::Drained{id, lane});
  Peer* peer = Find(id);
  if (peer == nullptr) return events_.OnPush(prefill::Flushed{id, lane, false});
  peer->way.transport->Flush(peer->way.number, [this, id, lane](const absl::Status& status) {
    events_.OnPush(prefill::Flushed{id, lane, status.ok()});
  });
}

void Sender::Cut(prefill::PeerId id) {
  Peer* peer = Find(id);
  if (peer == nullptr || !peer->reached() || peer->way.transport->fence() == FenceKind::kPeerExit) return;
  dialer_.Drop(id, absl::DeadlineExceededError("it answers nothing"));
}

}  // namespace baton::prefill_worker
