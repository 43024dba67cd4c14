// How a mesh comes to be: hello to rank 0, its list of addresses back, then everybody dials who has a lower number.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "common/errno_text.h"
#include "common/status.h"
#include "engine/parallel/tcp_mesh.h"

namespace baton::engine {
namespace {

constexpr size_t kSecretBytes = 32;
constexpr int kSliceMs = 20;

struct Hello {
  char secret[kSecretBytes];
  int32_t rank = 0;
  uint16_t port = 0;  ///< where it listens, network order
};
struct Place {
  in_addr host{};
  uint16_t port = 0;  ///< network order
};

/// A descriptor with an owner.
class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

absl::Status Failed(std::string_view what) { return absl::UnavailableError(StrCat(what, ": ", ErrnoText())); }

Hello HelloOf(const std::string& secret, int rank, uint16_t port) {
  Hello hello{.rank = rank, .port = port};
  std::memset(hello.secret, 0, kSecretBytes);
  secret.copy(hello.secret, kSecretBytes);
  return hello;
}

// Small messages, with the patience that the socket has.
absl::Status SendAll(int socket, const void* data, size_t bytes) {
  if (send(socket, data, bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes)) return absl::OkStatus();
  return Failed("a rank cannot be told");
}
absl::Status RecvAll(int socket, void* data, size_t bytes) {
  errno = 0;
  if (recv(socket, data, bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes)) return absl::OkStatus();
  return Failed("a rank does not answer");
}

void Prepare(int socket, Duration patience) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  const int64_t ms = std::max<int64_t>(1, static_cast<int64_t>(Milliseconds(patience)));
  const timeval limit{.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

struct Listener {
  Socket socket;
  Place place;
};
absl::StatusOr<Listener> ListenAt(in_addr host) {
  Listener out{.socket = Socket(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))};
  sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = host};
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(out.socket.get(), generic, length) != 0 || listen(out.socket.get(), 128) != 0 ||
      getsockname(out.socket.get(), generic, &length) != 0) {
    return Failed("ranks cannot listen");
  }
  out.place = {host, address.sin_port};
  return out;
}

