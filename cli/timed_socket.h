// TimedSocket: a TCP connection of a client that waits no longer than it was told, whatever the other side does.
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/system/error_code.hpp>
#include <cstddef>
#include <string_view>
#include <vector>

#include "cli/cancellation.h"
#include "common/clock.h"
#include "common/net/socket_address.h"

namespace baton::cli {

/// One thread's, but for what ends it (`Cancellation`). Errors are the system's, and Asio's eof.
class TimedSocket {
 public:
  using Error = boost::system::error_code;

  /// `patience`: for everything that follows, together; zero: as long as it takes.
  explicit TimedSocket(Duration patience);

  /// Tries one address after another, each for its share of the time that is left. `stop` (may be null) ends it.
  void Connect(const std::vector<net::SocketAddress>& addresses, Cancellation* stop, Error& error);
  /// What has come, at least a byte; 0 with an error.
  size_t Receive(boost::asio::mutable_buffer into, Error& error);
  /// All of it.
  void Send(std::string_view bytes, Error& error);
  /// What follows may take as long as it likes.
  void Lift() { until_ = TimePoint::max(); }

  /// The time is over.
  bool over() const { return clock_.Now() >= until_; }
  TimePoint until() const { return until_; }
  int fd() { return socket_.native_handle(); }

 private:
  using Tcp = boost::asio::ip::tcp;

  void Open(const net::SocketAddress& where, TimePoint until, Cancellation* stop, Error& error);
  template <class Begin>
  size_t Await(TimePoint until, Error& error, const Begin& begin);

  SteadyClock clock_;
  TimePoint until_;
  boost::asio::io_context context_{1};
  Tcp::socket socket_{context_};
};

/// While it lives, `stop` (may be null) ends what the socket waits for.
class StopsSocket {
 public:
  StopsSocket(Cancellation* stop, int fd);
  ~StopsSocket();
  StopsSocket(const StopsSocket&) = delete;
  StopsSocket& operator=(const StopsSocket&) = delete;

 private:
  Cancellation* const stop_;
};

}  // namespace baton::cli
