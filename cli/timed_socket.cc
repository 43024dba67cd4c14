#include "cli/timed_socket.h"

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/error.hpp>
#include <cerrno>
#include <chrono>

namespace baton::cli {
namespace {

TimedSocket::Error SystemError(int number) { return {number, boost::system::system_category()}; }

}  // namespace

StopsSocket::StopsSocket(Cancellation* stop, int fd) : stop_(stop) {
  if (stop_ != nullptr) stop_->Set([fd] { shutdown(fd, SHUT_RDWR); });
}
StopsSocket::~StopsSocket() {
  if (stop_ != nullptr) stop_->Set({});
}

TimedSocket::TimedSocket(Duration patience)
    : until_(patience > Duration::zero() ? clock_.Now() + patience : TimePoint::max()) {}
TimedSocket::~TimedSocket() { Close(); }

void TimedSocket::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

void TimedSocket::Connect(const std::vector<net::SocketAddress>& addresses, Cancellation* stop, Error& error) {
  error = boost::asio::error::host_not_found;
  for (size_t i = 0; i < addresses.size(); ++i) {
    if (stop != nullptr && stop->cancelled()) {
      error = boost::asio::error::operation_aborted;
      return;
    }
    const TimePoint now = clock_.Now();
    const bool forever = until_ == TimePoint::max();
    const Duration share = forever ? Duration::zero() : (until_ - now) / static_cast<int64_t>(addresses.size() - i);
    Open(addresses[i], forever ? until_ : now + share, stop, error);
    if (!error) return;
  }
}

void TimedSocket::Open(const net::SocketAddress& where, TimePoint until, Cancellation* stop, Error& error) {
  Close();
  error = {};
  fd_ = socket(where.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd_ < 0) {
    error = SystemError(errno);
    return;
  }
  const int on = 1;
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  const StopsSocket stops(stop, fd_);
  if (connect(fd_, where.get(), where.bytes()) == 0) return;
  if (errno != EINPROGRESS) {
    error = SystemError(errno);
    return;
  }
  Await(POLLOUT, until, error);
  if (error) return;
  int why = 0;
  socklen_t bytes = sizeof(why);
  getsockopt(fd_, SOL_SOCKET, SO_ERROR, &why, &bytes);
  if (why != 0) error = SystemError(why);
}

/// Until the socket is ready for POLLIN or POLLOUT.
void TimedSocket::Await(int16_t events, TimePoint until, Error& error) const {
  for (;;) {
    int wait_ms = -1;
    if (until != TimePoint::max()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - clock_.Now()).count();
      if (left <= 0) {
        error = boost::asio::error::timed_out;
        return;
      }
      wait_ms = static_cast<int>(std::min<int64_t>(left, 60'000));
    }
    pollfd waits{fd_, events, 0};
    const int ready = poll(&waits, 1, wait_ms);
    if (ready > 0) return;
    if (ready < 0 && errno != EINTR) {
      error = SystemError(errno);
      return;
    }
  }
}

size_t TimedSocket::Receive(boost::asio::mutable_buffer into, Error& error) {
  error = {};
  if (into.size() == 0) return 0;
  for (;;) {
    if (over()) {  // also where something comes all the time
      error = boost::asio::error::timed_out;
      return 0;
    }
    const ssize_t got = recv(fd_, into.data(), into.size(), 0);
    if (got > 0) return static_cast<size_t>(got);
    if (got == 0) {
      error = boost::asio::error::eof;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      Await(POLLIN, until_, error);
    } else if (errno != EINTR) {
      error = SystemError(errno);
    }
    if (error) return 0;
  }
}

void TimedSocket::Send(std::string_view bytes, Error& error) {
  error = {};
  while (!bytes.empty() && !error) {
    const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      Await(POLLOUT, until_, error);
    } else if (errno != EINTR) {
      error = SystemError(errno);
    }
  }
}

}  // namespace baton::cli
