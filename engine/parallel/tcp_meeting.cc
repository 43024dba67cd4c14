// The making of a mesh: a hello of every rank to rank 0, its list of addresses back, then every rank dials those with
// lower numbers.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/errno_text.h"
#include "common/net/address.h"
#include "common/net/socket_address.h"
#include "common/status.h"
#include "engine/parallel/tcp_mesh.h"

namespace baton::engine {
namespace {

constexpr size_t kSecretBytes = 32;
constexpr int kSliceMs = 20, kBacklog = 128;

struct Hello {
  char secret[kSecretBytes];
  int32_t rank = 0;
  uint16_t port = 0;  ///< where it listens
};
/// Where a rank listens, as rank 0 tells it to the others.
struct Place {
  char host[62] = {};  ///< an IP address as text, zero behind it
  uint16_t port = 0;

  static Place Of(const net::SocketAddress& address, uint16_t port) {
    Place place;
    address.host().copy(place.host, sizeof(place.host) - 1);
    place.port = port;
    return place;
  }
  absl::StatusOr<net::SocketAddress> address() const {
    return net::SocketAddress::Of(std::string(host, strnlen(host, sizeof(host))), port);
  }
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

absl::StatusOr<Socket> DialTo(const net::SocketAddress& where, Duration patience) {
  Socket out(socket(where.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  Prepare(out.get(), patience);
  if (connect(out.get(), where.get(), where.bytes()) != 0) {
    return Failed(StrCat("a rank cannot be dialled at ", where.text()));
  }
  return out;
}

/// The first of rank 0's addresses that answers.
absl::StatusOr<Socket> DialRankZero(const std::string& address, Duration patience) {
  BATON_ASSIGN_OR_RETURN(const net::HostPort where, net::ParseHostPort(address));
  BATON_ASSIGN_OR_RETURN(const auto found, net::Resolve(where.host, where.port));
  absl::StatusOr<Socket> out = absl::UnavailableError("");
  for (const net::SocketAddress& one : found) {
    out = DialTo(one, patience);
    if (out.ok()) break;
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
      Socket guest(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC));
      if (guest.get() < 0) continue;
      Prepare(guest.get(), std::chrono::seconds(2));
      Hello hello;
      if (!RecvAll(guest.get(), &hello, sizeof(hello)).ok()) continue;
      const Hello expected = HelloOf(secret_, hello.rank, hello.port);
      const bool known = std::memcmp(hello.secret, expected.secret, kSecretBytes) == 0;
      if (!known || hello.rank < first || hello.rank >= static_cast<int>(sockets.size())) continue;
      const auto rank = static_cast<size_t>(hello.rank);
      if (sockets[rank] >= 0) continue;
      if (places != nullptr) (*places)[rank] = Place::Of(net::SocketAddress::OfPeer(guest.get()), hello.port);
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

}  // namespace

absl::StatusOr<std::unique_ptr<TcpMeetingPoint>> TcpMeetingPoint::Listen(const std::string& host) {
  BATON_ASSIGN_OR_RETURN(const net::SocketAddress where, net::AddressToBind(host, 0));
  BATON_ASSIGN_OR_RETURN(const int listener, net::ListenAt(where, 0, kBacklog));
  const uint16_t port = net::SocketAddress::OfSocket(listener).port();
  return std::unique_ptr<TcpMeetingPoint>(new TcpMeetingPoint(listener, net::JoinHostPort(host, port)));
}

TcpMeetingPoint::~TcpMeetingPoint() { close(listener_); }

absl::StatusOr<std::unique_ptr<TcpMesh>> TcpMeetingPoint::Gather(int size, const std::string& secret, Duration patience,
                                                                 const std::function<absl::Status()>& alive) {
  std::vector<int> sockets(static_cast<size_t>(size), -1);
  std::vector<Place> places(static_cast<size_t>(size));
  const absl::Status admitted = Door(listener_, secret, patience, alive).Admit(1, sockets, &places);
  auto mesh = std::make_unique<TcpMesh>(0, sockets);  // owns the sockets that came, also when not all did
  BATON_RETURN_IF_ERROR(admitted);
  for (int rank = 1; rank < size; ++rank) {
    const TcpMesh::Out list{rank, std::as_bytes(std::span(places))};
    BATON_RETURN_IF_ERROR(mesh->Exchange({&list, 1}, {}));
  }
  return mesh;
}

absl::StatusOr<std::unique_ptr<TcpMesh>> JoinTcpMesh(const std::string& address, const std::string& secret, int rank,
                                                     int size, Duration patience) {
  BATON_ASSIGN_OR_RETURN(Socket host, DialRankZero(address, patience));
  const net::SocketAddress own = net::SocketAddress::OfSocket(host.get()).WithPort(0);
  BATON_ASSIGN_OR_RETURN(const int listening, net::ListenAt(own, 0, kBacklog));
  const Socket listener(listening);
  const Hello hello = HelloOf(secret, rank, net::SocketAddress::OfSocket(listening).port());
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
    BATON_ASSIGN_OR_RETURN(const auto where, places[static_cast<size_t>(peer)].address());
    BATON_ASSIGN_OR_RETURN(Socket socket, DialTo(where, patience));
    BATON_RETURN_IF_ERROR(SendAll(socket.get(), &hello, sizeof(hello)));
    dialled.push_back(std::move(socket));
  }
  std::vector<int> sockets(static_cast<size_t>(size), -1);
  sockets[0] = host.Release();
  for (int peer = 1; peer < rank; ++peer)
    sockets[static_cast<size_t>(peer)] = dialled[static_cast<size_t>(peer - 1)].Release();
  const auto always = [] { return absl::OkStatus(); };
  const absl::Status admitted = Door(listener.get(), secret, patience, always).Admit(rank + 1, sockets, nullptr);
  auto mesh = std::make_unique<TcpMesh>(rank, sockets);
  BATON_RETURN_IF_ERROR(admitted);
  return mesh;
}

}  // namespace baton::engine
