#include "engine/parallel/rank_door.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/errno_text.h"
#include "common/log.h"
#include "common/net/connection_shares.h"
#include "common/net/socket_address.h"
#include "common/status.h"
#include "common/tls/context.h"
#include "common/tls/peer_tls.h"

namespace baton::engine {
namespace {

constexpr int kSliceMs = 20;
constexpr int kMostRanks = 1 << 16;

std::string CountedHost(const std::string& host) {
  const auto from = net::CountedAs(host);
  return from ? from->to_string() : host;
}

absl::Status Missing(int first, const std::vector<RankSeat>& seats) {
  std::string who;
  for (size_t r = static_cast<size_t>(first); r < seats.size(); ++r) {
    if (!IsThere(seats[r])) who += StrCat(who.empty() ? "" : ", ", r);
  }
  return absl::DeadlineExceededError(StrCat("ranks did not come: ", who));
}

}  // namespace

bool IsThere(const RankSeat& seat) {
  if (seat.socket.get() < 0) return false;
  char byte;
  const ssize_t n = recv(seat.socket.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return n > 0 || (n < 0 && WouldBlock());
}

absl::Status RankDoor::Admit(int first, std::vector<RankSeat>& seats, const std::function<absl::Status()>& alive) {
  const TimePoint deadline = clock_.Now() + group_.patience;
  const auto complete = [&] {  // to rank 0 one that ended comes again; then the group is whole, and who ends, ends it
    for (size_t r = static_cast<size_t>(first); r < seats.size(); ++r) {
      if (!IsThere(seats[r]) && (group_.rank == 0 || seats[r].socket.get() < 0)) return false;
    }
    return true;
  };
  while (!complete()) {
    BATON_RETURN_IF_ERROR(alive());
    if (clock_.Now() > deadline) return Missing(first, seats);
    std::vector<pollfd> ready = {{listener_, POLLIN, 0}};
    for (const Guest& guest : guests_) ready.push_back({guest.socket.get(), POLLIN, 0});
    poll(ready.data(), ready.size(), kSliceMs);
    AcceptAll();
    HearAll(first, seats);
  }
  return absl::OkStatus();
}

void RankDoor::AcceptAll() {
  // Who comes without end keeps nobody who is here from being heard.
  for (size_t turn = 0; turn < kMostGuests; ++turn) {
    RankSocket socket(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC));
    if (socket.get() < 0) return;
    std::string host = net::SocketAddress::OfPeer(socket.get()).host(), counted = CountedHost(host);
    if (absl::Status room = MakeRoom(counted); !room.ok()) {
      Refuse(host, room);
      continue;
    }
    PrepareRankSocket(socket.get(), group_.patience);
    std::shared_ptr<const tls::Context> tls;
    if (group_.trust.tls != nullptr) {
      auto made = group_.trust.tls->ForDialled();
      if (!made.ok()) {
        Refuse(host, made.status());
        continue;
      }
      tls = *std::move(made);
    }
    Guest& guest =
        guests_.emplace_back(Guest{.socket = std::move(socket),
                                   .host = std::move(host),
                                   .counted = std::move(counted),
                                   .until = clock_.Now() + kGreetWithin,
                                   .greeting = trust::Greeting(group_.trust.secret, trust::Greeting::Role::kCallee,
                                                               trust::Purpose::kRanks, trust::NewNonce()),
                                   .tls = std::move(tls),
                                   .hello = {},
                                   .hello_bytes = 0});
    ++guests_of_[guest.counted];
    std::string none;
    guest.greeting.Begin(none);
  }
}

absl::Status RankDoor::MakeRoom(const std::string& counted) {
  const auto known = guests_of_.find(counted);
  const size_t of_host = known == guests_of_.end() ? 0 : known->second;
  const absl::Status full = absl::ResourceExhaustedError(StrCat(of_host, " connections of this address and ",
                                                                guests_.size(), " in all have not greeted, at most ",
                                                                kMostGuestsOfHost, " and ", kMostGuests));
  if (of_host >= kMostGuestsOfHost) return full;
  if (guests_.size() < kMostGuests) return absl::OkStatus();
  const auto most = std::ranges::max_element(guests_of_, {}, [](const auto& host) { return host.second; });
  if (most->second <= of_host + 1) return full;
  const auto oldest = std::ranges::find(guests_, most->first, &Guest::counted);
  Refuse(oldest->host, absl::ResourceExhaustedError(StrCat(
                           "more than ", kMostGuests, " connections have not greeted, and most are its address's")));
  Leave(oldest);
  return absl::OkStatus();
}

std::list<RankDoor::Guest>::iterator RankDoor::Leave(std::list<Guest>::iterator guest) {
  if (const auto of_host = guests_of_.find(guest->counted); --of_host->second == 0) guests_of_.erase(of_host);
  return guests_.erase(guest);
}

absl::StatusOr<bool> RankDoor::Hear(Guest& guest) {
  const auto gone = [&] {
    if (guest.greeting.answered() && !guest.greeting.done())
      return absl::UnavailableError("it left when it had our proof: its cluster secret is another one");
    return absl::UnavailableError("it left before it had greeted");
  };
  while (!guest.greeting.done()) {
    char buffer[trust::kMostGreetingBytes];
    const ssize_t n = recv(guest.socket.get(), buffer, guest.greeting.missing(), MSG_DONTWAIT);
    if (n < 0 && WouldBlock()) return false;
    if (n <= 0) return gone();
    std::string_view in(buffer, static_cast<size_t>(n));
    std::string out;
    BATON_RETURN_IF_ERROR(guest.greeting.Take(in, out));
    const auto bytes = static_cast<ssize_t>(out.size());
    if (bytes > 0 && send(guest.socket.get(), out.data(), out.size(), MSG_NOSIGNAL | MSG_DONTWAIT) != bytes)
      return gone();
    if (guest.greeting.done() && guest.tls != nullptr) guest.socket.Encrypt(std::move(guest.tls));
  }
  tls::Stream& stream = guest.socket.stream();
  while (guest.hello_bytes < sizeof(RankHello)) {
    char* to = reinterpret_cast<char*>(&guest.hello) + guest.hello_bytes;
    const absl::StatusOr<size_t> got = stream.Read(to, sizeof(RankHello) - guest.hello_bytes);
    if (absl::IsUnavailable(got.status())) return gone();
    BATON_RETURN_IF_ERROR(got.status());
    if (*got == 0) return false;
    guest.hello_bytes += *got;
  }
  return true;
}

absl::Status RankDoor::Judge(const RankHello& hello, int first, const std::vector<RankSeat>& seats) const {
  if (group_.trust.tls == nullptr && hello.rank >= kMostRanks)  // no rank: the first bytes of something else
    BATON_RETURN_IF_ERROR(tls::CheckPlain(static_cast<char>(hello.rank)));
  if (hello.size != group_.size) {
    return absl::FailedPreconditionError(
        StrCat("rank ", hello.rank, " was started for a group of ", hello.size, " ranks, this one has ", group_.size));
  }
  if (hello.rank < first || hello.rank >= group_.size) {
    return absl::FailedPreconditionError(
        StrCat("no rank ", hello.rank, " is awaited here, but ", first, " to ", group_.size - 1));
  }
  if (hello.line != group_.line) {
    return absl::UnavailableError(StrCat("rank ", hello.rank, " comes for ",
                                         hello.line == RankLine::kPulse ? "the pulse" : "the steps",
                                         ", which the group does not do now"));
  }
  const RankSeat& seat = seats[static_cast<size_t>(hello.rank)];
  if (!IsThere(seat)) return absl::OkStatus();
  return absl::AlreadyExistsError(StrCat("rank ", hello.rank, " is there already, from ", seat.host,
                                         ": two processes were started with one index"));
}

void RankDoor::HearAll(int first, std::vector<RankSeat>& seats) {
  for (auto at = guests_.begin(); at != guests_.end();) {
    Guest& guest = *at;
    absl::StatusOr<bool> heard = Hear(guest);
    if (heard.ok() && !*heard && clock_.Now() > guest.until) {
      heard = absl::DeadlineExceededError(
          StrCat("it has not greeted within ", static_cast<int>(Seconds(kGreetWithin)), " s"));
    }
    if (heard.ok() && !*heard) {
      ++at;
      continue;
    }
    absl::Status judged = heard.status();
    if (judged.ok()) {
      judged = Judge(guest.hello, first, seats);
      const RankVerdict verdict = RankVerdict::Of(judged);
      const absl::Status told = SendToRank(guest.socket, &verdict, sizeof(verdict), "a rank", kGreetWithin);
      if (judged.ok()) judged = told;
    }
    if (judged.ok()) {
      seats[static_cast<size_t>(guest.hello.rank)] = {std::move(guest.socket), guest.host, guest.hello.port};
    } else {
      Refuse(guest.host, judged);
    }
    at = Leave(at);
  }
}

void RankDoor::Refuse(const std::string& host, const absl::Status& why) {
  ++refused_;
  if (lines_.May(host)) LogWarning("ranks: a connection from {} is refused: {}", host, View(why.message()));
}

}  // namespace baton::engine
