// A client of one OpenAI server: many requests at a time over kept connections.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "load/asker.h"
#include "load/https.h"
#include "load/request_body.h"

namespace baton {
class HttpConnection;
}

namespace baton::load {

struct Server {
  std::string host, port, path;  ///< path of the requests
  std::vector<std::pair<std::string, std::string>> headers;
  Duration timeout{};  ///< of one answer
  TlsContext tls{};    ///< null: plain text
};

class Client final : public Asker {
 public:
  /// All must outlive this.
  Client(const Server& server, const RequestBody& body, const Clock& clock);
  ~Client() override;

  void Begin(TimePoint start, TimePoint until) override { start_ = start, until_ = until; }
  boost::asio::awaitable<void> Ask(const Prompt& prompt, size_t index, std::string request_id,
                                   Outcome& outcome) override;
  void Abandon() override {}  // all happens on the io thread
  int64_t connections() const override { return connections_; }

 private:
  struct Turn;  // one request on one connection
  boost::asio::awaitable<bool> Exchange(Turn& turn);
  boost::asio::awaitable<std::unique_ptr<HttpConnection>> Connect(Outcome& outcome, TimePoint deadline);
  boost::asio::awaitable<absl::Status> FindAddresses(TimePoint deadline);
  std::string RequestOf(const Prompt& prompt, size_t index, std::string_view request_id) const;

  Duration Since() const { return clock_.Now() - start_; }

  const Server& server_;
  const RequestBody& body_;
  const Clock& clock_;
  TimePoint start_{}, until_ = TimePoint::max();
  std::vector<std::unique_ptr<HttpConnection>> idle_;
  std::vector<boost::asio::ip::tcp::endpoint> addresses_;  // found once
  struct Lookup;
  std::shared_ptr<Lookup> lookup_;  // under way: one for all requests that wait for it
  int64_t connections_ = 0;
};

/// Keeps what it is given.
MakeAsker HttpAsker(Server server, RequestBody body);

}  // namespace baton::load
