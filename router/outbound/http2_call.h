// Http2Call: one gRPC call from the client's end, on an HTTP/2 connection of its own, over nghttp2. Bytes in, bytes
// out: it does no I/O, has no thread and knows no time (http2_stream.h has a socket for it). Of gRPC it speaks what a
// call between our own processes needs: messages with a length before them, a status in trailers, no compression.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/cord.h"

struct nghttp2_session;

namespace baton::router {

/// One thread at a time.
class Http2Call {
 public:
  struct Head {
    std::string scheme = "http";                                ///< "https" where the bytes travel in TLS
    std::string authority;                                      ///< HOST:PORT as it was dialled
    std::string path;                                           ///< "/package.Service/Method"
    std::vector<std::pair<std::string, std::string>> metadata;  ///< lower-case names, printable values
  };
  /// A message that came, which dies with the call. Not OK: the call ends with this status. It must not use the
  /// Http2Call.
  using OnMessage = std::function<absl::Status(std::string_view message)>;

  /// The call begins with the first TakeOutput. A message of more than `most_message_bytes` ends it.
  Http2Call(const Head& head, size_t most_message_bytes, OnMessage on_message);
  Http2Call(const Http2Call&) = delete;
  Http2Call& operator=(const Http2Call&) = delete;
  ~Http2Call();

  /// Bytes that the server sent, split anywhere. Those after the end are ignored.
  void Feed(std::string_view bytes);
  /// After the end it is dropped.
  void Send(absl::Cord message);
  /// Bytes of messages wait to be taken, where the server's windows allow it.
  bool unsent() const { return !unsent_.empty(); }
  /// Asks for a sign of life.
  void Ping();
  /// The call ends with CANCELLED, and the server hears of it.
  void Cancel();
  /// The connection is gone: the call ends with UNAVAILABLE and this reason.
  void Lost(std::string_view why);
  /// Appends to `out` what is to be sent now: at least one frame where there is one, and no new one after `most` bytes.
  /// Long messages are not copied.
  void TakeOutput(absl::Cord& out, size_t most);

  /// The call has ended: with its status. What TakeOutput then still has tells the server.
  bool over() const { return status_.has_value(); }
  const absl::Status& status() const { return *status_; }

 private:
  friend struct Http2Callbacks;
  void End(absl::Status status);
  void EndOfAnswer();
  void CheckAlive();
  void TakeHead(std::string_view name, std::string_view value);
  void TakeFrame(uint8_t type, uint8_t flags);
  void TakeData(std::string_view bytes);
  size_t WholeBytes(std::string_view begun);
  void Deliver(std::string_view framed);

  const size_t most_message_bytes_;
  const OnMessage on_message_;
  nghttp2_session* session_ = nullptr;  // owned
  int32_t stream_ = 0;
  std::optional<absl::Status> status_;

  absl::Cord unsent_;          // of messages, with their prefixes
  absl::Cord* out_ = nullptr;  // while TakeOutput runs

  std::string partial_;  // a message that has begun to come, with its prefix
  int http_status_ = 0;
  bool is_grpc_ = false;
  std::optional<int> grpc_status_;
  std::string grpc_message_;
  size_t head_bytes_ = 0;
  std::string fault_;  // what nghttp2, or the server's GOAWAY, says of the connection
};

}  // namespace baton::router
