#include "engine/parallel/tcp_meeting.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "common/log.h"
#include "common/net/address.h"
#include "common/net/socket_address.h"
#include "common/status.h"
#include "engine/parallel/rank_door.h"

namespace baton::engine {
namespace {

constexpr int kBacklog = 256;
constexpr Duration kRest = std::chrono::milliseconds(100);  ///< between two attempts to reach a rank
constexpr Duration kSayEvery = std::chrono::seconds(10);    ///< what is waited for

/// Where a rank listens, as rank 0 tells it to the others.
struct Place {
  char host[62] = {};  ///< an IP address as text, zero behind it
  uint16_t port = 0;

  static Place Of(const RankSeat& seat) {
    Place place;
    seat.host.copy(place.host, sizeof(place.host) - 1);
    place.port = seat.port;
    return place;
  }
  absl::StatusOr<net::SocketAddress> address() const {
    return net::SocketAddress::Of(std::string(host, strnlen(host, sizeof(host))), port);
  }
};

bool MayDoBetter(const absl::Status& status) { return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status); }

/// Tries until it goes well, is refused, or `until` has come; then the last reason. Meanwhile the log has, at first and
/// every kSayEvery, what is waited for: "rank 0 at 10.0.0.1:5000".
template <class Try>
auto Retry(const std::string& for_whom, TimePoint until, Try attempt) -> decltype(attempt()) {
  const SteadyClock clock;
  const TimePoint since = clock.Now();
  TimePoint say_at = since;
  for (;;) {
    auto out = attempt();
    const TimePoint now = clock.Now();
    if (out.ok() || !MayDoBetter(out.status()) || now + kRest >= until) return out;
    if (now >= say_at) {
      say_at = now + kSayEvery;
      LogInfo("ranks: waits for {} for {:.0f} s, at most {:.0f}: {}", for_whom, Seconds(now - since),
              Seconds(until - since), View(out.status().message()));
    }
    std::this_thread::sleep_for(kRest);
  }
}

std::vector<RankSocket> SocketsOf(std::vector<RankSeat>& seats) {
  std::vector<RankSocket> out;
  for (RankSeat& seat : seats) out.push_back(std::move(seat.socket));
  return out;
}

/// What rank 0 has told a rank that it let in.
struct Invitation {
  RankSocket rank_zero;
  RankSocket listener;
  RankHello hello;
  std::vector<Place> places;  ///< by rank
};

absl::StatusOr<Invitation> AskRankZero(const net::SocketAddress& where, const RankGroup& group) {
  // The address from which rank 0 is reached is the one at which the others reach this rank.
  const RankSocket probe(socket(where.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (connect(probe.get(), where.get(), where.bytes()) != 0)
    return absl::UnavailableError(StrCat("no way to rank 0 at ", where.text()));
  const net::SocketAddress own = net::SocketAddress::OfSocket(probe.get()).WithPort(0);
  Invitation out;
  BATON_ASSIGN_OR_RETURN(const int listening, net::ListenAt(own, SOCK_NONBLOCK, kBacklog));
  out.listener = RankSocket(listening);
  out.hello = {.rank = group.rank, .size = group.size, .port = net::SocketAddress::OfSocket(listening).port()};
  BATON_ASSIGN_OR_RETURN(out.rank_zero, DialRank(where, 0, group, out.hello));
  out.places.resize(static_cast<size_t>(group.size));
  uint64_t bytes = 0;
  BATON_RETURN_IF_ERROR(RecvFromRank(out.rank_zero, &bytes, sizeof(bytes), "rank 0", group.patience));
  if (bytes != out.places.size() * sizeof(Place)) {
    return absl::InternalError(StrCat("rank 0 lists ", bytes / sizeof(Place), " ranks, there are ", group.size));
  }
  BATON_RETURN_IF_ERROR(RecvFromRank(out.rank_zero, out.places.data(), bytes, "rank 0", group.patience));
  return out;
}

/// At the first of rank 0's addresses that answers.
absl::StatusOr<Invitation> AskAtAnyAddress(const net::HostPort& at, const RankGroup& group) {
  BATON_ASSIGN_OR_RETURN(const auto found, net::Resolve(at.host, at.port));
  absl::StatusOr<Invitation> out = absl::UnavailableError(StrCat(at.host, " has no address"));
  for (const net::SocketAddress& one : found) {
    out = AskRankZero(one, group);
    if (out.ok() || !MayDoBetter(out.status())) break;
  }
  return out;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TcpMeetingPoint>> TcpMeetingPoint::Listen(const std::string& host, uint16_t port) {
  BATON_ASSIGN_OR_RETURN(const net::SocketAddress where, net::AddressToBind(host, port));
  BATON_ASSIGN_OR_RETURN(const int listener, net::ListenAt(where, SOCK_NONBLOCK, kBacklog));
  const uint16_t bound = net::SocketAddress::OfSocket(listener).port();
  return std::unique_ptr<TcpMeetingPoint>(new TcpMeetingPoint(listener, net::JoinHostPort(host, bound)));
}

TcpMeetingPoint::~TcpMeetingPoint() { close(listener_); }

absl::StatusOr<std::unique_ptr<TcpMesh>> TcpMeetingPoint::Gather(const RankGroup& group,
                                                                 const std::function<absl::Status()>& alive) {
  std::vector<RankSeat> seats(static_cast<size_t>(group.size));
  RankDoor door(listener_, group);
  const absl::Status admitted = door.Admit(1, seats, alive);
  refused_ += door.refused();
  BATON_RETURN_IF_ERROR(admitted);
  if (refused_ > 0) LogWarning("ranks: {} connections were refused while {} ranks met", refused_, group.size);
  std::vector<Place> places;
  for (const RankSeat& seat : seats) places.push_back(Place::Of(seat));
  auto mesh = std::make_unique<TcpMesh>(0, SocketsOf(seats));
  for (int rank = 1; rank < group.size; ++rank) {
    const TcpMesh::Out list{rank, std::as_bytes(std::span(places))};
    BATON_RETURN_IF_ERROR(mesh->Exchange({&list, 1}, {}));
  }
  return mesh;
}

absl::StatusOr<std::vector<Pulse::Peer>> TcpMeetingPoint::GatherPulse(RankGroup group,
                                                                      const std::function<absl::Status()>& alive) {
  group.line = RankLine::kPulse;
  std::vector<RankSeat> seats(static_cast<size_t>(group.size));
  RankDoor door(listener_, group);
  const absl::Status admitted = door.Admit(1, seats, alive);
  refused_ += door.refused();
  BATON_RETURN_IF_ERROR(admitted);
  std::vector<Pulse::Peer> out;
  for (int rank = 1; rank < group.size; ++rank)
    out.push_back({rank, std::move(seats[static_cast<size_t>(rank)].socket)});
  return out;
}

absl::StatusOr<std::vector<Pulse::Peer>> DialPulse(const std::string& address, RankGroup group) {
  group.line = RankLine::kPulse;
  const SteadyClock clock;
  BATON_ASSIGN_OR_RETURN(const net::HostPort at, net::ParseHostPort(address));
  const auto dial = [&]() -> absl::StatusOr<RankSocket> {
    BATON_ASSIGN_OR_RETURN(const auto found, net::Resolve(at.host, at.port));
    absl::StatusOr<RankSocket> out = absl::UnavailableError(StrCat(at.host, " has no address"));
    for (const net::SocketAddress& one : found) {
      out = DialRank(one, 0, group, {.rank = group.rank, .size = group.size, .line = RankLine::kPulse});
      if (out.ok() || !MayDoBetter(out.status())) break;
    }
    return out;
  };
  BATON_ASSIGN_OR_RETURN(RankSocket socket, Retry(StrCat("rank 0 at ", address), clock.Now() + group.patience, dial));
  std::vector<Pulse::Peer> out;
  out.push_back({0, std::move(socket)});
  return out;
}

absl::StatusOr<std::unique_ptr<TcpMesh>> JoinTcpMesh(const std::string& address, const RankGroup& group) {
  const SteadyClock clock;
  const TimePoint until = clock.Now() + group.patience;
  BATON_ASSIGN_OR_RETURN(const net::HostPort at, net::ParseHostPort(address));
  BATON_ASSIGN_OR_RETURN(Invitation invitation,
                         Retry(StrCat("rank 0 at ", address), until, [&] { return AskAtAnyAddress(at, group); }));
  RankGroup all_here = group;  // rank 0 invites when all have come
  all_here.patience = std::min(group.patience, kKnowEachOtherWithin);
  const TimePoint known_by = clock.Now() + all_here.patience;
  std::vector<RankSeat> seats(static_cast<size_t>(group.size));
  seats[0].socket = std::move(invitation.rank_zero);
  for (int peer = 1; peer < group.rank; ++peer) {
    const auto r = static_cast<size_t>(peer);
    BATON_ASSIGN_OR_RETURN(const auto where, invitation.places[r].address());
    BATON_ASSIGN_OR_RETURN(seats[r].socket, Retry(StrCat("rank ", peer, " at ", where.text()), known_by,
                                                  [&] { return DialRank(where, peer, all_here, invitation.hello); }));
  }
  const auto while_rank_zero_is_there = [&] {
    return IsThere(seats[0]) ? absl::OkStatus() : absl::UnavailableError("rank 0 is gone: closed");
  };
  BATON_RETURN_IF_ERROR(
      RankDoor(invitation.listener.get(), all_here).Admit(group.rank + 1, seats, while_rank_zero_is_there));
  return std::make_unique<TcpMesh>(group.rank, SocketsOf(seats));
}

}  // namespace baton::engine
