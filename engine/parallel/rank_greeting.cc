#include "engine/parallel/rank_greeting.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/errno_text.h"
#include "common/status.h"
#include "common/trust/greeting.h"

namespace baton::engine {
namespace {

absl::Status Ended(std::string_view who, std::string_view doing) {
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINPROGRESS)
    return absl::DeadlineExceededError(StrCat(who, " has not answered in time while it ", doing));
  return absl::UnavailableError(
      StrCat(who, " went away while it ", doing, errno == 0 ? std::string() : StrCat(": ", ErrnoText())));
}

absl::Status With(std::string_view who, const absl::Status& status) {
  return absl::Status(status.code(), StrCat(who, ": ", View(status.message())));
}

// Reads what belongs to the greeting and no byte more.
absl::Status GreetAsCaller(int socket, const RankGroup& group, std::string_view who) {
  const SteadyClock clock;
  const TimePoint until = clock.Now() + kGreetWithin;
  trust::Greeting greeting(group.secret, trust::Greeting::Role::kCaller, trust::Purpose::kRanks, trust::NewNonce());
  std::string out;
  greeting.Begin(out);
  BATON_RETURN_IF_ERROR(SendToRank(socket, out.data(), out.size(), who));
  while (!greeting.done()) {
    char buffer[trust::kMostGreetingBytes];
    errno = 0;
    const ssize_t n = recv(socket, buffer, greeting.missing(), 0);
    if (n <= 0) return Ended(who, "was to greet");
    if (clock.Now() > until) return absl::DeadlineExceededError(StrCat(who, " takes too long to greet"));
    std::string_view in(buffer, static_cast<size_t>(n));
    out.clear();
    if (absl::Status status = greeting.Take(in, out); !status.ok()) return With(who, status);
    if (!out.empty()) BATON_RETURN_IF_ERROR(SendToRank(socket, out.data(), out.size(), who));
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
  const int64_t ms = std::max<int64_t>(1, static_cast<int64_t>(Milliseconds(patience)));
  const timeval limit{.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

absl::Status SendToRank(int socket, const void* data, size_t bytes, std::string_view who) {
  if (send(socket, data, bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes)) return absl::OkStatus();
  return Ended(who, "was spoken to");
}

absl::Status RecvFromRank(int socket, void* data, size_t bytes, std::string_view who) {
  errno = 0;
  if (recv(socket, data, bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes)) return absl::OkStatus();
  return Ended(who, "was to answer");
}

absl::StatusOr<RankSocket> DialRank(const net::SocketAddress& where, int peer, const RankGroup& group,
                                    const RankHello& hello) {
  const std::string who = StrCat("rank ", peer, " at ", where.text());
  RankSocket out(socket(where.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  PrepareRankSocket(out.get(), std::min(kGreetWithin, group.patience));
  if (connect(out.get(), where.get(), where.bytes()) != 0)
    return absl::UnavailableError(
        StrCat(who, " cannot be reached: ", errno == EINPROGRESS ? std::string("no answer") : ErrnoText()));
  BATON_RETURN_IF_ERROR(GreetAsCaller(out.get(), group, who));
  BATON_RETURN_IF_ERROR(SendToRank(out.get(), &hello, sizeof(hello), who));
  RankVerdict verdict;
  BATON_RETURN_IF_ERROR(RecvFromRank(out.get(), &verdict, sizeof(verdict), who));
  if (absl::Status status = verdict.status(); !status.ok()) return With(who, status);
  PrepareRankSocket(out.get(), group.patience);
  return out;
}

}  // namespace baton::engine
