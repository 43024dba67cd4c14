#include "cli/timed_socket.h"

#include <sys/socket.h>

#include <boost/asio/write.hpp>
#include <cerrno>
#include <cstring>

namespace baton::cli {

StopsSocket::StopsSocket(Cancellation* stop, int fd) : stop_(stop) {
  if (stop_ != nullptr) stop_->Set([fd] { shutdown(fd, SHUT_RDWR); });
}
StopsSocket::~StopsSocket() {
  if (stop_ != nullptr) stop_->Set({});
}

TimedSocket::TimedSocket(Duration patience)
    : until_(patience > Duration::zero() ? clock_.Now() + patience : TimePoint::max()) {}

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
  Error ignored;
  socket_.close(ignored);
  const int fd = socket(where.family(), SOCK_STREAM | SOCK_CLOEXEC, 0);  // Asio's own would be open in children, too
  if (fd < 0) {
    error = {errno, boost::system::system_category()};
    return;
  }
  Tcp::endpoint endpoint;
  endpoint.resize(where.bytes());
  std::memcpy(endpoint.data(), where.get(), where.bytes());
  socket_.assign(endpoint.protocol(), fd, error);
  socket_.set_option(Tcp::no_delay(true), ignored);
  const StopsSocket stops(stop, fd);
  Await(until, error, [&](auto done) { socket_.async_connect(endpoint, done); });
}

/// Runs what `begin` begins, with what is to be called at its end.
template <class Begin>
size_t TimedSocket::Await(TimePoint until, Error& error, const Begin& begin) {
  size_t bytes = 0;
  begin([&](const Error& why, size_t moved = 0) { error = why, bytes = moved; });
  context_.restart();
  if (until == TimePoint::max()) {
    context_.run();
  } else {
    context_.run_until(until);
  }
  if (context_.stopped()) return bytes;
  Error ignored;
  socket_.cancel(ignored);
  context_.run();
  if (error == boost::asio::error::operation_aborted) error = boost::asio::error::timed_out;
  return bytes;
}

size_t TimedSocket::Receive(boost::asio::mutable_buffer into, Error& error) {
  error = {};
  if (into.size() == 0) return 0;
  if (over()) {  // also where something comes all the time
    error = boost::asio::error::timed_out;
    return 0;
  }
  return Await(until_, error, [&](auto done) { socket_.async_read_some(into, done); });
}

void TimedSocket::Send(std::string_view bytes, Error& error) {
  error = {};
  if (bytes.empty()) return;
  Await(until_, error, [&](auto done) { boost::asio::async_write(socket_, boost::asio::buffer(bytes), done); });
}

}  // namespace baton::cli
