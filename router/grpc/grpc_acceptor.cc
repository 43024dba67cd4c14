#include "router/grpc/grpc_acceptor.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/ip/tcp.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "common/clock.h"
#include "common/errno_text.h"
#include "common/str_cat.h"

namespace baton::router {
namespace {

/// Whoever asks in vain costs no more than one look at all connections in this time.
constexpr Duration kSweepPause = std::chrono::milliseconds(20);
constexpr int kNoDescriptorPauseMs = 10;

/// 0: it is closed.
uint64_t InodeOf(int fd) {
  struct stat found{};
  return fstat(fd, &found) == 0 && S_ISSOCK(found.st_mode) ? found.st_ino : 0;
}

absl::Status CannotListen(const net::SocketAddress& where) {
  const int why = errno;
  const std::string message =
      StrCat("cannot listen on ", where.text(), " for gRPC: ", ErrnoText(why), " (--host, --grpc-port)");
  return why == EADDRINUSE ? absl::AlreadyExistsError(message) : absl::PermissionDeniedError(message);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcAcceptor>> GrpcAcceptor::Listen(
    Options options, std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> to) {
  const int fd = net::BoundSocket(options.where, SOCK_NONBLOCK);
  if (fd < 0 || listen(fd, SOMAXCONN) != 0) {
    const absl::Status why = CannotListen(options.where);
    if (fd >= 0) close(fd);
    return why;
  }
  return std::unique_ptr<GrpcAcceptor>(new GrpcAcceptor(std::move(options), std::move(to), fd));
}

GrpcAcceptor::GrpcAcceptor(Options options, std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> to,
                           int listener)
    : options_(std::move(options)),
      to_(std::move(to)),
      listener_(listener),
      stop_(eventfd(0, EFD_CLOEXEC)),
      shares_(options_.limits) {
  BATON_CHECK(stop_ >= 0, "no eventfd: ", ErrnoText(errno));
  boost::asio::ip::tcp::endpoint bound;
  socklen_t bytes = static_cast<socklen_t>(bound.capacity());
  BATON_CHECK(getsockname(listener_, bound.data(), &bytes) == 0, "getsockname: ", ErrnoText(errno));
  bound.resize(bytes);
  port_ = bound.port();
}

GrpcAcceptor::~GrpcAcceptor() {
  Stop();
  close(stop_);
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
    pollfd wait[] = {{listener_, POLLIN, 0}, {stop_, POLLIN, 0}};
    poll(wait, 2, -1);
    if (wait[1].revents != 0) return;
    boost::asio::ip::tcp::endpoint peer;
    socklen_t bytes = static_cast<socklen_t>(peer.capacity());
    const int fd = accept4(listener_, peer.data(), &bytes, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {  // out of descriptors: give running connections time to end
      if (errno == EMFILE || errno == ENFILE) poll(&wait[1], 1, kNoDescriptorPauseMs);
      continue;
    }
    peer.resize(bytes);
    Take(fd, CountedAs(peer.address()));
  }
}

void GrpcAcceptor::Take(int fd, const boost::asio::ip::address& from) {
  const char* full = shares_.Enter(from);
  if (full != nullptr) {
    Sweep();
    full = shares_.Enter(from);
  }
  if (full != nullptr) {
    options_.refused(full);  // who sees the end of the connection finds it counted
    close(fd);
    return;
  }
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  taken_.push_back({fd, InodeOf(fd), from});
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
  connection.listener_fd = listener_;
  connection.fd = fd;
  to_->HandleNewConnection(&connection);
}

void GrpcAcceptor::Sweep() {
  const TimePoint now = SteadyClock().Now();
  if (now - swept_ < kSweepPause) return;
  swept_ = now;
  std::erase_if(taken_, [this](const Taken& one) {
    const bool ended = InodeOf(one.fd) != one.inode;
    if (ended) shares_.Leave(one.from);
    return ended;
  });
}

}  // namespace baton::router
