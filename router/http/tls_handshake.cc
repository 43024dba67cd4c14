// clang-format off: <utility> before Asio, whose awaitable.hpp uses std::exchange without it (Boost 1.81).
#include <utility>
// clang-format on

#include "router/http/tls_handshake.h"

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/error.hpp>

#include "common/str_cat.h"
#include "common/tls/context.h"

namespace baton::router {
namespace asio = boost::asio;
using boost::system::error_code;
using std::chrono::milliseconds;

namespace {

std::string AddressOf(ClientStream& stream) {
  error_code error;
  const auto peer = stream.socket().remote_endpoint(error);
  return error ? "" : peer.address().to_string();
}

}  // namespace

HandshakesUnderWay::Place::Place(HandshakesUnderWay& all, ClientStream& stream, size_t most, milliseconds slow)
    : all_(all), entry_{stream, std::chrono::steady_clock::now()} {
  if (!all.places_.empty() && all.places_.size() >= most) {
    Entry& oldest = *all.places_.front();
    if (entry_.since - oldest.since >= slow) {
      oldest.gave_way = true;
      all.places_.pop_front();
      oldest.stream.tcp().close();
    }
  }
  entry_.at = all.places_.insert(all.places_.end(), &entry_);
}

HandshakesUnderWay::Place::~Place() {
  if (!entry_.gave_way) all_.places_.erase(entry_.at);
}

asio::awaitable<Greeted> Handshake(ClientConnection& c, const HttpTls& options, HandshakesUnderWay& under_way,
                                   size_t most) {
  const HandshakesUnderWay::Place place(under_way, c.stream, most, milliseconds(options.slow_ms));
  const std::string address = AddressOf(c.stream);
  const auto refuse = [&](tls::Refusal why, const std::string& message) { options.refused(why, address, message); };
  c.stream.tcp().expires_after(milliseconds(options.handshake_ms));
  const asio::mutable_buffer into = c.buffer.prepare(kIdleBytes);
  error_code error;
  tls::Session* session = nullptr;  // nothing is kept for a client before its first byte
  while (!session || !session->established()) {
    size_t n = co_await c.stream.tcp().async_read_some(into, asio::redirect_error(asio::use_awaitable, error));
    if (place.gave_way()) {
      refuse(tls::Refusal::kHandshake, "its handshake was not done when others needed its place");
      co_return Greeted::kGone;
    }
    if (error == boost::beast::error::timeout)
      refuse(tls::Refusal::kHandshake, StrCat("no TLS handshake within ", options.handshake_ms / 1000.0, " seconds"));
    if (error && error != boost::beast::error::timeout && session)
      refuse(tls::Refusal::kHandshake, "it left during the TLS handshake");
    if (error) co_return Greeted::kGone;
    if (!session && !tls::BeginsAsTls(*static_cast<const unsigned char*>(into.data()))) {
      refuse(tls::Refusal::kPlaintext, "plain text came to a TLS port");
      c.stream.tcp().expires_never();
      co_return Greeted::kPlaintext;
    }
    if (!session) {
      c.stream.StartTls(options.context());
      session = c.stream.session();
    }
    const absl::Status fed = session->Feed(std::string_view(static_cast<const char*>(into.data()), n));
    const std::string answer = session->TakeWire();  // of a refusal, an alert
    if (!answer.empty())
      co_await asio::async_write(c.stream.tcp(), asio::buffer(answer),
                                 asio::redirect_error(asio::use_awaitable, error));
    if (!fed.ok()) {
      refuse(session->refusal().value_or(tls::Refusal::kHandshake), std::string(fed.message()));
      co_return Greeted::kRefused;
    }
  }
  c.stream.HandshakeDone();
  c.stream.tcp().expires_never();
  co_return Greeted::kTls;
}

}  // namespace baton::router
