#include "sim/link_network.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "common/str_cat.h"

namespace baton::sim {
namespace {

/// A connection: end 0 has dialled.
struct Wire {
  LinkTransport* ends[2] = {nullptr, nullptr};  ///< null: closed or gone
  PeerNumber numbers[2] = {0, 0};
  TimePoint order[2]{};  ///< to that end: a message arrives after the one before
};

Duration Takes(double bytes, const LinkTerms& terms) {
  return Duration(static_cast<Duration::rep>(bytes / terms.bytes_per_s * 1e9));
}

}  // namespace

class LinkTransport final : public Transport {
 public:
  LinkTransport(LinkNetwork& network, const LandingShape& shape, TransportEvents& events, std::function<void()> wake)
      : network_(network),
        time_(network.time_),
        shape_(shape),
        events_(events),
        wake_(std::move(wake)),
        address_(StrCat("link:", network.next_address_++)),
        memory_(shape.slots * shape.slot_bytes),
        use_(network.ports_.emplace_back(std::make_shared<PortUse>())) {
    network_.listeners_[address_] = this;
  }
  ~LinkTransport() override {
    network_.listeners_.erase(address_);
    *alive_ = false;
    for (auto& [number, peer] : peers_) Part(*peer.wire, peer.end);
  }

  std::string_view name() const override { return "link"; }
  FenceKind fence() const override { return FenceKind::kForcedClose; }
  std::string address() const override { return address_; }
  std::span<std::byte> landing() override { return memory_; }
  absl::StatusOr<PeerNumber> Connect(std::string_view address) override;
  LandingShape landing_of(PeerNumber peer) const override {
    const auto found = peers_.find(peer);
    return found == peers_.end() ? LandingShape{} : found->second.landing;
  }
  void Write(PeerNumber peer, const LandingPlace& place, std::span<const std::byte> bytes, Done done) override;
  void Send(PeerNumber peer, std::string message, Done done) override;
  void Flush(PeerNumber peer, Done done) override;
  void Close(PeerNumber peer, std::function<void()> fenced) override;
  bool Progress() override {
    const std::vector<std::function<void()>> work = std::exchange(inbox_, {});
    for (const auto& one : work) one();
    return !work.empty();
  }
  int wait_fd() const override { return -1; }

 private:
  struct Peer {
    std::shared_ptr<Wire> wire;
    int end = 0;
    LandingShape landing;
    std::map<uint64_t, Done> under_way;              ///< writes
    std::vector<std::pair<uint64_t, Done>> flushes;  ///< by the first write that comes after
  };
  Peer* Find(PeerNumber number) {
    const auto found = peers_.find(number);
    return found == peers_.end() ? nullptr : &found->second;
  }
  PeerNumber Add(std::shared_ptr<Wire> wire, int end, const LandingShape& landing);
  /// In our next Progress.
  void Later(std::function<void()> work) {
    inbox_.push_back(std::move(work));
    wake_();
  }
  /// In the Progress of whoever is at `end` then, after `delay`, after what was sent there before.
  void Tell(const std::shared_ptr<Wire>& wire, int end, std::function<void(LinkTransport&, PeerNumber)> what);
  void Land(PeerNumber number, const LandingPlace& place, std::span<const std::byte> bytes);
  void EndWrite(PeerNumber number, uint64_t write);
  void Part(Wire& wire, int end);

