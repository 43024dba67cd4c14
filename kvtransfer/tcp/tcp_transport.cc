#include "kvtransfer/tcp/tcp_transport.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <utility>

#include "common/check.h"
#include "common/errno_text.h"
#include "common/log.h"
#include "common/net/address.h"
#include "common/net/connection_shares.h"
#include "common/net/socket_address.h"
#include "common/status.h"
#include "common/tls/peer_tls.h"

namespace baton {

using tcp::FrameHeader;
using tcp::FrameKind;

namespace {

constexpr auto kListenerRest = std::chrono::milliseconds(500);
constexpr auto kGreetingTime = std::chrono::seconds(2);
constexpr size_t kMaxUngreeted = 256;  ///< strangers at once: a descriptor and some hundred bytes each
constexpr int32_t kVainTries = 50;     ///< of an address, of which 2 a second come back

/// Whose connections in vain count together; none: a process of this machine.
std::optional<boost::asio::ip::address> CountedFrom(const std::string& host) {
  const auto from = net::CountedAs(host);
  return from && net::IsThisMachine(*from) ? std::nullopt : from;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TcpTransport>> TcpTransport::Create(TcpOptions options, TransportEvents& events) {
  if (options.trust.tls != nullptr) BATON_RETURN_IF_ERROR(options.trust.tls->ForDialled().status());
  BATON_ASSIGN_OR_RETURN(const int listener, tcp::Listen(options.host, options.port));
  std::unique_ptr<TcpTransport> transport(new TcpTransport(std::move(options), events, listener));
  const LandingShape& landing = transport->options_.landing;
  const size_t bytes = landing.slots * landing.slot_bytes;
  if (bytes == 0) return transport;
  // Not of the allocator, which may write it: a ring that no prompt lands in takes no memory.
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return absl::ResourceExhaustedError(StrCat(bytes, " bytes of landing memory: ", ErrnoText()));
  transport->landing_ = {static_cast<std::byte*>(memory), bytes};
  return transport;
}

TcpTransport::TcpTransport(TcpOptions options, TransportEvents& events, int listener)
    : options_(std::move(options)),
      events_(events),
      listener_(listener),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      vain_(kVainTries, clock_) {
  BATON_CHECK(epoll_ >= 0, ErrnoText());
  ListenAgain();
}

TcpTransport::~TcpTransport() {
  peers_.clear();
  close(epoll_);
  close(listener_);
  if (!landing_.empty()) munmap(landing_.data(), landing_.size());
}

absl::StatusOr<PeerNumber> TcpTransport::Connect(std::string_view address) {
  const std::string prefix = StrCat(name(), ":");
  if (!address.starts_with(prefix))
    return absl::InvalidArgumentError(StrCat("'", address, "' is no ", name(), " address"));
  const std::string where(address.substr(prefix.size()));
  std::shared_ptr<const tls::Context> tls;
  if (options_.trust.tls != nullptr) {
    BATON_ASSIGN_OR_RETURN(const net::HostPort place, net::ParseHostPort(where));
    BATON_ASSIGN_OR_RETURN(tls, options_.trust.tls->ForDialling(place.host));
  }
  BATON_ASSIGN_OR_RETURN(const int socket, Dial(where));
  if (absl::Status stays = MayStay(socket); !stays.ok()) {
    close(socket);
    return stays;
  }
  return Add(socket, /*accepted=*/false, std::move(tls));
}

PeerNumber TcpTransport::Add(int socket, bool accepted, std::shared_ptr<const tls::Context> tls) {
  const PeerNumber number = next_peer_++;
  Peer& peer = peers_[number];
  tcp::NoticeVanishedHost(socket, /*when_full=*/fence() == FenceKind::kReceiverWrites);
  std::unique_ptr<trust::Greeting> greeting;
  if (options_.trust.secret != nullptr) {
    greeting = std::make_unique<trust::Greeting>(
        options_.trust.secret, accepted ? trust::Greeting::Role::kCallee : trust::Greeting::Role::kCaller,
        trust::Purpose::kLanding, trust::NewNonce());
  }
  peer.connection = std::make_unique<tcp::Connection>(number, socket, !accepted, std::move(greeting), std::move(tls));
  peer.accepted = accepted;
  if (accepted) peer.host = HostOf(socket);
  OnMade(*peer.connection);
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT;
  event.data.u64 = number;
  peer.watches_write = true;
  epoll_ctl(epoll_, EPOLL_CTL_ADD, socket, &event);
  const tcp::HelloBody body{options_.landing.slots, options_.landing.slot_bytes, getpid()};
  std::string hello(reinterpret_cast<const char*>(&body), sizeof(body));
  peer.connection->QueueOwned({.kind = FrameKind::kHello}, std::move(hello), nullptr);
  return number;
}

std::string TcpTransport::HostOf(int accepted) const { return net::SocketAddress::OfPeer(accepted).host(); }

TcpTransport::Peer* TcpTransport::Find(PeerNumber peer) {
  const auto found = peers_.find(peer);
  return found == peers_.end() ? nullptr : &found->second;
}

std::string TcpTransport::path(PeerNumber peer) const {
  const auto found = peers_.find(peer);
  const bool in_kernel = found != peers_.end() && found->second.connection->in_kernel();
  return StrCat(name(), options_.trust.tls == nullptr ? "" : in_kernel ? " in TLS of the kernel" : " in TLS");
}

LandingShape TcpTransport::landing_of(PeerNumber peer) const {
  const auto found = peers_.find(peer);
  return found == peers_.end() ? LandingShape{} : found->second.landing;
}

void TcpTransport::Write(PeerNumber number, const LandingPlace& place, std::span<const std::byte> bytes, Done done) {
  Peer* peer = Find(number);
  if (peer == nullptr) return Later([done = std::move(done)] { done(absl::UnavailableError("no such peer")); });
  if (!peer->greeted) return peer->early.push_back({place, {bytes, std::move(done)}});
  PutChecked(number, *peer, place, bytes, std::move(done));
}

void TcpTransport::PutChecked(PeerNumber number, Peer& peer, const LandingPlace& place,
                              std::span<const std::byte> bytes, Done done) {
  if (place.slot.slot >= peer.landing.slots || bytes.size() > peer.landing.slot_bytes) {
    const absl::Status refused =
        absl::InvalidArgumentError(StrCat(bytes.size(), " bytes for slot ", place.slot.slot, ", the peer has ",
                                          peer.landing.slots, " of ", peer.landing.slot_bytes));
    return Later([refused, done = std::move(done)] { done(refused); });
  }
  Put(number, peer, place, bytes, std::move(done));
}

void TcpTransport::Put(PeerNumber number, Peer& peer, const LandingPlace& place, std::span<const std::byte> bytes,
                       Done done) {
  peer.connection->Queue({.kind = FrameKind::kWrite,
                          .ticket = place.lane.ticket,
                          .epoch = place.lane.epoch,
                          .lane = place.lane.lane,
                          .slot = place.slot.slot,
                          .turn = place.slot.turn},
                         bytes, std::move(done));
  WriteSoon(number, peer);
}

void TcpTransport::Send(PeerNumber number, std::string message, Done done) {
  Peer* peer = Find(number);
  if (peer == nullptr || message.size() > kMaxMessageBytes) {
    const absl::Status why = peer == nullptr
                                 ? absl::UnavailableError("no such peer")
                                 : absl::InvalidArgumentError(StrCat("a message of ", message.size(), " bytes"));
    return Later([why, done = std::move(done)] {
      if (done) done(why);
    });
  }
  peer->connection->QueueOwned({.kind = FrameKind::kMessage}, std::move(message), std::move(done));
  WriteSoon(number, *peer);
}

void TcpTransport::Flush(PeerNumber number, Done done) {
  Peer* peer = Find(number);
  if (peer == nullptr) return Later([done = std::move(done)] { done(absl::UnavailableError("no such peer")); });
  if (!peer->early.empty()) {  // behind the writes that wait for the greeting
    return Later([this, number, done = std::move(done)]() mutable { Flush(number, std::move(done)); });
  }
  const uint64_t flush = next_flush_++;
  peer->flushes[flush] = std::move(done);
  peer->connection->Queue({.kind = FrameKind::kFlush, .ticket = flush}, {}, nullptr);
  WriteSoon(number, *peer);
}

void TcpTransport::Close(PeerNumber number, std::function<void()> fenced) {
  Lose(number, absl::OkStatus());
  fenced();  // nothing is stored any more but by us
}

void TcpTransport::Watch(Peer& peer) {
  if (peer.watches_write == peer.connection->wants_write()) return;
  peer.watches_write = peer.connection->wants_write();
  epoll_event event{};
  event.events = EPOLLIN | (peer.watches_write ? EPOLLOUT : 0u);
  event.data.u64 = peer.connection->peer();
  epoll_ctl(epoll_, EPOLL_CTL_MOD, peer.connection->socket(), &event);
}

/// `why` ok: we close it ourselves, and OnLost is not called.
void TcpTransport::Lose(PeerNumber number, const absl::Status& why) {
  auto node = peers_.extract(number);
  if (node.empty()) return;
  Peer& peer = node.mapped();
  const absl::Status error = why.ok() ? absl::CancelledError("the connection was closed") : why;
  peer.connection->FailAll(error);
  for (auto& [place, write] : peer.early) write.second(error);
  for (auto& [flush, done] : peer.flushes) done(error);
  Forget(number);
  if (peer.accepted && peer.greeted) {
    const auto of_host = greeted_.find(peer.host);
    --all_greeted_;
    if (--of_host->second == 0) greeted_.erase(of_host);
  }
  if (why.ok()) return;
  if (peer.accepted && !peer.greeted) return events_.OnRefused(number, peer.host, why);
  events_.OnLost(number, why);
}

/// True: somebody has connected. Who comes without end leaves others their turn. Where no descriptor is left the
/// listener would be readable for ever: it rests.
bool TcpTransport::Accept() {
  bool accepted = false;
  int failed = 0;
  for (size_t turn = 0; turn < kMaxUngreeted; ++turn) {
    const int socket = tcp::Accept(listener_);
    failed = socket < 0 ? errno : 0;
    if (socket < 0) break;
    accepted = true;
    const auto from = CountedFrom(HostOf(socket));
    absl::Status stays = MayCome(from);
    if (stays.ok()) stays = MayStay(socket);
    if (!stays.ok()) {
      events_.OnRefused(next_peer_++, HostOf(socket), stays);
      close(socket);
      continue;
    }
    std::shared_ptr<const tls::Context> tls;
    if (options_.trust.tls != nullptr) {
      auto made = options_.trust.tls->ForDialled();
      if (!made.ok()) {
        LogError("{}: a peer cannot connect: {}", name(), View(made.status().message()));
        close(socket);
        continue;
      }
      tls = *std::move(made);
    }
    if (ungreeted_.size() >= kMaxUngreeted) {  // the oldest has had its turn
      const PeerNumber oldest = ungreeted_.front().second;
      ungreeted_.pop_front();
      if (const Peer* peer = Find(oldest); peer != nullptr && !peer->greeted)
        Lose(oldest, absl::ResourceExhaustedError(StrCat("more than ", kMaxUngreeted, " peers have not greeted")));
    }
    const PeerNumber number = Add(socket, /*accepted=*/true, std::move(tls));
    ungreeted_.emplace_back(std::chrono::steady_clock::now(), number);
    peers_[number].in_vain = from;
    if (from) vain_.Count(*from);
  }
  if (failed == EMFILE || failed == ENFILE || failed == ENOBUFS || failed == ENOMEM) {
    LogWarning("{}: a peer cannot connect: {}", name(), ErrnoText(failed));
    epoll_ctl(epoll_, EPOLL_CTL_DEL, listener_, nullptr);
    rests_until_ = std::chrono::steady_clock::now() + kListenerRest;
  }
  return accepted;
}

absl::Status TcpTransport::MayCome(const std::optional<boost::asio::ip::address>& from) const {
  if (!from || vain_.May(*from)) return absl::OkStatus();
  return absl::ResourceExhaustedError(StrCat("more than ", kVainTries, " connections of its address did not greet"));
}

/// Those that connected and did not greet in time.
void TcpTransport::DropSilent() {
  const auto before = std::chrono::steady_clock::now() - kGreetingTime;
  while (!ungreeted_.empty()) {
    const auto [since, number] = ungreeted_.front();
    const Peer* peer = Find(number);
    const bool silent = peer != nullptr && !peer->greeted;
    if (silent && since > before) return;
    ungreeted_.pop_front();
    if (silent) Lose(number, absl::DeadlineExceededError("no greeting within 2 s"));
  }
}

void TcpTransport::ListenAgain() {
  rests_until_.reset();
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = 0;
  epoll_ctl(epoll_, EPOLL_CTL_ADD, listener_, &event);
}

bool TcpTransport::Progress() {
  bool moved = !later_.empty();
  for (auto& work : std::exchange(later_, {})) work();
  DropSilent();
  if (rests_until_ && std::chrono::steady_clock::now() >= *rests_until_) ListenAgain();
  for (const PeerNumber number : std::exchange(due_, {})) moved |= PumpOut(number);
  for (const PeerNumber number : std::exchange(held_, {})) moved |= Pump(number);
  epoll_event ready[64];
  const int count = epoll_wait(epoll_, ready, 64, 0);
  for (int i = 0; i < count; ++i) {
    const PeerNumber number = ready[i].data.u64;
    if (number == 0) {
      moved |= Accept();
      continue;
    }
    moved |= Pump(number);
  }
  return moved || !due_.empty();
}

/// The next Progress writes what is queued until then with one call of the system. A socket that took not all of it
/// before says when it takes more.
void TcpTransport::WriteSoon(PeerNumber number, Peer& peer) {
  if (peer.due || peer.watches_write) return;
  peer.due = true;
  due_.push_back(number);
}

/// True: something moved.
bool TcpTransport::PumpOut(PeerNumber number) {
  Peer* peer = Find(number);
  if (peer == nullptr) return false;  // lost meanwhile
  peer->due = false;
  bool moved = false;
  const absl::Status status = peer->connection->PumpOut(*this, moved);
  return StaysAfter(number, status) == nullptr || moved;
}

/// True: something moved, or waits for the next turn.
bool TcpTransport::Pump(PeerNumber number) {
  Peer* peer = Find(number);
  if (peer == nullptr) return false;  // lost meanwhile
  bool moved = false;
  const absl::Status status = peer->connection->Pump(*this, moved);
  peer = StaysAfter(number, status);
  if (peer == nullptr) return true;
  if (peer->connection->holds()) held_.push_back(number);
  return moved || peer->connection->holds();
}

/// Who is watched on after a turn that ended with `status`; null: it is lost, by that or meanwhile.
TcpTransport::Peer* TcpTransport::StaysAfter(PeerNumber number, const absl::Status& status) {
  Peer* peer = Find(number);
  if (peer == nullptr) return nullptr;
  if (!status.ok()) {
    Lose(number, status);
    return nullptr;
  }
  if (!peer->due) Watch(*peer);
  return peer;
}

/// Whether one more may stay.
absl::Status TcpTransport::CheckRoom(const Peer& peer) const {
  if (!peer.accepted) return absl::OkStatus();
  const auto of_host = greeted_.find(peer.host);
  const size_t there = of_host == greeted_.end() ? 0 : of_host->second;
  if (there < options_.max_peers_of_host && all_greeted_ < options_.max_peers) return absl::OkStatus();
  return absl::ResourceExhaustedError(StrCat(there, " connections of ", peer.host, " and ", all_greeted_,
                                             " in all, at most ", options_.max_peers_of_host, " and ",
                                             options_.max_peers));
}

absl::Status TcpTransport::Greet(PeerNumber number, Peer& peer, std::string_view payload) {
  tcp::HelloBody body;
  if (peer.greeted || payload.size() != sizeof(body)) return absl::InvalidArgumentError("a greeting out of place");
  memcpy(&body, payload.data(), sizeof(body));
  if (body.slots > kMaxLandingSlots || body.slot_bytes > kMaxLandingSlotBytes) {
    return absl::InvalidArgumentError(StrCat("a greeting of ", body.slots, " landing slots of ", body.slot_bytes,
                                             " bytes, at most ", kMaxLandingSlots, " of ", kMaxLandingSlotBytes));
  }
  peer.landing = {static_cast<uint32_t>(body.slots), body.slot_bytes};
  BATON_RETURN_IF_ERROR(CheckRoom(peer));
  BATON_RETURN_IF_ERROR(OnGreeted(number, peer));
  peer.greeted = true;
  if (peer.accepted) ++greeted_[peer.host], ++all_greeted_;
  if (peer.in_vain) vain_.TakeBack(*peer.in_vain);
  for (auto& [place, write] : std::exchange(peer.early, {}))
    PutChecked(number, peer, place, write.first, std::move(write.second));
  if (peer.accepted) events_.OnConnected(number);
  return absl::OkStatus();
}

absl::Status TcpTransport::Admit(tcp::Connection& from, const FrameHeader& header) {
  const bool greeted = Find(from.peer())->greeted;
  if (!greeted && header.kind != FrameKind::kHello) return absl::InvalidArgumentError("no greeting came first");
  const uint64_t most = !greeted                             ? tcp::kMaxGreetingBytes
                        : header.kind == FrameKind::kWrite   ? options_.landing.slot_bytes
                        : header.kind == FrameKind::kMessage ? kMaxMessageBytes
                                                             : 0;
  if (header.payload_bytes <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("a frame of kind ", static_cast<uint32_t>(header.kind), " with ",
                                           header.payload_bytes, " bytes, at most ", most));
}

absl::Status TcpTransport::OnFrame(tcp::Connection& from, const FrameHeader& header, std::string_view payload) {
  Peer& peer = *Find(from.peer());
  switch (header.kind) {
    case FrameKind::kHello: return Greet(from.peer(), peer, payload);
    case FrameKind::kMessage: events_.OnMessage(from.peer(), payload); return absl::OkStatus();
    case FrameKind::kFlush:
      peer.connection->QueueOwned({.kind = FrameKind::kFlushed, .ticket = header.ticket}, {}, nullptr);
      WriteSoon(from.peer(), peer);
      return absl::OkStatus();
    case FrameKind::kFlushed: {
      auto flush = peer.flushes.extract(header.ticket);
      if (!flush.empty()) flush.mapped()(absl::OkStatus());
      return absl::OkStatus();
    }
    case FrameKind::kWrite: break;
  }
  return absl::InvalidArgumentError(StrCat("a frame of kind ", static_cast<uint32_t>(header.kind)));
}

std::byte* TcpTransport::PlaceFor(tcp::Connection& from, const FrameHeader& header) {
  const LandingShape& ours = options_.landing;
  if (header.slot >= ours.slots) return nullptr;
  const LandingPlace place{{header.ticket, header.epoch, header.lane}, {header.slot, header.turn}};
  return events_.MayLand(from.peer(), place) ? landing_.data() + header.slot * ours.slot_bytes : nullptr;
}

}  // namespace baton
