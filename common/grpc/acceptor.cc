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
#include "common/str_cat.h"

namespace baton::net {
namespace {

using Endpoint = boost::asio::ip::tcp::endpoint;

/// Whoever asks in vain costs no more than one look at all connections in this time.
constexpr Duration kSweepPause = std::chrono::milliseconds(20);
constexpr int kNoDescriptorPauseMs = 10;
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
      arrivals_(epoll_create1(EPOLL_CLOEXEC)),
      heard_(epoll_create1(EPOLL_CLOEXEC)),
      spare_{eventfd(0, EFD_CLOEXEC), stop_},
      places_(options_.limits) {
  BATON_CHECK(stop_ >= 0 && arrivals_ >= 0 && heard_ >= 0 && spare_.slot >= 0, "no eventfd: ", ErrnoText(errno));
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
  close(arrivals_);
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
  std::lock_guard lock(mutex_);
  while (!waiting_.empty()) Forget(*std::shared_ptr<Taken>(waiting_.begin()->second));
}

void GrpcAcceptor::Run() {
  for (;;) {
    const std::optional<int> pause_ms = PauseMs();
    pollfd wait[] = {
        {listener_, POLLIN, 0}, {stop_, POLLIN, 0}, {arrivals_, POLLIN, 0}, {pause_ms == 0 ? heard_ : -1, POLLIN, 0}};
    poll(wait, std::size(wait), pause_ms == 0 ? kLookAtAllMs : pause_ms.value_or(-1));
    if (wait[1].revents != 0) return;
    if (wait[2].revents != 0) LookAtArrivals();
    DropSilent();
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

GrpcAcceptor::Taken::Taken(const Endpoint& peer, int descriptor, TimePoint now, uint64_t count,
                           SpareDescriptor spare_slot)
    : Place(CountedAs(peer.address())),
      end(Plain(peer)),
      fd(descriptor),
      inode(SocketInode(descriptor)),
      since(now),
      number(count),
      spare(spare_slot),
      silent_since(now) {}

/// Of a message, perhaps: nobody hears of one before all of it is here.
uint64_t GrpcAcceptor::Taken::Brought() const {
  const uint64_t all = bytes_come();
  return all - std::min(all, silent_bytes.value_or(0));
}

void GrpcAcceptor::Take(int fd, const Endpoint& peer) {
  const auto one = std::make_shared<Taken>(peer, fd, clock_.Now(), ++number_, spare_);
  const char* full = nullptr;
  {
    std::lock_guard lock(mutex_);
    full = Enter(one);
    if (full == nullptr && Limited(one->from())) vain_.Count(one->from());
  }
  if (full != nullptr) {
    Refuse(one->from(), full);
    close(fd);
    return;
  }
  options_.first_bytes_time > Duration() ? AwaitFirst(one) : HandOver(*one);
}

/// To gRPC.
void GrpcAcceptor::HandOver(Taken& one) {
  if (options_.vain_tries > 0 || CountsCalls()) {
    std::lock_guard lock(mutex_);
    in_vain_[one.number] = &one;
    Hear(one.fd, one.number);
  }
  const int fd = one.fd, on = 1;
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

const char* GrpcAcceptor::Enter(const std::shared_ptr<Taken>& one) {
  const boost::asio::ip::address& from = one->from();
  if (Limited(from) && !known_.contains(from)) {
    if (!vain_.May(from)) return kVainTries;
    if (!strangers_.May(from)) return "new-connections-per-address";
  }
  if (!Limited(from) && !own_given_up_.May(from) && !own_strangers_.May(from)) return kVainTries;
  if (Taken* const ended = Find(one->end)) Forget(*ended);  // a port is used again
  if (places_.Full(from) != nullptr) Sweep();
  const ConnectionPlaces::Entered entered = places_.Enter(*one);
  if (entered.full != nullptr) return entered.full;
  if (entered.gave_way) GaveWay(*entered.gave_way);
  if (!options_.greeted_stay && !options_.useful_stay) places_.SetBusy(*one);
  taken_[one->end] = one;
  return nullptr;
}

/// Gives back the places of connections that have ended.
void GrpcAcceptor::Sweep() {
  const TimePoint now = clock_.Now();
  if (now - swept_ < kSweepPause) return;
  swept_ = now;
  for (auto at = taken_.begin(); at != taken_.end();) {
    Taken& one = *(at++)->second;
    if (SocketInode(one.fd) != one.inode) Forget(one);
  }
}

/// Another connection has its place, or is to have its descriptor.
void GrpcAcceptor::GaveWay(ConnectionPlaces::Place& place) {
  Taken& one = static_cast<Taken&>(place);
  if (End(one)) options_.refused("for-another");
  Remove(one);
}

/// Ends some, where this process has no file descriptor left.
void GrpcAcceptor::GiveUpSome() {
  std::lock_guard lock(mutex_);
  for (const auto& place : places_.GiveUpSome()) GaveWay(*place);
}

GrpcAcceptor::Taken* GrpcAcceptor::Find(const Endpoint& end) const {
  const auto one = taken_.find(end);
  return one == taken_.end() ? nullptr : one->second.get();
}

/// What has come and was not read goes, too: gRPC would go on with it. False: it has ended already.
bool GrpcAcceptor::End(const Taken& one) {
  const HeldSocket held(one.fd, one.inode, one.spare);
  if (!held.open()) return false;
  shutdown(held.fd(), SHUT_RDWR);
  while (recv(held.fd(), nullptr, kMostThrownAway, MSG_DONTWAIT | MSG_TRUNC) > 0) continue;
  return true;
}

bool GrpcAcceptor::AnyLeft(TimePoint when) const {
  std::lock_guard lock(mutex_);
  return std::ranges::any_of(taken_, [when](const auto& one) {
    return one.second->since <= when && SocketInode(one.second->fd) == one.second->inode;
  });
}

void GrpcAcceptor::Forget(Taken& one) {
  places_.Leave(one);
  Remove(one);
}

/// It has no place any more.
void GrpcAcceptor::Remove(Taken& one) {
  SetOpenCalls(one, 0);
  in_vain_.erase(one.number);
  asking_.erase(one.number);
  if (one.ours) close(one.fd);
  waiting_.erase(one.number);
  taken_.erase(Endpoint(one.end));
}

void GrpcAcceptor::Greeted(std::string_view peer) {
  const Endpoint end = PeerOf(peer);
  std::lock_guard lock(mutex_);
  Taken* const one = Find(end);
  if (one == nullptr || one->greeted) return;
  one->greeted = true;
  SetUseful(*one);
  places_.SetBusy(*one);
  known_[one->from()] = one->number;
  if (known_.size() > kMostKnown)
    known_.erase(std::ranges::min_element(known_, {}, [](const auto& known) { return known.second; }));
}

TimePoint GrpcAcceptor::Useful(std::string_view peer) {
  const Endpoint end = PeerOf(peer);
  std::lock_guard lock(mutex_);
  Taken* const one = Find(end);
  if (one == nullptr) return TimePoint::max();
  SetUseful(*one);
  return one->since;
}

void GrpcAcceptor::SetUseful(Taken& one) {
  if (std::exchange(one.useful, true)) return;
  if (options_.useful_stay) places_.SetBusy(one);
  CountBetweenCalls(one);
  if (Limited(one.from())) vain_.TakeBack(one.from(), one.tries);
}

bool GrpcAcceptor::MayAsk(std::string_view peer) {
  const Endpoint end = PeerOf(peer);
  std::lock_guard lock(mutex_);
  Taken* const one = Find(end);
  if (one == nullptr) return true;
  one->spoke = true;
  ++one->calls;
  if (options_.useful_stay && one->useful) places_.SetBusy(*one);
  return one->may_ask || one->useful;
}

void GrpcAcceptor::SetMayAsk(std::string_view peer) {
  const Endpoint end = PeerOf(peer);
  std::lock_guard lock(mutex_);
  Taken* const one = Find(end);
  if (one == nullptr) return;
  one->may_ask = true;
  CountBetweenCalls(*one);
}

/// It is known by now: what comes on it is counted anew with each call.
void GrpcAcceptor::CountBetweenCalls(Taken& one) {
  const bool hears = in_vain_.erase(one.number) > 0;
  SetOpenCalls(one, 0);
  if (!hears || options_.bytes_between_calls == 0) return;
  one.spoke = true;
  asking_[one.number] = &one;
}

void GrpcAcceptor::Count(Taken& one, double tries) {
  vain_.Count(one.from(), tries);
  one.tries += tries;
}

/// Whether a connection that was just counted must end. Once.
bool GrpcAcceptor::HasNoneLeft(Taken& one) {
  if (vain_.May(one.from()) || one.greeted) return false;
  return !std::exchange(one.ended, true);
}

void GrpcAcceptor::OnCallEnd(std::string_view peer, CallWatcher::End call) {
  const Endpoint end = PeerOf(peer);
  const boost::asio::ip::address from = CountedAs(end.address());
  {
    std::lock_guard lock(mutex_);
    Taken* const one = Find(end);
    if (one != nullptr) OneLess(*one);
    if (!Limited(from)) {
      if (call.given_up && (one == nullptr || !one->useful)) own_given_up_.Count(from);
      return;
    }
    if (one == nullptr) return vain_.Count(from, kTryOfACall);
    if (one->useful && (call.asked || !call.given_up)) return;
    one->useful ? vain_.Count(from, kTryOfACall) : Count(*one, kTryOfACall);
    if (!HasNoneLeft(*one)) return;
  }
  EndRefused(end, kVainTries);
}

/// A call of it is over.
void GrpcAcceptor::OneLess(Taken& one) {
  one.spoke = true;
  one.calls = std::max(0, one.calls - 1);
  one.silent_since = clock_.Now();
  one.silent_bytes.reset();
  if (options_.useful_stay && one.calls == 0 && one.useful) places_.SetIdle(one);
}

void GrpcAcceptor::EndOf(std::string_view peer, const char* why) {
  const Endpoint end = PeerOf(peer);
  {
    std::lock_guard lock(mutex_);
    Taken* const one = Find(end);
    if (one == nullptr || std::exchange(one->ended, true)) return;
  }
  EndRefused(end, why);
}

/// One that was called ended. Before its end: who sees that finds it counted.
void GrpcAcceptor::EndRefused(const Endpoint& end, const char* why) {
  Refuse(CountedAs(end.address()), why);
  std::lock_guard lock(mutex_);
  if (const Taken* const one = Find(end); one != nullptr && one->ended) End(*one);
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