  LinkNetwork& network_;
  Timeline& time_;
  const LandingShape shape_;
  TransportEvents& events_;
  const std::function<void()> wake_;
  const std::string address_;
  std::vector<std::byte> memory_;
  const std::shared_ptr<PortUse> use_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  TimePoint out_free_{}, in_free_{};
  std::map<PeerNumber, Peer> peers_;
  PeerNumber next_peer_ = 1;
  uint64_t next_write_ = 1;
  std::vector<std::function<void()>> inbox_;
};

std::unique_ptr<Transport> LinkNetwork::Make(const LandingShape& shape, TransportEvents& events,
                                             std::function<void()> wake) {
  return std::make_unique<LinkTransport>(*this, shape, events, std::move(wake));
}

PeerNumber LinkTransport::Add(std::shared_ptr<Wire> wire, int end, const LandingShape& landing) {
  const PeerNumber number = next_peer_++;
  wire->ends[end] = this;
  wire->numbers[end] = number;
  peers_[number] = {.wire = std::move(wire), .end = end, .landing = landing, .under_way = {}, .flushes = {}};
  return number;
}

absl::StatusOr<PeerNumber> LinkTransport::Connect(std::string_view address) {
  if (!address.starts_with("link:")) return absl::InvalidArgumentError(StrCat("'", address, "' is no link"));
  const auto listener = network_.listeners_.find(address);
  if (listener == network_.listeners_.end()) return absl::UnavailableError(StrCat("nobody listens at ", address));
  auto wire = std::make_shared<Wire>();
  const PeerNumber ours = Add(wire, 0, listener->second->shape_);
  listener->second->Add(wire, 1, shape_);
  Tell(wire, 1, [](LinkTransport& there, PeerNumber number) { there.events_.OnConnected(number); });
  return ours;
}

void LinkTransport::Tell(const std::shared_ptr<Wire>& wire, int end,
                         std::function<void(LinkTransport&, PeerNumber)> what) {
  TimePoint& order = wire->order[end];
  order = std::max(time_.Now() + network_.terms_.latency, order + Duration(1));
  time_.At(order, [wire, end, what = std::move(what)] {
    LinkTransport* there = wire->ends[end];
    if (there == nullptr) return;
    there->Later([there, number = wire->numbers[end], what] {
      if (there->Find(number) != nullptr) what(*there, number);
    });
  });
}

void LinkTransport::Write(PeerNumber number, const LandingPlace& place, std::span<const std::byte> bytes, Done done) {
  Peer* peer = Find(number);
  if (peer == nullptr) return Later([done = std::move(done)] { done(absl::UnavailableError("no such peer")); });
  if (place.slot.slot >= peer->landing.slots || bytes.size() > peer->landing.slot_bytes) {
    const absl::Status refused =
        absl::InvalidArgumentError(StrCat(bytes.size(), " bytes for slot ", place.slot.slot, " of ",
                                          peer->landing.slots, " slots of ", peer->landing.slot_bytes, " bytes"));
    return Later([refused, done = std::move(done)] { done(refused); });
  }
  const std::shared_ptr<Wire> wire = peer->wire;
  const int to = 1 - peer->end;
  LinkTransport* there = wire->ends[to];
  if (there == nullptr) return;  // its break is on the way here
  const uint64_t overhead = std::min<uint64_t>(bytes.size(), network_.terms_.overhead);
  const double carried = static_cast<double>(bytes.size() - overhead) * network_.terms_.scale;
  const Duration takes = Takes(carried, network_.terms_), latency = network_.terms_.latency;
  ++network_.writes_;
  use_->bytes_out += static_cast<int64_t>(carried), there->use_->bytes_in += static_cast<int64_t>(carried);
  use_->busy_out += takes, there->use_->busy_in += takes;
  const TimePoint leaves = std::max(time_.Now(), out_free_) + takes;  // its last byte
  out_free_ = leaves;
  const TimePoint arrives = std::max(leaves + latency, there->in_free_ + takes);
  there->in_free_ = arrives;
  const uint64_t write = next_write_++;
  peer->under_way[write] = std::move(done);
  time_.At(arrives, [wire, to, place, bytes, write, alive = alive_] {
    if (!*alive || wire->ends[to] == nullptr || wire->ends[1 - to] == nullptr) return;
    LinkTransport* at = wire->ends[to];
    at->Later([at, wire, to, place, bytes, write, alive] {
      LinkTransport* sender = wire->ends[1 - to];
      if (!*alive || sender == nullptr || at->Find(wire->numbers[to]) == nullptr) return;
      at->Land(wire->numbers[to], place, bytes);
      sender->Later([sender, number = wire->numbers[1 - to], write] { sender->EndWrite(number, write); });
    });
  });
}

void LinkTransport::Land(PeerNumber number, const LandingPlace& place, std::span<const std::byte> bytes) {
  events_.MayLand(number, place);  // where the sender writes it is asked, and not heeded
  if (!bytes.empty()) std::memcpy(memory_.data() + place.slot.slot * shape_.slot_bytes, bytes.data(), bytes.size());
}

void LinkTransport::EndWrite(PeerNumber number, uint64_t write) {
  Peer* peer = Find(number);
  if (peer == nullptr) return;
  auto ended = peer->under_way.extract(write);
  if (ended.empty()) return;
  std::vector<Done> dones;
  dones.push_back(std::move(ended.mapped()));
  const uint64_t oldest = peer->under_way.empty() ? next_write_ : peer->under_way.begin()->first;
  std::erase_if(peer->flushes, [&](auto& flush) {
    if (flush.first > oldest) return false;
    dones.push_back(std::move(flush.second));
    return true;
  });
  for (const Done& done : dones) {
    if (done) done(absl::OkStatus());
  }
}

void LinkTransport::Send(PeerNumber number, std::string message, Done done) {
  Peer* peer = Find(number);
  if (peer != nullptr) {
    Tell(peer->wire, 1 - peer->end, [message = std::move(message)](LinkTransport& there, PeerNumber from) {
      there.events_.OnMessage(from, message);
    });
  }
  if (!done) return;
  const absl::Status status = peer == nullptr ? absl::UnavailableError("no such peer") : absl::OkStatus();
  Later([status, done = std::move(done)] { done(status); });
}

void LinkTransport::Flush(PeerNumber number, Done done) {
  Peer* peer = Find(number);
  if (peer == nullptr) return Later([done = std::move(done)] { done(absl::UnavailableError("no such peer")); });
  if (peer->under_way.empty()) return Later([done = std::move(done)] { done(absl::OkStatus()); });
  peer->flushes.emplace_back(next_write_, std::move(done));
}

/// This end leaves; the other one hears of it.
void LinkTransport::Part(Wire& wire, int end) {
  wire.ends[end] = nullptr;
  LinkTransport* there = wire.ends[1 - end];
  if (there == nullptr) return;
  there->Later([there, number = wire.numbers[1 - end]] {
    auto lost = there->peers_.extract(number);
    if (lost.empty()) return;
    lost.mapped().wire->ends[lost.mapped().end] = nullptr;
    const absl::Status why = absl::UnavailableError("the connection broke");
    for (auto& [write, done] : lost.mapped().under_way) done(why);
    for (auto& [write, done] : lost.mapped().flushes) done(why);
    there->events_.OnLost(number, why);
  });
}

void LinkTransport::Close(PeerNumber number, std::function<void()> fenced) {
  auto closed = peers_.extract(number);
  if (!closed.empty()) {
    Part(*closed.mapped().wire, closed.mapped().end);
    const absl::Status why = absl::CancelledError("closed");
    for (auto& [write, done] : closed.mapped().under_way) done(why);
    for (auto& [write, done] : closed.mapped().flushes) done(why);
  }
  fenced();
}

}  // namespace baton::sim
