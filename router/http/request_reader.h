// Reads the requests of one connection. Beast's parser stays inside request_reader.cc. Include only from .cc files.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <memory>
#include <string>
#include <variant>

#include "common/net/connection_places.h"
#include "router/http/arriving_bodies.h"
#include "router/http/beast_exchange.h"
#include "router/http/client_stream.h"
#include "router/http/http_server.h"
#include "router/http/read_deadline.h"

namespace baton::router {

inline constexpr size_t kReadBytes = 64 << 10;  ///< of a body at once
inline constexpr size_t kIdleBytes = 4096;      ///< of a request's first read, and kept by an idle connection

/// One connection; lives in its coroutine's frame, on its loop's thread.
struct ClientConnection {
  net::ConnectionPlaces::Place& place;
  ArrivingBodies& bodies;
  ClientStream stream;
  boost::beast::flat_buffer buffer;              ///< what came and is not read yet: also of requests to come
  ReadDeadline deadline{stream.tcp()};           ///< of a request that has begun to arrive
  std::shared_ptr<BeastExchange> exchange = {};  ///< being answered; null between requests
  bool asked = false;                            ///< a request has come before
  bool between_requests = false;                 ///< it waits for the first byte of a request that is not its first
  bool body_unread = false;                      ///< of the request that is answered; it is the connection's last
};

/// What the client is told of a request that could not be read.
struct HttpRefusal {
  int status;
  std::string message;
};
struct ReadHttpRequest {
  HttpRequest request;
  bool keep_alive = false;
  bool http11 = false;
  bool head = false;         ///< its answer has no body
  bool body_unread = false;  ///< Options::takes_body said no
};
/// monostate: the client is gone, or has sent nothing within the keep-alive time.
using IncomingHttp = std::variant<std::monostate, ReadHttpRequest, HttpRefusal>;

/// Waits for a request and reads it whole, within the limits of `options`, which outlive the wait.
boost::asio::awaitable<IncomingHttp> ReadRequest(ClientConnection& connection, const HttpServer::Options& options);

}  // namespace baton::router
