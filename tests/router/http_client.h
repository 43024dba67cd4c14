// A blocking HTTP client over a plain socket, so that tests decide what bytes go out and see what bytes come back.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace baton::router {

struct HttpReply {
  int status = 0;
  std::map<std::string, std::string> headers;  ///< names in lower case
  std::string body;                            ///< without chunk framing
};

/// One connection to 127.0.0.1, from there or from `own_address`. Reads give up after 20 s.
class HttpConnection {
 public:
  explicit HttpConnection(int port, int receive_buffer_bytes = 0, const char* own_address = nullptr);
  ~HttpConnection();
  HttpConnection(const HttpConnection&) = delete;

  void Send(std::string_view bytes);
  /// Whatever the next read gives; empty at the end of the connection.
  std::string ReceiveSome();
  /// Reads until `text` was seen (or the connection ends); everything so far.
  const std::string& ReceiveUntil(std::string_view text);
  /// Reads one whole answer and takes its bytes.
  HttpReply Receive(bool head = false);
  /// Everything until the server closes.
  const std::string& ReceiveAll();
  /// How far the server may write ahead of the reads.
  void SetReceiveBuffer(int bytes);
  void ShutdownSend();
  int fd() const { return fd_; }
  void Close();

 private:
  int fd_;
  std::string received_;
};

using Headers = std::vector<std::pair<std::string, std::string>>;
/// A body is JSON unless `headers` say what it is.
std::string RequestText(std::string_view method, std::string_view path, std::string_view body,
                        const Headers& headers = {});
HttpReply Ask(int port, std::string_view method, std::string_view path, std::string_view body = "",
              const Headers& headers = {});
/// One that was answered already. A connection that never asked anything has `read_timeout_ms` for its first byte, and
/// a test that is not run for as long would be closed without a word.
std::unique_ptr<HttpConnection> ConnectionThatAsked(int port);
/// The data of the server-sent events, in order.
std::vector<std::string> EventsOf(std::string_view body);

}  // namespace baton::router
