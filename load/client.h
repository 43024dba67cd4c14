// A client of one server: many requests at a time over kept connections, on one io thread (the caller's). Nothing here
// decides when to send.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "load/outcome.h"

namespace baton::load {

struct Server {
  std::string host, port, path;  ///< path of the requests
  std::vector<std::pair<std::string, std::string>> headers;
  Duration timeout{};  ///< of one answer
};

class Client {
 public:
  /// Both must outlive this. Offsets of an outcome are `clock`'s minus `start`.
  Client(const Server& server, const Clock& clock) : server_(server), clock_(clock) {}

  void Begin(TimePoint start) { start_ = start; }
  Duration Since() const { return clock_.Now() - start_; }

  /// Sends one request and reads its answer into `outcome` (sent, arrivals, end, answer, failure). Never throws.
  boost::asio::awaitable<void> Ask(std::string body, std::string request_id, Outcome& outcome);

  /// How many connections were made: fewer than requests, where the server keeps them.
  int64_t connections() const { return connections_; }

 private:
  using Stream = boost::beast::tcp_stream;

  struct Turn;  // one request on one connection
  boost::asio::awaitable<bool> Exchange(Turn& turn);
  boost::asio::awaitable<std::unique_ptr<Stream>> Connect(Outcome& outcome, TimePoint deadline);

  const Server& server_;
  const Clock& clock_;
  TimePoint start_{};
  std::vector<std::unique_ptr<Stream>> idle_;
  boost::asio::ip::tcp::resolver::results_type addresses_;  // resolved once
  int64_t connections_ = 0;
};

}  // namespace baton::load
