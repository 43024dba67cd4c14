// HttpServer: HTTP/1.1 on the loops of a pool; one coroutine per connection, one acceptor. Limits are checked
// before anything is allocated: headers (431), body (413), connections. Knows nothing of what it serves.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/net/connection_shares.h"
#include "router/http/http_types.h"

namespace baton::tls {
class Context;
enum class Refusal;
}  // namespace baton::tls

namespace baton::router {

/// Of a port that speaks TLS. Called on the connections' threads.
struct HttpTls {
  std::function<std::shared_ptr<const tls::Context>()> context;  ///< for a handshake that begins
  /// A client that was refused: why, its address without port, and in words.
  std::function<void(tls::Refusal, const std::string& address, const std::string& message)> refused;
  int32_t handshake_ms = 10000;  ///< from the connection's begin to the handshake's end
  /// Handshakes under way at once. Over them, the oldest one gives way to a new one if it has had `slow_ms`, so that
  /// clients who are slow, or never finish, keep nobody out.
  size_t handshakes = 1024;
  int32_t slow_ms = 1000;
};

/// Thread-safe.
class HttpServer {
 public:
  struct Options {
    std::string host;
    uint16_t port = 0;
    const char* port_flag = "--port";  ///< for messages
    size_t max_header_bytes = 16 << 10;
    size_t max_body_bytes = 8 << 20;
    /// What all connections keep of bodies that are not whole yet (ArrivingBodies).
    size_t most_arriving_bytes = size_t{1} << 30;
    net::ConnectionLimits limits;
    /// For the rest of a request that has begun, and for the first byte of a connection; for each byte of an answer
    /// that is taken; between requests.
    int32_t read_timeout_ms = 30000, write_timeout_ms = 60000, keep_alive_ms = 120000;
    /// A complete answer, which nothing bounds but what it is, is to be taken at this rate at least, in the mean.
    int32_t slowest_bytes_per_s = 16 << 10;
    /// A connection that was closed: "max-connections", "max-connections-per-address", "for-another" (it gave way to a
    /// new one, ConnectionPlaces), "slow-reader", "arriving-bodies"; and its peer's address, without port. On any
    /// thread.
    std::function<void(const char* why, const std::string& address)> closed = nullptr;
    HttpHeaders always;  ///< on every answer
    /// Asked when a request's header is here and its body is still to come, on the connection's thread. False: the
    /// body is not read, the handler gets the request without it, and the connection closes after the answer. None: all
    /// bodies are read.
    std::function<bool(const HttpRequest& head)> takes_body;
    std::function<std::string(int status, const std::string& message)>
        error_body;                             ///< for what never reaches the handler
    std::optional<HttpTls> tls = std::nullopt;  ///< none: plain text
  };
  /// Binds and accepts. FailedPrecondition: the host is no IP address. AlreadyExists: address in use. PermissionDenied:
  /// not permitted or not of this machine. Both with host, port and flag.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(Options options, EventLoopPool& pool, HttpHandler handler);
  ~HttpServer();

  uint16_t port() const;
  int32_t connections() const;
  /// Clients are to go elsewhere: whoever is answered from now on hears that the connection ends, and those on which
  /// nobody asks anything end at once. New ones are taken and answered. Idempotent; on none of the pool's threads.
  void Drain();
  /// Waits until those of before the drain have gone, or had Admission::kOnItsWay to. False after `timeout`.
  bool WaitGone(Duration timeout) const;
  /// No new connections.
  void StopAccepting();
  /// Closes every connection; answers that are complete get 2 s to be sent. Idempotent; call before the pool stops, on
  /// none of its threads.
  void Stop();

 private:
  struct Inner;
  explicit HttpServer(std::shared_ptr<Inner> inner) : inner_(std::move(inner)) {}
  std::shared_ptr<Inner> inner_;
};

}  // namespace baton::router
