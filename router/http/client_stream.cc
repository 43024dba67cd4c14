// clang-format off: <utility> before Asio, whose awaitable.hpp uses std::exchange without it (Boost 1.81).
#include <utility>
// clang-format on

#include "router/http/client_stream.h"

#include <algorithm>
#include <boost/asio/error.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cstring>

#include "common/tls/context.h"

namespace baton::router {
namespace asio = boost::asio;

namespace {

constexpr size_t kPieceBytes = 16 << 10;  // a TLS record; an idle session keeps about as much

}  // namespace

ClientStream::ClientStream(asio::ip::tcp::socket socket) : tcp_(std::move(socket)) {}
ClientStream::~ClientStream() = default;

void ClientStream::StartTls(std::shared_ptr<const tls::Context> context) {
  tls_ = std::make_unique<Tls>();
  tls_->session = std::make_unique<tls::Session>(std::move(context));
}

void ClientStream::HandshakeDone() { tls_->read = tls_->session->TakePlain(); }

size_t ClientStream::ReadTlsNow(asio::mutable_buffer into, Error& error) {
  error = {};
  if (holds_text() || tls_->session->peer_closed()) return Decrypted(0, into, error);
  while (true) {
    const size_t bytes = tcp_.socket().read_some(into, error);
    if (error) return 0;
    const size_t text = Decrypted(bytes, into, error);
    if (text > 0 || error) return text;
  }
}

// What the session has to say to what it reads (a new key of its own) stays there until the next text is written:
// `wire` may be on its way to the socket just now.
size_t ClientStream::Decrypted(size_t bytes, asio::mutable_buffer into, Error& error) {
  Tls& t = *tls_;
  const std::string_view wire(static_cast<const char*>(into.data()), bytes);
  bool broken = false;
  for (size_t at = 0; at < wire.size() && !broken; at += kPieceBytes) {
    broken = !t.session->Feed(wire.substr(at, kPieceBytes)).ok();
    t.read.append(t.session->TakePlain());
  }
  const size_t n = std::min(t.read.size() - t.read_at, into.size());
  std::memcpy(into.data(), t.read.data() + t.read_at, n);
  t.read_at += n;
  if (t.read_at == t.read.size()) {
    t.read = {};
    t.read_at = 0;
  }
  if (n == 0 && broken) error = asio::error::connection_aborted;
  if (n == 0 && !broken && t.session->peer_closed()) error = asio::error::eof;
  return n;
}

asio::const_buffer ClientStream::Encrypted(std::string_view text, Error& error) {
  Tls& t = *tls_;
  if (t.covers == 0 && !text.empty()) {
    const std::string_view piece = text.substr(0, kPieceBytes);
    if (!t.session->Write(piece).ok()) error = asio::error::connection_aborted;
    t.covers = piece.size();
    t.session->TakeWire(t.wire);
  }
  return asio::buffer(t.wire) + t.wire_at;
}

size_t ClientStream::SentTls(size_t bytes) {
  Tls& t = *tls_;
  t.wire_at += bytes;
  if (t.wire_at < t.wire.size()) return 0;
  t.wire.clear();
  t.wire_at = 0;
  return std::exchange(t.covers, 0);
}

size_t ClientStream::WriteTlsNow(std::string_view text, Error& error) {
  size_t done = 0;
  error = {};
  while (done < text.size()) {
    const asio::const_buffer wire = Encrypted(text.substr(done), error);
    if (error) return done;
    const size_t bytes = tcp_.socket().write_some(wire, error);
    if (error) break;
    done += SentTls(bytes);
    if (bytes < wire.size()) break;
  }
  if (error == asio::error::would_block && done > 0) error = {};
  return done;
}

void ClientStream::KeepBuffers(bool keep) {
  if (tls_) tls_->session->KeepBuffers(keep);
}

void ClientStream::SayEnd() {
  if (!tls_ || tls_->wire_at < tls_->wire.size()) return;
  tls_->session->Close();
  tls_->wire.clear();
  tls_->session->TakeWire(tls_->wire);
  if (tls_->wire.empty()) return;
  Error ignored;
  tcp_.socket().write_some(asio::buffer(tls_->wire), ignored);
}

asio::awaitable<void> WriteAll(ClientStream& stream, std::string_view text, ClientStream::Error& error) {
  for (size_t done = 0; done < text.size() && !error;) {
    const asio::const_buffer wire = stream.Wire(text.substr(done), error);
    if (error) co_return;
    const size_t bytes = co_await stream.tcp().async_write_some(wire, asio::redirect_error(asio::use_awaitable, error));
    done += stream.Sent(bytes);
  }
}

}  // namespace baton::router
