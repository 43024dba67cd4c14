#include "prefill_worker/sender.h"

#include <algorithm>
#include <utility>

#include "common/log.h"
#include "common/planted_bug.h"
#include "common/status.h"

namespace baton::prefill_worker {
namespace {

constexpr size_t kBuffers = 16;

}  // namespace

Sender::Sender(DialOptions dial, size_t slot_bytes, KvPoolView pool, LaneHello hello, const Clock& clock,
               worker::TransferLoop& thread, SenderEvents& events)
    : pool_(std::move(pool)),
      hello_(EncodeLaneMessage(std::move(hello))),
      clock_(clock),
      thread_(thread),
      events_(events),
      source_fault_rate_(dial.fault_rate / 4),
      memory_(kBuffers * slot_bytes),
      buffers_(memory_, slot_bytes),
      dialer_(std::move(dial), clock, thread, *this) {}

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
  way.transport->Send(way.number, hello_, [](const absl::Status&) {});
  for (const auto& work : std::exchange(peer.waiting, {})) work();
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
  events_.OnPush(prefill::PeerLost{id, std::string(why.message())});
}

void Sender::OnPeerMessage(prefill::PeerId id, std::string_view bytes) {
  absl::StatusOr<LaneMessage> message = DecodeLaneMessage(bytes);
  if (message.ok() && std::holds_alternative<SelfTestMessage>(*message)) return;  // a late one
  if (message.ok() && !std::holds_alternative<ToPrefill>(*message))
    message = absl::InvalidArgumentError("a message for the other side");
  if (!message.ok()) return dialer_.Drop(id, message.status());
  ToPrefill& lane = std::get<ToPrefill>(*message);
  if (const auto* free = std::get_if<SlotFree>(&lane)) Arrive(id, free->lane, 1);
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
  const Way way = Find(order.peer)->way;
  const std::span<std::byte> there = way.transport->slot_of(way.number, order.slot.slot);
  if (!there.empty()) return Begin(std::move(order), nullptr, there);
  std::optional<BouncePool::Buffer> buffer;
  if (!waiting_.contains(order.peer)) buffer = buffers_.Take(order.peer);
  if (!buffer) {
    ++counters_.waiting;
    return waiting_[order.peer].push_back(std::move(order));
  }
  auto held = std::make_shared<BouncePool::Buffer>(*std::move(buffer));
  Begin(std::move(order), held, held->bytes());
}

void Sender::BeginWaiting() {
  for (bool begun = true; begun && !waiting_.empty();) {
    begun = false;
    for (size_t i = waiting_.size(); i > 0 && !waiting_.empty(); --i) {
      auto next = waiting_.upper_bound(begun_last_);
      if (next == waiting_.end()) next = waiting_.begin();
      begun_last_ = next->first;
      std::optional<BouncePool::Buffer> buffer = buffers_.Take(begun_last_);
      if (!buffer) continue;
      WriteOrder order = std::move(next->second.front());
      next->second.pop_front();
      --counters_.waiting;
      if (next->second.empty()) waiting_.erase(next);
      auto held = std::make_shared<BouncePool::Buffer>(*std::move(buffer));
      Begin(std::move(order), held, held->bytes());
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

void Sender::Begin(WriteOrder order, std::shared_ptr<BouncePool::Buffer> buffer, std::span<std::byte> slot_bytes) {
  if (source_fault_rate_ > 0) SpoilSource(order);
  Depart(order.peer, order.lane);
  const absl::StatusOr<uint64_t> bytes = GatherSlot(*order.plan, order.plan->lanes()[order.lane.lane], order.lane,
                                                    order.slot.turn, order.segments, pool_, order.tables, slot_bytes);
  if (!bytes.ok()) {
    Arrive(order.peer, order.lane, 1);
    LogWarning("sender: ticket {} epoch {} lane {}: {}", order.lane.ticket, order.lane.epoch, order.lane.lane,
               View(bytes.status().message()));
    const absl::Status why = absl::DataLossError(bytes.status().message());  // whatever it was: decode hears of no slot
    return events_.OnPush(prefill::Written{order.peer, order.lane, order.slot, why});
  }
  const Way way = Find(order.peer)->way;
  int64_t kv_bytes = 0;  // without header, entries and padding: what the other side places
  for (const uint32_t segment : order.segments)
    kv_bytes += order.plan->SegmentBytes(order.plan->lanes()[order.lane.lane], static_cast<int>(segment));
  way.transport->Write(way.number, {order.lane, order.slot}, slot_bytes.first(*bytes),
                       [this, buffer, kv_bytes, id = order.peer, lane = order.lane,
                        slot = order.slot](const absl::Status& status) mutable {
                         buffer.reset();
                         if (status.ok()) {
                           counters_.bytes += kv_bytes;
                           ++counters_.slots;
                         } else {
                           Arrive(id, lane, 1);
                         }
                         events_.OnPush(prefill::Written{id, lane, slot, status});
                         if (!waiting_.empty()) thread_.Post([this] { BeginWaiting(); });
                       });
  if (PlantedBug("bounce buffer returned early") && buffer) const BouncePool::Buffer early = std::move(*buffer);
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
