#include "prefill_worker/sender.h"

#include <algorithm>
#include <utility>

#include "common/status.h"
#include "kvtransfer/faulty_transport.h"
#include "spdlog/spdlog.h"
#include "worker/transports.h"

namespace baton::prefill_worker {
namespace {

constexpr size_t kBuffers = 16;

}  // namespace

class Sender::Link final : public TransportEvents {
 public:
  explicit Link(Sender& sender) : sender_(sender) {}
  void OnConnected(PeerNumber) override {}
  void OnMessage(PeerNumber peer, std::string_view message) override { sender_.OnMessage(*this, peer, message); }
  void OnLost(PeerNumber peer, const absl::Status& why) override { sender_.Lose(*this, peer, why); }
  bool MayLand(PeerNumber, const LandingPlace&) override { return false; }  // nobody writes here

  std::map<PeerNumber, prefill::PeerId> ids;
  std::unique_ptr<Transport> transport;

 private:
  Sender& sender_;
};

Sender::Sender(std::string host, size_t slot_bytes, double fault_rate, KvPoolView pool, LaneHello hello,
               const Clock& clock, worker::TransferThread& thread, SenderEvents& events)
    : host_(std::move(host)),
      fault_rate_(fault_rate),
      pool_(std::move(pool)),
      hello_(EncodeLaneMessage(std::move(hello))),
      clock_(clock),
      thread_(thread),
      events_(events),
      memory_(kBuffers * slot_bytes),
      buffers_(memory_, slot_bytes) {}

Sender::~Sender() = default;

absl::StatusOr<Sender::Link*> Sender::LinkFor(const std::string& kind) {
  std::unique_ptr<Link>& link = links_[kind];
  if (link == nullptr) {
    auto fresh = std::make_unique<Link>(*this);
    BATON_ASSIGN_OR_RETURN(fresh->transport, worker::MakeTransport(kind, host_, 0, {}, *fresh));
    if (fault_rate_ > 0)
      fresh->transport = std::make_unique<FaultyTransport>(std::move(fresh->transport), fault_rate_, 1);
    thread_.Watch(fresh->transport.get());
    link = std::move(fresh);
  }
  return link.get();
}

void Sender::Connect(prefill::PeerId id, const std::string& address) {
  absl::StatusOr<Link*> link = LinkFor(address.substr(0, address.find(':')));
  absl::StatusOr<PeerNumber> number = link.ok() ? (*link)->transport->Connect(address) : link.status();
  if (!number.ok()) {
    spdlog::warn("sender: no connection to {}: {}", address, View(number.status().message()));
    return events_.OnPush(prefill::PeerLost{id});
  }
  (*link)->ids[*number] = id;
  peers_[id] = {(*link)->transport.get(), *number};
  peers_[id].transport->Send(*number, hello_, [](const absl::Status&) {});
}

Sender::Peer* Sender::Find(prefill::PeerId peer) {
  const auto found = peers_.find(peer);
  return found == peers_.end() ? nullptr : &found->second;
}

void Sender::Lose(Link& link, PeerNumber number, const absl::Status& why) {
  const auto id = link.ids.extract(number);
  if (id.empty()) return;
  spdlog::info("sender: a decode worker is gone: {}", View(why.message()));
  peers_.erase(id.mapped());
  std::erase_if(waiting_, [&](const WriteOrder& order) { return order.peer == id.mapped(); });
  events_.OnPush(prefill::PeerLost{id.mapped()});
  thread_.Post([&link, number] { link.transport->Close(number, [] {}); });
}

void Sender::OnMessage(Link& link, PeerNumber number, std::string_view bytes) {
  const auto id = link.ids.find(number);
  if (id == link.ids.end()) return;
  absl::StatusOr<LaneMessage> message = DecodeLaneMessage(bytes);
  if (message.ok() && !std::holds_alternative<ToPrefill>(*message))
    message = absl::InvalidArgumentError("a message for the other side");
  if (!message.ok()) return Lose(link, number, message.status());
  ToPrefill& lane = std::get<ToPrefill>(*message);
  if (const auto* free = std::get_if<SlotFree>(&lane)) Arrive(id->second, free->lane, 1);
  events_.OnPush(prefill::FromDecode{id->second, std::move(lane)});
}

void Sender::Send(prefill::PeerId id, const ToDecode& message) {
  if (Peer* peer = Find(id))
    peer->transport->Send(peer->number, EncodeLaneMessage(message), [](const absl::Status&) {});
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
  std::optional<BouncePool::Buffer> buffer = buffers_.Take();
  if (!buffer) return waiting_.push_back(std::move(order));
  Begin(std::move(order), *std::move(buffer));
}

void Sender::Begin(WriteOrder order, BouncePool::Buffer taken) {
  Depart(order.peer, order.lane);
  auto buffer = std::make_shared<BouncePool::Buffer>(std::move(taken));
  const absl::StatusOr<uint64_t> bytes =
      GatherSlot(*order.plan, order.plan->lanes()[order.lane.lane], order.lane, order.slot.turn, order.segments, pool_,
                 order.tables, buffer->bytes());
  if (!bytes.ok()) {
    Arrive(order.peer, order.lane, 1);
    spdlog::warn("sender: ticket {} epoch {} lane {}: {}", order.lane.ticket, order.lane.epoch, order.lane.lane,
                 View(bytes.status().message()));
    const absl::Status why = absl::DataLossError(bytes.status().message());  // whatever it was: nothing was written
    return events_.OnPush(prefill::Written{order.peer, order.lane, order.slot, why});
  }
  Peer& peer = *Find(order.peer);
  peer.transport->Write(peer.number, {order.lane, order.slot}, buffer->bytes().first(*bytes),
                        [this, buffer, bytes = *bytes, id = order.peer, lane = order.lane,
                         slot = order.slot](const absl::Status& status) mutable {
                          buffer.reset();
                          if (status.ok())
                            counters_.bytes += static_cast<int64_t>(bytes), ++counters_.slots;
                          else
                            Arrive(id, lane, 1);
                          events_.OnPush(prefill::Written{id, lane, slot, status});
                          thread_.Post([this] {
                            if (waiting_.empty()) return;
                            WriteOrder next = std::move(waiting_.front());
                            waiting_.pop_front();
                            Write(std::move(next));
                          });
                        });
}

void Sender::Flush(prefill::PeerId id, const LaneKey& lane) {
  std::erase_if(waiting_, [&](const WriteOrder& order) { return order.peer == id && order.lane == lane; });
  Arrive(id, lane, 1 << 30);
  Peer* peer = Find(id);
  if (peer == nullptr) return events_.OnPush(prefill::Flushed{id, lane, false});
  peer->transport->Flush(peer->number, [this, id, lane](const absl::Status& status) {
    events_.OnPush(prefill::Flushed{id, lane, status.ok()});
  });
}

}  // namespace baton::prefill_worker
