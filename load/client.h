// A client of one server: many requests at a time over kept connections, on one io thread (the caller's). Nothing here
// decides when to send.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "load/https.h"
#include "load/outcome.h"

namespace baton::load {

struct Server {
  std::string host, port, path;  ///< path of the requests
  std::vector<std::pair<std::string, std::string>> headers;
  Duration timeout{};  ///< of one answer
  TlsContext tls{};    ///< null: plain text
};

class Client {
 public:
  /// Both must outlive this. Offsets of an outcome are `clock`'s minus `start`.
  Client(const Server& server, const Clock& clock);
  ~Client();

  void Begin(TimePoint start) { start_ = start; }
  Duration Since() const { return clock_.Now() - start_; }

  /// Sends one request and reads its answer into `outcome` (sent, arrivals, end, answer, failure). Never throws.
  boost::asio::awaitable<void> Ask(std::string body, std::string request_id, Outcome& outcome);

  /// How many connections were made: fewer than requests, where the server keeps them.
  int64_t connections() const { return connections_; }

 private:
  struct Connection;
  struct Turn;  // one request on one connection
  template <class Stream>
  boost::asio::awaitable<bool> Exchange(Turn& turn, Stream& stream);
  boost::asio::awaitable<std::unique_ptr<Connection>> Connect(Outcome& outcome, TimePoint deadline);
  boost::asio::awaitable<bool> BeginTls(Connection& connection, Outcome& outcome);

  const Server& server_;
  const Clock& clock_;
  TimePoint start_{};
  std::vector<std::unique_ptr<Connection>> idle_;
  boost::asio::ip::tcp::resolver::results_type addresses_;  // resolved once
  int64_t connections_ = 0;
};

}  // namespace baton::load
