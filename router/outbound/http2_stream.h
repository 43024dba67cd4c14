// Http2Stream: a gRPC call of messages both ways on a connection of its own, carried by an event loop of the router: no
// thread of gRPC wakes for a message. http2_call.h has what is said; here are the socket, TLS and time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "common/clock.h"
#include "common/net/socket_address.h"
#include "router/event_loop.h"
#include "router/outbound/http2_call.h"

namespace baton::tls {
class Context;
}

namespace baton::router {

/// Thread-safe.
class Http2Stream {
 public:
  struct Options {
    net::SocketAddress where;
    Http2Call::Head head;  ///< its scheme follows from `tls`
    /// Of this connection, made as it begins; it must offer h2. Null: plain text.
    std::function<absl::StatusOr<std::shared_ptr<const tls::Context>>()> tls;
    size_t most_message_bytes = 256 << 20;
    Duration connect = std::chrono::seconds(10);  ///< with TLS
    Duration silence = std::chrono::seconds(20);  ///< then the other end is asked for a sign of life
    Duration answer = std::chrono::seconds(10);   ///< to that; then the connection is lost
  };
  /// All of them are called on the loop, never inside a call of the Http2Stream, and none after on_closed. They are
  /// freed then.
  struct Handlers {
    Http2Call::OnMessage on_message;
    /// The message that is to be sent next; empty: none. Asked for when the socket has taken all that was sent before,
    /// so what gathers meanwhile can go as one.
    std::function<absl::Cord()> next;
    /// Once. As Http2Call::status(); UNAVAILABLE: the connection failed, for people, of TLS with the reason first.
    std::function<void(absl::Status)> on_closed;
  };
  virtual ~Http2Stream() = default;
  /// There may be something to send.
  virtual void Wake() = 0;
  /// Ends with CANCELLED, if nothing else has ended it.
  virtual void Cancel() = 0;
};

/// `loop`: of an EventLoopPool. The stream lives until on_closed; the loop must run until then.
std::shared_ptr<Http2Stream> OpenHttp2Stream(EventLoop& loop, Http2Stream::Options options,
                                             Http2Stream::Handlers handlers);

}  // namespace baton::router
