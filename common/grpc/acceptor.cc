#include "common/grpc/acceptor.h"

#include <grpc/compression.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <utility>

#include "absl/strings/str_replace.h"
#include "common/check.h"
#include "common/errno_text.h"
#include "common/grpc/error_lines.h"
#include "common/log.h"
#include "common/net/connection_places.h"
#include "common/str_cat.h"

namespace baton::net {
namespace {

using Endpoint = boost::asio::ip::tcp::endpoint;

/// Whoever asks in vain costs no more than one look at all connections in this time.
constexpr Duration kSweepPause = std::chrono::milliseconds(20);
constexpr int kNoDescriptorPauseMs = 10, kGivenUpAtOnce = 16;
constexpr size_t kMostKnown = 1024;
/// At a time, of what came on a connection that we end.
constexpr size_t kMostThrownAway = 1 << 30;
constexpr int kMostMetadataBytes = 16 << 10;
constexpr double kTryOfACall = 0.05;

/// IPv4 over a socket of both is IPv4, as gRPC names it.
Endpoint Plain(const Endpoint& peer) {
  if (!peer.address().is_v6() || !peer.address().to_v6().is_v4_mapped()) return peer;
  return {boost::asio::ip::make_address_v4(boost::asio::ip::v4_mapped, peer.address().to_v6()), peer.port()};
}

absl::Status CannotListen(const SocketAddress& where, const std::string& flags) {
  const int why = errno;
  const std::string message =
      StrCat("cannot listen on ", where.text(), " for gRPC: ", ErrnoText(why), " (", flags, ")");
  return why == EADDRINUSE ? absl::AlreadyExistsError(message) : absl::PermissionDeniedError(message);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcAcceptor>> GrpcAcceptor::Listen(
    Options options, grpc::ServerBuilder& builder, const std::shared_ptr<grpc::ServerCredentials>& credentials) {
  TakeGrpcErrors();
  const int fd = BoundSocket(options.where, SOCK_NONBLOCK);
  if (fd < 0 || listen(fd, SOMAXCONN) != 0) {
    absl::Status why = CannotListen(options.where, options.flags);
    if (fd >= 0) close(fd);
    return why;
  }
  auto to = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
  std::unique_ptr<GrpcAcceptor> acceptor(new GrpcAcceptor(std::move(options), std::move(to), fd));
  if (acceptor->options_.watches_calls) acceptor->WatchCalls(builder);
  return acceptor;
}

GrpcAcceptor::GrpcAcceptor(Options options, std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> to,
                           int listener)
    : options_(std::move(options)),
      to_(std::move(to)),
      listener_(listener),
      stop_(eventfd(0, EFD_CLOEXEC)),
      heard_(epoll_create1(EPOLL_CLOEXEC)),
      shares_(options_.limits),
      spare_{eventfd(0, EFD_CLOEXEC), stop_} {
  BATON_CHECK(stop_ >= 0 && heard_ >= 0 && spare_.slot >= 0, "no eventfd: ", ErrnoText(errno));
  Endpoint bound;
  socklen_t bytes = static_cast<socklen_t>(bound.capacity());
  BATON_CHECK(getsockname(listener_, bound.data(), &bytes) == 0, "getsockname: ", ErrnoText(errno));
  bound.resize(bytes);
  port_ = bound.port();
}

GrpcAcceptor::~GrpcAcceptor() {
  Stop();
  close(stop_);
  close(heard_);
  close(spare_.slot);
}

void GrpcAcceptor::Start() {
  thread_ = std::thread([this] { Run(); });
}

void GrpcAcceptor::Stop() {
  const uint64_t one = 1;
  BATON_CHECK(write(stop_, &one, sizeof one) == ssize_t{sizeof one}, "eventfd: ", ErrnoText(errno));
  if (thread_.joinable()) thread_.join();
  if (listener_ >= 0) close(listener_);
  listener_ = -1;
}

void GrpcAcceptor::Run() {
  for (;;) {
    const std::optional<int> pause_ms = PauseMs();
    pollfd wait[] = {{listener_, POLLIN, 0}, {stop_, POLLIN, 0}, {pause_ms == 0 ? heard_ : -1, POLLIN, 0}};
    poll(wait, std::size(wait), pause_ms == 0 ? kLookAtAllMs : pause_ms.value_or(-1));
    if (wait[1].revents != 0) return;
    if (pause_ms == 0) CountBytes();
    if (wait[0].revents == 0) continue;
    Endpoint peer;
    socklen_t bytes = static_cast<socklen_t>(peer.capacity());
    const int fd = accept4(listener_, peer.data(), &bytes, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      if (errno == EMFILE || errno == ENFILE) {  // and a moment to end
        GiveUpSome();
        poll(&wait[1], 1, kNoDescriptorPauseMs);
      }
      continue;
    }
    peer.resize(bytes);
    Take(fd, peer);
  }
}

void GrpcAcceptor::Take(int fd, const Endpoint& peer) {
  const boost::asio::ip::address from = CountedAs(peer.address());
  const char* full = nullptr;
  {
    std::lock_guard lock(mutex_);
    full = Enter(from);
    if (full == nullptr) {
      const Endpoint end = Plain(peer);
      if (const auto ended = taken_.find(end); ended != taken_.end()) Forget(ended);  // a port is used again
      taken_[end] = {fd, SocketInode(fd), clock_.Now(), ++number_};
      taken_[end].silent_since = clock_.Now();
      if (options_.vain_tries > 0 || CountsCalls()) {
        if (Limited(from)) vain_.Count(from);
        in_vain_[number_] = end;
        Hear(fd, number_);
      }
      if (options_.greeted_stay || options_.useful_stay) GivesWay(taken_.find(end), &not_greeted_);
    }
  }
  if (full != nullptr) {
    Refuse(from, full);
    close(fd);
    return;
  }
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
  connection.listener_fd = listener_;
  connection.fd = fd;
  to_->HandleNewConnection(&connection);
}

/// Until gRPC closes it, `heard_` tells when something has come: a connection that says nothing costs next to nothing.
/// EPOLLOUT, because gRPC may have read it by then; where the peer reads nothing for long there is the look at all.
void GrpcAcceptor::Hear(int fd, uint64_t number) {
  epoll_event event{.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data = {.u64 = number}};
  epoll_ctl(heard_, EPOLL_CTL_ADD, fd, &event);
}

/// Before its end: who sees that finds it counted.
void GrpcAcceptor::Refuse(const boost::asio::ip::address& from, const char* why) {
  options_.refused(why);
  const std::string host = from.to_string();
  std::unique_lock lock(mutex_);
  const bool line = lines_.May(host);
  lock.unlock();
  if (line) LogWarning("{} port: a connection of {} is refused ({})", options_.port, host, why);
}

bool GrpcAcceptor::Limited(const boost::asio::ip::address& from) const {
  return options_.limits.loopback_too || !IsThisMachine(from);
}

const char* GrpcAcceptor::Enter(const boost::asio::ip::address& from) {
  if (Limited(from) && !known_.contains(from)) {
    if (!vain_.May(from)) return kVainTries;
    if (!strangers_.May(from)) return "new-connections-per-address";
  }
  const char* full = shares_.Enter(from, yielding_);
  if (full != nullptr) {
    Sweep();
    full = shares_.Enter(from, yielding_);
  }
  return full != nullptr && MakeRoom(from, full == kFull) ? nullptr : full;
}

/// Gives back the places of connections that have ended.
void GrpcAcceptor::Sweep() {
  const TimePoint now = clock_.Now();
  if (now - swept_ < kSweepPause) return;
  swept_ = now;
  for (auto one = taken_.begin(); one != taken_.end();) {
    const auto at = one++;
    if (SocketInode(at->second.fd) != at->second.inode) Forget(at);
  }
}

/// Ends the oldest connection, of all or of the address, that may give way; `from` has its place. False: there is none.
bool GrpcAcceptor::MakeRoom(const boost::asio::ip::address& from, bool of_all) {
  const auto oldest = Oldest(of_all ? nullptr : &from);
  if (!oldest) return false;
  const boost::asio::ip::address whose = CountedAs((*oldest)->first.address());
  if (End(*oldest)) options_.refused("for-another");
  Remove(*oldest);
  shares_.Replace(whose, from);
  return true;
}

/// Ends some, where this process has no file descriptor left.
void GrpcAcceptor::GiveUpSome() {
  std::lock_guard lock(mutex_);
  for (int i = 0; i < kGivenUpAtOnce; ++i) {
    const auto oldest = Oldest(nullptr);
    if (!oldest) return;
    if (End(*oldest)) options_.refused("for-another");
    Forget(*oldest);
  }
}

/// The first to give way, of all or of an address. None: nobody does.
std::optional<GrpcAcceptor::Connections::iterator> GrpcAcceptor::Oldest(const boost::asio::ip::address* of) {
  for (Waiting* among : {&not_greeted_, &idle_}) {
    const uint64_t last = turns_;  // those behind it have been looked at
    for (auto at = among->begin(); at != among->end();) {
      const uint64_t turn = at->first;
      const auto one = taken_.find((at++)->second);
      if (of != nullptr && CountedAs(one->first.address()) != *of) continue;
      if (turn > last || !IsSending(one)) return one;
      GivesWay(one, among);
    }
  }
  return std::nullopt;
}

/// Whether much of a message has come on it since its latest turn.
bool GrpcAcceptor::IsSending(Connections::iterator one) {
  const uint64_t bytes = BytesOf(one), before = std::max(one->second.turn_bytes, one->second.silent_bytes.value_or(0));
  one->second.turn_bytes = bytes;
  return bytes >= before + ConnectionPlaces::kBytesOfAPlace;
}

/// What has come and was not read goes, too: gRPC would go on with it. False: it has ended already.
bool GrpcAcceptor::End(Connections::iterator one) {
  const HeldSocket held(one->second.fd, one->second.inode, spare_);
  if (!held.open()) return false;
  shutdown(held.fd(), SHUT_RDWR);
  while (recv(held.fd(), nullptr, kMostThrownAway, MSG_DONTWAIT | MSG_TRUNC) > 0) continue;
  return true;
}

void GrpcAcceptor::Forget(Connections::iterator one) {
  const boost::asio::ip::address from = CountedAs(one->first.address());
  Remove(one);
  shares_.Leave(from);
}

/// But for its place.
void GrpcAcceptor::Remove(Connections::iterator one) {
  GivesWay(one, nullptr);
  SetOpenCalls(one, 0);
  in_vain_.erase(one->second.number);
  asking_.erase(one->second.number);
  taken_.erase(one);
}

/// It gives way to nobody, as long as it is not idle.
void GrpcAcceptor::Stays(Connections::iterator one) {
  if (one->second.gives_way == &not_greeted_) GivesWay(one, nullptr);
}

/// The last of `among`; null: it does not.
void GrpcAcceptor::GivesWay(Connections::iterator one, Waiting* among) {
  Taken& taken = one->second;
  if (!shares_.Limited(CountedAs(one->first.address())))
    yielding_ += int{among != nullptr} - int{taken.gives_way != nullptr};
  if (taken.gives_way != nullptr) taken.gives_way->erase(taken.turn);
  taken.gives_way = among;
  if (among == nullptr) return;
  taken.turn = ++turns_;
  (*among)[taken.turn] = one->first;
}

void GrpcAcceptor::Greeted(std::string_view peer) {
  const Endpoint end = PeerOf(peer);
  std::lock_guard lock(mutex_);
  const auto one = taken_.find(end);
  if (one == taken_.end() || one->second.greeted) return;
  one->second.greeted = true;
  SetUseful(one);
  Stays(one);
  known_[CountedAs(end.address())] = one->second.number;
  if (known_.size() > kMostKnown)
    known_.erase(std::ranges::min_element(known_, {}, [](const auto& known) { return known.second; }));
}

void GrpcAcceptor::Useful(std::string_view peer) {
  const Endpoint end = PeerOf(peer);
  std::lock_guard lock(mutex_);
  if (const auto one = taken_.find(end); one != taken_.end()) SetUseful(one);
}

void GrpcAcceptor::SetUseful(Connections::iterator one) {
  if (std::exchange(one->second.useful, true)) return;
  if (options_.useful_stay) Stays(one);
  CountBetweenCalls(one);
  const boost::asio::ip::address from = CountedAs(one->first.address());
  if (Limited(from)) vain_.TakeBack(from, one->second.tries);
}

bool GrpcAcceptor::MayAsk(std::string_view peer) {
  const Endpoint end = PeerOf(peer);
  std::lock_guard lock(mutex_);
  const auto one = taken_.find(end);
  if (one == taken_.end()) return true;
  one->second.spoke = true;
  ++one->second.calls;
  if (one->second.gives_way == &idle_) GivesWay(one, nullptr);
  return one->second.may_ask || one->second.useful;
}

void GrpcAcceptor::SetMayAsk(std::string_view peer) {
  const Endpoint end = PeerOf(peer);
  std::lock_guard lock(mutex_);
  const auto one = taken_.find(end);
  if (one == taken_.end()) return;
  one->second.may_ask = true;
  CountBetweenCalls(one);
}

/// It is known by now: what comes on it is counted anew with each call.
void GrpcAcceptor::CountBetweenCalls(Connections::iterator one) {
  const bool hears = in_vain_.erase(one->second.number) > 0;
  SetOpenCalls(one, 0);
  if (!hears || options_.bytes_between_calls == 0) return;
  one->second.spoke = true;
  asking_[one->second.number] = one->first;
}

void GrpcAcceptor::Count(Connections::iterator one, double tries) {
  vain_.Count(CountedAs(one->first.address()), tries);
  one->second.tries += tries;
}

/// Whether a connection that was just counted must end. Once.
bool GrpcAcceptor::HasNoneLeft(Connections::iterator one) {
  if (vain_.May(CountedAs(one->first.address())) || one->second.greeted) return false;
  return !std::exchange(one->second.ended, true);
}

void GrpcAcceptor::OnCallEnd(std::string_view peer, CallWatcher::End call) {
  const Endpoint end = PeerOf(peer);
  const boost::asio::ip::address from = CountedAs(end.address());
  {
    std::lock_guard lock(mutex_);
    const auto one = taken_.find(end);
    if (one != taken_.end()) OneLess(one);
    if (!Limited(from)) return;
    const bool useful = one != taken_.end() && one->second.useful;
    if (useful && (call.asked || !call.given_up)) return;
    if (one == taken_.end()) return vain_.Count(from, kTryOfACall);
    useful ? vain_.Count(from, kTryOfACall) : Count(one, kTryOfACall);
    if (!HasNoneLeft(one)) return;
  }
  Refuse(from, kVainTries);
  std::lock_guard lock(mutex_);
  if (const auto one = taken_.find(end); one != taken_.end() && one->second.ended) End(one);
}

/// A call of it is over.
void GrpcAcceptor::OneLess(Connections::iterator one) {
  one->second.spoke = true;
  one->second.calls = std::max(0, one->second.calls - 1);
  one->second.silent_since = clock_.Now();
  one->second.silent_bytes.reset();
  if (options_.useful_stay && one->second.calls == 0 && one->second.useful) GivesWay(one, &idle_);
}

void GrpcAcceptor::EndOf(std::string_view peer, const char* why) {
  const Endpoint end = PeerOf(peer);
  {
    std::lock_guard lock(mutex_);
    const auto one = taken_.find(end);
    if (one == taken_.end() || std::exchange(one->second.ended, true)) return;
    End(one);
  }
  Refuse(CountedAs(end.address()), why);
}

Endpoint PeerOf(std::string_view grpc_name) {
  const size_t kind = grpc_name.find(':'), port_at = grpc_name.rfind(':');
  if (kind == grpc_name.npos || port_at <= kind) return {};
  const absl::string_view written(grpc_name.data() + kind + 1, port_at - kind - 1);
  const std::string host = absl::StrReplaceAll(written, {{"%5B", ""}, {"%5D", ""}, {"%25", "%"}, {"[", ""}, {"]", ""}});
  uint16_t port = 0;
  std::from_chars(grpc_name.data() + port_at + 1, grpc_name.data() + grpc_name.size(), port);
  boost::system::error_code no;
  const auto address = boost::asio::ip::make_address(host, no);
  return no ? Endpoint() : Plain({address, port});
}

void BoundConnections(grpc::ServerBuilder& builder, const IdleTimes& times) {
  const auto ms = [](Duration d) { return static_cast<int>(Milliseconds(d)); };
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, ms(times.begin));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, ms(times.without_call));
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMostMetadataBytes);
  // gRPC bounds what a message is, not what it unpacks to, a thousand times that.
  for (const auto algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE})
    builder.SetCompressionAlgorithmSupportStatus(algorithm, false);
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
}

}  // namespace baton::net
