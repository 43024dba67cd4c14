// Connections of a GrpcAcceptor that gRPC has not heard of: their first bytes are looked at, where they are, before any
// work is done for them.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <span>
#include <string_view>

#include "common/grpc/acceptor.h"
#include "common/grpc/first_flight.h"

namespace baton::net {
namespace {

/// Of them, and connections in one look.
constexpr size_t kLookedAt = 16 << 10;
constexpr int kMostArrivals = 64;

/// What a server of HTTP/2 says to whoever speaks anything else (RFC 9113, 3.4): SETTINGS, and GOAWAY for a protocol
/// error. Who speaks TLS learns from it that this port does not.
constexpr std::string_view kFarewell(
    "\0\0\0\4\0\0\0\0\0"
    "\0\0\10\7\0\0\0\0\0\0\0\0\0\0\0\0\1",
    26);

/// What came is taken off first: the kernel would reset a connection that is closed with bytes unread, and the words be
/// lost.
void SayFarewell(int fd, std::span<char> room) {
  recv(fd, room.data(), room.size(), MSG_DONTWAIT);
  send(fd, kFarewell.data(), kFarewell.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace

/// It waits here for its first bytes, which are here already, for the most part.
void GrpcAcceptor::AwaitFirst(const std::shared_ptr<Taken>& one) {
  {
    std::lock_guard lock(mutex_);
    one->ours = true;
    waiting_[one->number] = one;
  }
  if (!LookAtFirst(one)) return;
  epoll_event event{.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data = {.u64 = one->number}};
  epoll_ctl(arrivals_, EPOLL_CTL_ADD, one->fd, &event);
}

/// Those on which something has come.
void GrpcAcceptor::LookAtArrivals() {
  std::array<epoll_event, kMostArrivals> come;
  const int count = epoll_wait(arrivals_, come.data(), kMostArrivals, 0);
  for (int i = 0; i < count; ++i) {
    std::unique_lock lock(mutex_);
    const auto at = waiting_.find(come[static_cast<size_t>(i)].data.u64);
    if (at == waiting_.end()) continue;
    const std::shared_ptr<Taken> one = at->second;
    lock.unlock();
    LookAtFirst(one);
  }
}

/// True: it waits for more.
bool GrpcAcceptor::LookAtFirst(const std::shared_ptr<Taken>& one) {
  std::array<char, kLookedAt> bytes;
  const ssize_t got = recv(one->fd, bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT);
  if (got < 0 && errno == EAGAIN) return true;
  if (got <= 0) return GoneAtFirst(one, nullptr);
  const FirstFlight flight = options_.plain_text ? JudgeFirstFlight({bytes.data(), static_cast<size_t>(got)})
                                                 : FirstFlight::kHttp2;  // TLS says for itself what it does not like
  switch (flight) {
    case FirstFlight::kUnfinished: return true;
    case FirstFlight::kNotHttp2: SayFarewell(one->fd, bytes); return GoneAtFirst(one, "not-http2");
    case FirstFlight::kVainFrames: return GoneAtFirst(one, "vain-frames");
    case FirstFlight::kHttp2: break;
  }
  {
    std::lock_guard lock(mutex_);
    waiting_.erase(one->number);
    one->ours = false;
  }
  epoll_ctl(arrivals_, EPOLL_CTL_DEL, one->fd, nullptr);
  HandOver(*one);
  return false;
}

/// It ends. `why`: it is refused, which is one try in vain more, with what came.
bool GrpcAcceptor::GoneAtFirst(const std::shared_ptr<Taken>& one, const char* why) {
  if (why != nullptr) Refuse(one->from(), why);
  std::lock_guard lock(mutex_);
  if (why != nullptr && Limited(one->from())) Count(*one, 1 + TriesOfBytes(one->bytes_come()));
  if (waiting_.contains(one->number)) Forget(*one);
  return false;
}

/// Those that have said nothing, or not enough, for so long.
void GrpcAcceptor::DropSilent() {
  for (;;) {
    std::unique_lock lock(mutex_);
    if (waiting_.empty()) return;
    const std::shared_ptr<Taken> oldest = waiting_.begin()->second;
    if (clock_.Now() - oldest->since < options_.first_bytes_time) return;
    lock.unlock();
    GoneAtFirst(oldest, nullptr);
  }
}

}  // namespace baton::net