absl::StatusOr<Socket> DialTo(Place place, Duration patience) {
  Socket out(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Prepare(out.get(), patience);
  const sockaddr_in address{.sin_family = AF_INET, .sin_port = place.port, .sin_addr = place.host};
  if (connect(out.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return Failed("a rank cannot be dialled");
  }
  return out;
}

// Accepts ranks [first, size) that know the secret; strangers are dropped.
class Door {
 public:
  Door(int listener, const std::string& secret, Duration patience, std::function<absl::Status()> alive)
      : listener_(listener), secret_(secret), patience_(patience), alive_(std::move(alive)) {}

  absl::Status Admit(int first, std::vector<int>& sockets, std::vector<Place>* places) {
    const TimePoint deadline = clock_.Now() + patience_;
    int missing = static_cast<int>(sockets.size()) - first;
    while (missing > 0) {
      BATON_RETURN_IF_ERROR(alive_());
      if (clock_.Now() > deadline) return Missing(first, sockets);
      pollfd ready{listener_, POLLIN, 0};
      if (poll(&ready, 1, kSliceMs) <= 0) continue;
      sockaddr_in from{};
      socklen_t length = sizeof(from);
      Socket guest(accept4(listener_, reinterpret_cast<sockaddr*>(&from), &length, SOCK_CLOEXEC));
      if (guest.get() < 0) continue;
      Prepare(guest.get(), std::chrono::seconds(2));
      Hello hello;
      if (!RecvAll(guest.get(), &hello, sizeof(hello)).ok()) continue;
      const Hello expected = HelloOf(secret_, hello.rank, hello.port);
      const bool known = std::memcmp(hello.secret, expected.secret, kSecretBytes) == 0;
      if (!known || hello.rank < first || hello.rank >= static_cast<int>(sockets.size())) continue;
      const auto rank = static_cast<size_t>(hello.rank);
      if (sockets[rank] >= 0) continue;
      if (places != nullptr) (*places)[rank] = {from.sin_addr, hello.port};
      sockets[rank] = guest.Release();
      --missing;
    }
    return absl::OkStatus();
  }

 private:
  static absl::Status Missing(int first, const std::vector<int>& sockets) {
    std::string who;
    for (size_t r = static_cast<size_t>(first); r < sockets.size(); ++r) {
      if (sockets[r] < 0) who += StrCat(who.empty() ? "" : ", ", r);
    }
    return absl::DeadlineExceededError(StrCat("ranks did not come: ", who));
  }
  const SteadyClock clock_;
  const int listener_;
  const std::string& secret_;
  const Duration patience_;
  const std::function<absl::Status()> alive_;
};

absl::StatusOr<Place> ParseAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  Place out;
  uint16_t port = 0;
  const bool host = colon != std::string::npos && inet_pton(AF_INET, address.substr(0, colon).c_str(), &out.host) == 1;
  if (!host || std::from_chars(address.data() + colon + 1, address.data() + address.size(), port).ec != std::errc()) {
    return absl::InvalidArgumentError(StrCat("\"", address, "\" is no IPv4 address with a port"));
  }
  out.port = htons(port);
  return out;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TcpMeetingPoint>> TcpMeetingPoint::Listen(const std::string& host) {
  BATON_ASSIGN_OR_RETURN(const Place place, ParseAddress(host + ":0"));
  BATON_ASSIGN_OR_RETURN(Listener listener, ListenAt(place.host));
  return std::unique_ptr<TcpMeetingPoint>(
      new TcpMeetingPoint(listener.socket.Release(), StrCat(host, ":", ntohs(listener.place.port))));
}

TcpMeetingPoint::~TcpMeetingPoint() { close(listener_); }

absl::StatusOr<std::unique_ptr<TcpMesh>> TcpMeetingPoint::Gather(int size, const std::string& secret, Duration patience,
                                                                 const std::function<absl::Status()>& alive) {
  std::vector<int> sockets(static_cast<size_t>(size), -1);
  std::vector<Place> places(static_cast<size_t>(size));
  const absl::Status admitted = Door(listener_, secret, patience, alive).Admit(1, sockets, &places);
  auto mesh = std::make_unique<TcpMesh>(0, sockets);  // owns what came, also when not all did
  BATON_RETURN_IF_ERROR(admitted);
  for (int rank = 1; rank < size; ++rank) {
    const TcpMesh::Out list{rank, std::as_bytes(std::span(places))};
    BATON_RETURN_IF_ERROR(mesh->Exchange({&list, 1}, {}));
  }
  return mesh;
}

absl::StatusOr<std::unique_ptr<TcpMesh>> JoinTcpMesh(const std::string& address, const std::string& secret, int rank,
                                                     int size, Duration patience) {
  BATON_ASSIGN_OR_RETURN(const Place zero, ParseAddress(address));
  BATON_ASSIGN_OR_RETURN(Socket host, DialTo(zero, patience));
  sockaddr_in own{};
  socklen_t length = sizeof(own);
  if (getsockname(host.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0) return Failed("a rank has no address");
  BATON_ASSIGN_OR_RETURN(const Listener listener, ListenAt(own.sin_addr));
  const Hello hello = HelloOf(secret, rank, listener.place.port);
  BATON_RETURN_IF_ERROR(SendAll(host.get(), &hello, sizeof(hello)));
  std::vector<Place> places(static_cast<size_t>(size));
  uint64_t bytes = 0;
  BATON_RETURN_IF_ERROR(RecvAll(host.get(), &bytes, sizeof(bytes)));
  if (bytes != places.size() * sizeof(Place)) {
    return absl::InternalError(StrCat("rank 0 lists ", bytes / sizeof(Place), " ranks, there are ", size));
  }
  BATON_RETURN_IF_ERROR(RecvAll(host.get(), places.data(), bytes));
  std::vector<Socket> dialled;
  for (int peer = 1; peer < rank; ++peer) {
    BATON_ASSIGN_OR_RETURN(Socket socket, DialTo(places[static_cast<size_t>(peer)], patience));
    BATON_RETURN_IF_ERROR(SendAll(socket.get(), &hello, sizeof(hello)));
    dialled.push_back(std::move(socket));
  }
  std::vector<int> sockets(static_cast<size_t>(size), -1);
  sockets[0] = host.Release();
  for (int peer = 1; peer < rank; ++peer)
    sockets[static_cast<size_t>(peer)] = dialled[static_cast<size_t>(peer - 1)].Release();
  const auto always = [] { return absl::OkStatus(); };
  const absl::Status admitted = Door(listener.socket.get(), secret, patience, always).Admit(rank + 1, sockets, nullptr);
  auto mesh = std::make_unique<TcpMesh>(rank, sockets);
  BATON_RETURN_IF_ERROR(admitted);
  return mesh;
}

}  // namespace baton::engine
