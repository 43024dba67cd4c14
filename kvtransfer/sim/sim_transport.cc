#include "kvtransfer/sim/sim_transport.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "common/status.h"

namespace baton {
// ---- the network

/// The next piece of a slot arrives at its receiver.
void SimNetwork::Land(SimTransport& at, Flight& flight) {
  const size_t piece = std::min(pace_.piece_bytes, flight.size - flight.landed);
  const PeerNumber writer = flight.wire->numbers[flight.to];
  const bool asked = at.events_.MayLand(writer, flight.place), may = asked || at.fence_ != FenceKind::kReceiverWrites;
  if (may && piece > 0) {
    std::memcpy(at.memory_.data() + flight.place.slot.slot * at.shape_.slot_bytes + flight.landed,
                flight.bytes() + flight.landed, piece);
  }
  flight.landed += piece;
  flight.wait = Below(pace_.most_turns);
  if (flight.landed == flight.size && std::exchange(flight.again, false)) {
    flight.landed = 0;
    ++counters_.duplicates;
  }
}

bool SimNetwork::Outstanding(const Wire& wire, int to, uint64_t before) const {
  return std::any_of(flights_.begin(), flights_.end(), [&](const auto& f) {
    return f->wire.get() == &wire && f->to == to && f->write < before && !f->failed;
  });
}

// ---- one transport

SimTransport::SimTransport(std::shared_ptr<SimNetwork> network, FenceKind fence, LandingShape landing,
                           TransportEvents& events)
    : network_(std::move(network)),
      fence_(fence),
      shape_(landing),
      events_(events),
      address_(StrCat("sim:", network_->next_address_++)),
      memory_(landing.slots * landing.slot_bytes) {
  network_->listeners_[address_] = this;
}

SimTransport::~SimTransport() {
  network_->listeners_.erase(address_);
  for (auto& [number, peer] : peers_) {
    peer.wire->fenced[peer.end] = true;
    Break(*peer.wire);
    peer.wire->ends[peer.end] = nullptr;
    for (const auto& flight : network_->flights_) {
      if (flight->wire == peer.wire && flight->to != peer.end) {  // nobody to tell
        flight->Fail();
        flight->done = nullptr;
      }
    }
  }
  for (auto& [number, peer] : peers_) peer.wire->exited[peer.end] = true;
  for (auto& [number, lost] : lost_) lost.first->exited[lost.second] = true;
  for (auto& [number, leaving] : leaving_) {
    leaving.wire->exited[leaving.end] = leaving.wire->fenced[leaving.end] = true;
    leaving.wire->ends[leaving.end] = nullptr;
  }
  for (auto& [number, lost] : lost_) {
    lost.first->fenced[lost.second] = true;
    lost.first->ends[lost.second] = nullptr;
  }
  std::erase_if(network_->flights_, [this](const auto& f) {
    const bool writes_no_more = fence_ == FenceKind::kPeerExit && f->wire->exited[1 - f->to];
    return f->failed && (f->wire->fenced[f->to] || writes_no_more);
  });
}

PeerNumber SimTransport::Add(std::shared_ptr<Wire> wire, int end) {
  const PeerNumber number = next_peer_++;
  wire->ends[end] = this;
  wire->numbers[end] = number;
  SimNetwork::Packet hello{.greeting = true, .due = network_->Below(network_->pace_.most_turns)};
  hello.bytes.assign(reinterpret_cast<const char*>(&shape_), sizeof(shape_));
  wire->queue[1 - end].push_back(std::move(hello));
  Peer& peer = peers_[number];
  peer.wire = std::move(wire);
  peer.end = end;
  peer.dialled = end == 0;
  return number;
}

absl::StatusOr<PeerNumber> SimTransport::Connect(std::string_view address) {
  if (!address.starts_with("sim:")) return absl::InvalidArgumentError(StrCat("'", address, "' is no sim address"));
  const auto listener = network_->listeners_.find(std::string(address));
  if (listener == network_->listeners_.end()) return absl::UnavailableError(StrCat("nobody listens at ", address));
  auto wire = std::make_shared<Wire>();
  const PeerNumber ours = Add(wire, 0);
  listener->second->Add(wire, 1);
  return ours;
}

SimTransport::Peer* SimTransport::Find(PeerNumber peer) {
  const auto found = peers_.find(peer);
  return found == peers_.end() ? nullptr : &found->second;
}

LandingShape SimTransport::landing_of(PeerNumber peer) const {
  const auto found = peers_.find(peer);
  return found == peers_.end() ? LandingShape{} : found->second.landing;
}

void SimTransport::Write(PeerNumber number, const LandingPlace& place, std::span<const std::byte> bytes, Done done) {
  Peer* peer = Find(number);
  if (peer == nullptr) return Later([done = std::move(done)] { done(absl::UnavailableError("no such peer")); });
  auto flight = std::make_unique<SimNetwork::Flight>();
  flight->wire = peer->wire;
  flight->to = 1 - peer->end;
  flight->write = peer->wire->next_write[peer->end]++;
  flight->place = place;
  flight->source = bytes;
  flight->size = bytes.size();
  flight->wait = network_->Below(network_->pace_.most_turns);
  flight->again = network_->Below(4) == 0;
  flight->done = std::move(done);
  if (!peer->greeted) return peer->early.push_back(std::move(flight));
  Fly(std::move(flight));
}

/// The peer's greeting is here.
void SimTransport::Fly(std::unique_ptr<SimNetwork::Flight> flight) {
  const LandingShape landing = landing_of(flight->wire->numbers[1 - flight->to]);
  if (flight->place.slot.slot < landing.slots && flight->source.size() <= landing.slot_bytes) {
    return network_->flights_.push_back(std::move(flight));
  }
  const absl::Status refused =
      absl::InvalidArgumentError(StrCat(flight->source.size(), " bytes for slot ", flight->place.slot.slot,
                                        ", the peer has ", landing.slots, " of ", landing.slot_bytes));
  Later([refused, done = std::move(flight->done)] { done(refused); });
}

void SimTransport::Send(PeerNumber number, std::string message, Done done) {
  Peer* peer = Find(number);
  const absl::Status status = peer == nullptr ? absl::UnavailableError("no such peer") : absl::OkStatus();
  if (peer != nullptr) {
    std::deque<SimNetwork::Packet>& queue = peer->wire->queue[1 - peer->end];
    const SimTransport* there = peer->wire->ends[1 - peer->end];
    const uint64_t due = (there == nullptr ? 0 : there->turn_) + network_->Below(network_->pace_.most_turns);
    queue.push_back({false, std::move(message), due, peer->wire->next_write[peer->end]});
  }
  if (done) Later([status, done = std::move(done)] { done(status); });
}

void SimTransport::Flush(PeerNumber number, Done done) {
  Peer* peer = Find(number);
  if (peer == nullptr) return Later([done = std::move(done)] { done(absl::UnavailableError("no such peer")); });
  peer->flushes.emplace_back(peer->wire->next_write[peer->end], std::move(done));
}

void SimTransport::Break(Wire& wire) { wire.broken = true; }

void SimTransport::FailAll(Peer& peer) {
  const absl::Status why = absl::UnavailableError("the connection broke");
  for (auto& flight : std::exchange(peer.early, {})) flight->done(why);
  std::vector<Done> dones;
  for (auto& flight : network_->flights_) {
    if (flight->wire != peer.wire || flight->to == peer.end || flight->failed) continue;
    flight->Fail();
    if (flight->done) dones.push_back(std::exchange(flight->done, nullptr));
    const SimTransport* there = peer.wire->ends[flight->to];
    if (there == nullptr || there->fence_ == FenceKind::kReceiverWrites) {
      flight->landed = flight->size = 0;  // what was on its way is lost
    } else {
      flight->wait += network_->Below(40);
      if (network_->Below(2) == 0) flight->size = flight->landed + network_->Below(flight->size - flight->landed + 1);
    }
  }
  for (auto& [write, done] : std::exchange(peer.flushes, {})) dones.push_back(std::move(done));
  for (Done& done : dones) done(why);
}

/// Of a peer that is connected, lost or closed already: its writes may still land.
void SimTransport::AwaitExit(PeerNumber number, std::function<void()> fenced) {
  if (auto node = peers_.extract(number); !node.empty()) {
    Break(*node.mapped().wire);
    FailAll(node.mapped());
    leaving_[number] = {node.mapped().wire, node.mapped().end, {}};
  } else if (auto lost = lost_.extract(number); !lost.empty()) {
    leaving_[number] = {lost.mapped().first, lost.mapped().second, {}};
  }
  const auto leaving = leaving_.find(number);
  if (leaving == leaving_.end()) return Later(std::move(fenced));
  leaving->second.fenced.push_back(std::move(fenced));
}

/// The wire's end stays ours.
void SimTransport::Release(PeerNumber number) {
  if (const auto leaving = leaving_.find(number); leaving != leaving_.end()) leaving->second.fenced.clear();
}

void SimTransport::EndLeaving() {
  std::vector<std::function<void()>> fenced;
  std::erase_if(leaving_, [&](const auto& entry) {
    const Leaving& leaving = entry.second;
    if (!leaving.wire->exited[1 - leaving.end]) return false;
    leaving.wire->fenced[leaving.end] = true;
    leaving.wire->ends[leaving.end] = nullptr;
    fenced.insert(fenced.end(), leaving.fenced.begin(), leaving.fenced.end());
    return true;
  });
  for (const auto& one : fenced) one();
  moved_ |= !fenced.empty();
}

void SimTransport::Close(PeerNumber number, std::function<void()> fenced) {
  if (fence_ == FenceKind::kPeerExit) return AwaitExit(number, std::move(fenced));
  auto node = peers_.extract(number);
  if (!node.empty()) {
    Peer& peer = node.mapped();
    peer.wire->fenced[peer.end] = true;
    Break(*peer.wire);
    FailAll(peer);
    peer.wire->ends[peer.end] = nullptr;
  } else if (auto lost = lost_.extract(number); !lost.empty()) {
    const auto& [wire, end] = lost.mapped();
    wire->fenced[end] = true;
    wire->ends[end] = nullptr;
  }
  fenced();
}

/// The packets whose time has come, in their order.
void SimTransport::Take(PeerNumber number) {
  for (;;) {
    Peer* peer = Find(number);
    if (peer == nullptr) return;
    const int end = peer->end;
    std::deque<SimNetwork::Packet>& queue = peer->wire->queue[end];
    if (!peer->wire->broken && (queue.empty() || queue.front().due > turn_)) return;
    const std::shared_ptr<Wire> wire = peer->wire;  // events may end the peer
    if (wire->broken) {
      auto lost = peers_.extract(number);
      FailAll(lost.mapped());
      lost_[number] = {wire, end};
      moved_ = true;
      return events_.OnLost(number, absl::UnavailableError("the connection broke"));
    }
    const SimNetwork::Packet packet = std::move(queue.front());
    queue.pop_front();
    moved_ = true;
    if (packet.greeting) {
      std::memcpy(&peer->landing, packet.bytes.data(), sizeof(peer->landing));
      peer->greeted = true;
      for (auto& flight : std::exchange(peer->early, {})) Fly(std::move(flight));
      if (!peer->dialled) events_.OnConnected(number);
    } else {
      network_->counters_.overtakes += network_->Outstanding(*wire, end, packet.writes_before);
      events_.OnMessage(number, packet.bytes);
    }
  }
}

/// Slots on their way to us; in no order.
void SimTransport::MoveFlights() {
  auto& flights = network_->flights_;
  std::shuffle(flights.begin(), flights.end(), network_->random_);
  std::vector<std::unique_ptr<SimNetwork::Flight>> ended;
  for (auto& flight : flights) {
    Wire& wire = *flight->wire;
    const bool here = wire.ends[flight->to] == this || (wire.ends[flight->to] == nullptr && wire.fenced[flight->to]);
    if (!here) continue;
    if (!wire.fenced[flight->to]) {
      if (wire.broken && !flight->failed) continue;  // its sender will say so first
      if (flight->wait > 0) {
        --flight->wait;
        continue;
      }
      if (flight->size > flight->landed) {
        network_->Land(*this, *flight);
        moved_ = true;
      }
      if (flight->landed < flight->size) continue;
      if (flight->failed && flight->size > 0) {
        ++network_->counters_.late_landings;
        network_->counters_.torn_landings += flight->size < flight->source.size();
      }
    } else if (!flight->failed) {
      continue;  // fenced off; its sender hears of the break
    }
    ended.push_back(std::move(flight));
  }
  std::erase(flights, nullptr);
  for (auto& flight : ended) {
    SimTransport* sender = flight->wire->ends[1 - flight->to];
    if (sender != nullptr && flight->done) sender->Later([done = std::move(flight->done)] { done(absl::OkStatus()); });
  }
}

void SimTransport::EndFlushes() {
  for (auto& [number, peer] : peers_) {
    for (size_t i = 0; i < peer.flushes.size();) {
      const bool early = std::any_of(peer.early.begin(), peer.early.end(),
                                     [&](const auto& f) { return f->write < peer.flushes[i].first; });
      if (early || network_->Outstanding(*peer.wire, 1 - peer.end, peer.flushes[i].first)) {
        ++i;
        continue;
      }
      Later([done = std::move(peer.flushes[i].second)] { done(absl::OkStatus()); });
      peer.flushes.erase(peer.flushes.begin() + static_cast<ptrdiff_t>(i));
    }
  }
}

bool SimTransport::Progress() {
  ++turn_;
  moved_ = !later_.empty();
  for (auto& work : std::exchange(later_, {})) work();
  MoveFlights();
  EndFlushes();
  EndLeaving();
  turned_.clear();
  for (const auto& [number, peer] : peers_) turned_.push_back(number);
  for (PeerNumber number : turned_) Take(number);
  return moved_;
}

}  // namespace baton
