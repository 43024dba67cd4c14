// ClientStream: a client's socket as the HTTP server reads and writes it, in plain text or in TLS. Which of the two is
// asked once for a read or write of many bytes; plain text goes to the socket as it is. What has to wait is waited for
// on tcp() itself, around a pair of calls: `Arrived` after a read of the socket, `Wire` before a write and `Sent` after
// it. Belongs to its loop's thread. Include only from .cc files.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <memory>
#include <string>
#include <string_view>

namespace baton::tls {
class Context;
class Session;
}  // namespace baton::tls

namespace baton::router {

class ClientStream {
 public:
  using Error = boost::system::error_code;

  explicit ClientStream(boost::asio::ip::tcp::socket socket);
  ~ClientStream();
  ClientStream(const ClientStream&) = delete;
  ClientStream& operator=(const ClientStream&) = delete;

  boost::beast::tcp_stream& tcp() { return tcp_; }
  boost::asio::ip::tcp::socket& socket() { return tcp_.socket(); }

  /// From now on the bytes of the socket are TLS, whose handshake comes first.
  void StartTls(std::shared_ptr<const tls::Context> context);
  /// Null: plain text.
  tls::Session* session() { return tls_ ? tls_->session.get() : nullptr; }
  /// The handshake is done: what the client has sent behind it is its first text.
  void HandshakeDone();

  /// What is here. Nothing: would_block, or eof.
  size_t ReadNow(boost::asio::mutable_buffer into, Error& error) {
    if (!tls_) return tcp_.socket().read_some(into, error);
    return ReadTlsNow(into, error);
  }
  /// `bytes` of the socket were read into `into`: how many of the client's text stand there now, maybe none.
  size_t Arrived(size_t bytes, boost::asio::mutable_buffer into, Error& error) {
    return tls_ && !error ? Decrypted(bytes, into, error) : bytes;
  }
  /// Text that was taken from the socket and has had no room yet: the socket says nothing of it.
  bool holds_text() const { return tls_ && tls_->read_at < tls_->read.size(); }

  /// How many bytes of `text` the socket takes without waiting; the rest is to be given again. None: would_block.
  size_t WriteNow(std::string_view text, Error& error) {
    if (!tls_) return tcp_.socket().write_some(boost::asio::buffer(text), error);
    return WriteTlsNow(text, error);
  }
  /// Bytes for the socket that bring at least a piece of `text` on its way; after `Sent` the same `text` goes on.
  boost::asio::const_buffer Wire(std::string_view text, Error& error) {
    return tls_ ? Encrypted(text, error) : boost::asio::buffer(text);
  }
  /// The socket took `bytes` of Wire: how many of the text are on their way whole.
  size_t Sent(size_t bytes) { return tls_ ? SentTls(bytes) : bytes; }

  /// While an answer is written in many pieces (tls::Session::KeepBuffers).
  void KeepBuffers(bool keep);

  /// Tells a client of a TLS session that nothing follows, if the socket takes that at once.
  void SayEnd();

 private:
  struct Tls {
    std::unique_ptr<tls::Session> session;
    std::string read;  ///< text from read_at on
    size_t read_at = 0;
    std::string wire;  ///< for the socket, from wire_at on
    size_t wire_at = 0;
    size_t covers = 0;  ///< bytes of text in `wire`
  };
  size_t ReadTlsNow(boost::asio::mutable_buffer into, Error& error);
  size_t Decrypted(size_t bytes, boost::asio::mutable_buffer into, Error& error);
  size_t WriteTlsNow(std::string_view text, Error& error);
  boost::asio::const_buffer Encrypted(std::string_view text, Error& error);
  size_t SentTls(size_t bytes);

  boost::beast::tcp_stream tcp_;
  std::unique_ptr<Tls> tls_;  // null: plain text
};

/// All of `text`, as long as the stream's timer allows.
boost::asio::awaitable<void> WriteAll(ClientStream& stream, std::string_view text, ClientStream::Error& error);

}  // namespace baton::router
