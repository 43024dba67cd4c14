#include "engine/parallel/rank_greeting.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/errno_text.h"
#include "common/net/keep_alive.h"
#include "common/status.h"
#include "common/tls/context.h"
#include "common/tls/peer_tls.h"
#include "common/trust/greeting.h"

namespace baton::engine {
namespace {

absl::Status Ended(std::string_view who, std::string_view doing, const absl::Status& why) {
  if (absl::IsUnauthenticated(why)) return absl::UnauthenticatedError(StrCat(who, ": ", View(why.message())));
  return absl::UnavailableError(StrCat(who, " went away while it ", doing, ": ", View(why.message())));
}

/// True: the socket has what `events` ask for. False: not before `until`.
bool AwaitSocket(const RankSocket& socket, short events, TimePoint until) {
  const SteadyClock clock;
  for (;;) {
    const auto left = static_cast<int>(Milliseconds(until - clock.Now()));
    pollfd ready{socket.get(), events, 0};
    if (left > 0 && poll(&ready, 1, left) > 0) return true;
    if (left <= 0) return false;
  }
}

absl::Status TooLate(std::string_view who, std::string_view doing) {
  return absl::DeadlineExceededError(StrCat(who, " has not answered in time while it ", doing));
}

absl::Status With(std::string_view who, const absl::Status& status) {
  return absl::Status(status.code(), StrCat(who, ": ", View(status.message())));
}

// Reads what belongs to the greeting and no byte more.
absl::Status GreetAsCaller(const RankSocket& socket, const RankGroup& group, std::string_view who, Duration patience) {
  const SteadyClock clock;
  const TimePoint until = clock.Now() + patience;
  trust::Greeting greeting(group.trust.secret, trust::Greeting::Role::kCaller, trust::Purpose::kRanks,
                           trust::NewNonce());
  std::string out;
  greeting.Begin(out);
  BATON_RETURN_IF_ERROR(SendToRank(socket, out.data(), out.size(), who, patience));
  while (!greeting.done()) {
    char buffer[trust::kMostGreetingBytes];
    if (!AwaitSocket(socket, POLLIN, until)) return TooLate(who, "was to greet");
    const absl::StatusOr<size_t> got = socket.stream().Read(buffer, greeting.missing());
    if (!got.ok()) return Ended(who, "was to greet", got.status());
    std::string_view in(buffer, *got);
    out.clear();
    if (absl::Status status = greeting.Take(in, out); !status.ok()) return With(who, status);
    if (!out.empty()) BATON_RETURN_IF_ERROR(SendToRank(socket, out.data(), out.size(), who, patience));
  }
  return absl::OkStatus();
}

}  // namespace

RankVerdict RankVerdict::Of(const absl::Status& status) {
  RankVerdict verdict;
  verdict.code = static_cast<uint8_t>(status.raw_code());
  verdict.length = static_cast<uint8_t>(std::min(status.message().size(), sizeof(verdict.text)));
  status.message().copy(verdict.text, verdict.length);
  return verdict;
}

absl::Status RankVerdict::status() const {
  return absl::Status(static_cast<absl::StatusCode>(code), std::string(text, std::min<size_t>(length, sizeof(text))));
}

bool WouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

void PrepareRankSocket(int socket, Duration patience) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  net::KeepAlive(socket);  // between requests ranks say nothing
  const int64_t ms = std::max<int64_t>(1, static_cast<int64_t>(Milliseconds(patience)));
  const timeval limit{.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

absl::Status SendToRank(const RankSocket& socket, const void* data, size_t bytes, std::string_view who,
                        Duration patience) {
  const SteadyClock clock;
  const TimePoint until = clock.Now() + patience;
  tls::Stream& stream = socket.stream();
  for (size_t sent = 0; sent < bytes || stream.unsent();) {
    const iovec rest{const_cast<char*>(static_cast<const char*>(data)) + sent, bytes - sent};
    const absl::StatusOr<size_t> more = stream.Write({&rest, 1});
    if (!more.ok()) return Ended(who, "was spoken to", more.status());
    sent += *more;
    if (*more > 0) continue;
    const bool waits_for_it = !stream.ready() && !stream.unsent();  // the handshake is its turn
    if (!AwaitSocket(socket, waits_for_it ? POLLIN : POLLOUT, until)) return TooLate(who, "was spoken to");
    if (stream.ready()) continue;
    if (const auto heard = stream.Read(nullptr, 0); !heard.ok()) return Ended(who, "was spoken to", heard.status());
  }
  return absl::OkStatus();
}

absl::Status RecvFromRank(const RankSocket& socket, void* data, size_t bytes, std::string_view who, Duration patience) {
  const SteadyClock clock;
  const TimePoint until = clock.Now() + patience;
  for (size_t got = 0; got < bytes;) {
    char* const to = static_cast<char*>(data) + got;
    const absl::StatusOr<size_t> more = socket.stream().Read(to, bytes - got);
    if (!more.ok()) return Ended(who, "was to answer", more.status());
    if (got == 0 && *more > 0 && !socket.stream().is_tls()) {
      if (const absl::Status plain = tls::CheckPlain(*to); !plain.ok()) return Ended(who, "was to answer", plain);
    }
    got += *more;
    if (*more == 0 && !AwaitSocket(socket, POLLIN, until)) return TooLate(who, "was to answer");
  }
  return absl::OkStatus();
}

absl::StatusOr<RankSocket> DialRank(const net::SocketAddress& where, int peer, const RankGroup& group,
                                    const RankHello& hello) {
  const std::string who = StrCat("rank ", peer, " at ", where.text());
  RankSocket out(socket(where.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  const Duration patience = std::min<Duration>(kGreetWithin, group.patience);
  PrepareRankSocket(out.get(), patience);
  if (connect(out.get(), where.get(), where.bytes()) != 0) {
    const std::string_view closed = errno == ECONNREFUSED ? " (it has not started, or its group is whole)" : "";
    return absl::UnavailableError(
        StrCat(who, " cannot be reached: ", errno == EINPROGRESS ? std::string("no answer") : ErrnoText(), closed));
  }
  BATON_RETURN_IF_ERROR(GreetAsCaller(out, group, who, patience));
  if (group.trust.tls != nullptr) {
    BATON_ASSIGN_OR_RETURN(auto context, group.trust.tls->ForDialling(where.host()));
    out.Encrypt(std::move(context));
  }
  BATON_RETURN_IF_ERROR(SendToRank(out, &hello, sizeof(hello), who, patience));
  RankVerdict verdict;
  BATON_RETURN_IF_ERROR(RecvFromRank(out, &verdict, sizeof(verdict), who, patience));
  if (absl::Status status = verdict.status(); !status.ok()) return With(who, status);
  PrepareRankSocket(out.get(), group.patience);
  return out;
}

}  // namespace baton::engine
