#include "kvtransfer/shm/unix_socket.h"

#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "common/errno_text.h"
#include "common/status.h"

namespace baton::unix_socket {
namespace {

constexpr size_t kNameBytes = 16;
constexpr std::string_view kPrefix = "baton-kv-";  // for people who list sockets

struct Address {
  sockaddr_un where{};
  socklen_t bytes = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&where); }
};

Address AddressOf(std::string_view name) {
  Address out;
  out.where.sun_family = AF_UNIX;
  const std::string whole = StrCat(kPrefix, name);
  std::memcpy(out.where.sun_path + 1, whole.data(), whole.size());  // behind a zero byte: abstract
  out.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + whole.size());
  return out;
}

absl::Status CloseWith(int socket, absl::Status why) {
  close(socket);
  return why;
}

absl::StatusOr<int> Make() {
  const int made = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (made < 0) return absl::ResourceExhaustedError(StrCat("a unix socket: ", ErrnoText()));
  return made;
}

}  // namespace

absl::StatusOr<Listener> Listen() {
  std::array<char, kNameBytes> random;
  if (getrandom(random.data(), random.size(), 0) != ssize_t{kNameBytes})
    return absl::UnavailableError("no random numbers");
  BATON_ASSIGN_OR_RETURN(const int made, Make());
  Listener out{made, absl::BytesToHexString({random.data(), random.size()})};
  const Address where = AddressOf(out.name);
  if (bind(out.socket, where.get(), where.bytes) != 0 || listen(out.socket, SOMAXCONN) != 0)
    return CloseWith(out.socket, absl::UnavailableError(StrCat("listen on a unix socket: ", ErrnoText())));
  return out;
}

absl::StatusOr<int> Dial(std::string_view name) {
  const auto digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (name.size() != 2 * kNameBytes || !std::ranges::all_of(name, digit))
    return absl::InvalidArgumentError(StrCat("a unix socket's name has ", 2 * kNameBytes, " hexadecimal digits, not ",
                                             name.size(), " bytes of others"));
  BATON_ASSIGN_OR_RETURN(const int made, Make());
  const Address where = AddressOf(name);
  if (connect(made, where.get(), where.bytes) == 0) return made;
  return CloseWith(made, absl::UnavailableError(StrCat("connect to a unix socket: ", ErrnoText())));
}

absl::Status CheckSameUser(int socket) {
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0)
    return absl::UnavailableError(StrCat("who is at the other end: ", ErrnoText()));
  if (peer.uid == geteuid()) return absl::OkStatus();
  return absl::PermissionDeniedError(
      StrCat("the process at the other end is of user ", peer.uid, ", this one of ", geteuid()));
}

}  // namespace baton::unix_socket
