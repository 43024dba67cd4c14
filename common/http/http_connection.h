// HttpConnection: a client's socket to an HTTP/1.1 server, with TLS or without, and one answer at a time as it comes.
// The one place where Beast's reading of answers is compiled: it costs a compiler more than all that its callers do
// with them.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"

namespace baton {

/// Belongs to its executor's thread; one operation at a time. Errors are the socket's, TLS's or Beast's, whose text
/// says which. Strings and contexts that an operation takes live until it has ended.
class HttpConnection {
 public:
  using Error = boost::system::error_code;
  using Addresses = std::vector<boost::asio::ip::tcp::endpoint>;
  using Executor = boost::asio::any_io_executor;

  /// The addresses of a host; of "localhost" both. Unavailable: the name is not known, or nobody answers;
  /// DeadlineExceeded: not within `patience`, whatever the system's resolver does.
  static boost::asio::awaitable<absl::StatusOr<Addresses>> Resolve(std::string host, std::string_view port,
                                                                   Duration patience);
  /// An operation took longer than ExpireAfter allows.
  static bool IsTimeout(const Error& error);

  explicit HttpConnection(const Executor& executor);
  ~HttpConnection();
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  /// How long what runs from now on may take, all of it together, until this is said again.
  void ExpireAfter(Duration patience);
  boost::asio::awaitable<void> Connect(const Addresses& addresses, Error& error);
  boost::asio::ip::tcp::socket& socket();
  /// TLS from now on, with a server whose certificate is for `host`.
  boost::asio::awaitable<void> StartTls(boost::asio::ssl::context& context, const std::string& host, Error& error);

  /// Sends a request, head and body, and reads the head of its answer. What is said before the answer, 100 Continue or
  /// 103 Early Hints, is no answer.
  boost::asio::awaitable<void> Ask(std::string_view request, Error& error);
  /// Not a byte has come since Ask.
  bool silent() const;
  int status() const;
  /// Empty: the answer has no such field.
  std::string_view header(std::string_view name) const;

  /// The body has been read to its end.
  bool ended() const;
  /// What of the body has come, at most 4 KiB, until the next call; may be empty, and may come with an error.
  boost::asio::awaitable<std::string_view> Read(Error& error);
  /// The server takes another request on this connection, once this answer has ended.
  bool keeps() const;

 private:
  struct State;
  boost::asio::awaitable<void> ReadSome(Error& error);

  const std::unique_ptr<State> state_;
};

}  // namespace baton
