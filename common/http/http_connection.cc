// clang-format off: <utility> before Asio, whose awaitable.hpp uses std::exchange without it (Boost 1.81).
#include <utility>
// clang-format on

#include "common/http/http_connection.h"

#include <array>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <charconv>
#include <cstring>
#include <optional>

#include "absl/strings/str_format.h"
#include "common/net/resolver.h"

namespace baton {
namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;

namespace {

constexpr size_t kPieceBytes = 4 << 10;  ///< of a read: a kept connection holds two of them

/// What the resolver's thread leaves for the executor's, which may have given up by then.
struct Question {
  asio::steady_timer until;
  absl::StatusOr<std::vector<net::SocketAddress>> found;
};

HttpConnection::Addresses EndpointsOf(const std::vector<net::SocketAddress>& addresses) {
  HttpConnection::Addresses out;
  for (const net::SocketAddress& address : addresses) {
    std::memcpy(out.emplace_back().data(), address.get(), address.bytes());
    out.back().resize(address.bytes());
  }
  return out;
}

auto Into(HttpConnection::Error& error) { return asio::redirect_error(asio::use_awaitable, error); }

}  // namespace

struct HttpConnection::State {
  explicit State(const Executor& executor) : tcp(executor) {}

  beast::tcp_stream tcp;
  std::optional<asio::ssl::stream<beast::tcp_stream&>> tls;
  std::optional<http::response_parser<http::buffer_body>> parser;  // of the last answer
  beast::flat_buffer came;                                         // and not parsed yet
  std::array<char, kPieceBytes> piece;
};

asio::awaitable<absl::StatusOr<HttpConnection::Addresses>> HttpConnection::Resolve(std::string host,
                                                                                   std::string_view port_text,
                                                                                   Duration patience) {
  uint16_t port = 0;
  std::from_chars(port_text.data(), port_text.data() + port_text.size(), port);
  if (const auto known = net::KnownAddresses(host, port)) co_return EndpointsOf(*known);
  const auto executor = co_await asio::this_coro::executor;
  const auto question =
      std::make_shared<Question>(Question{asio::steady_timer(executor, patience),
                                          absl::DeadlineExceededError(absl::StrFormat(
                                              "%s: no address of this name within %.3g s", host, Seconds(patience)))});
  net::Resolver resolver;  // Asio's own would keep the executor until the system has answered
  resolver.Resolve(host, port, [executor, asked = std::weak_ptr(question)](auto found) {
    asio::post(executor, [question = asked.lock(), found = std::move(found)]() mutable {
      question->found = std::move(found);
      question->until.cancel();
    });
  });
  Error over;
  co_await question->until.async_wait(Into(over));
  if (!question->found.ok()) co_return question->found.status();
  co_return EndpointsOf(*question->found);
}

bool HttpConnection::IsTimeout(const Error& error) { return error == beast::error::timeout; }

HttpConnection::HttpConnection(const Executor& executor) : state_(std::make_unique<State>(executor)) {}
HttpConnection::~HttpConnection() = default;

void HttpConnection::ExpireAfter(Duration patience) { state_->tcp.expires_after(patience); }

asio::ip::tcp::socket& HttpConnection::socket() { return state_->tcp.socket(); }

asio::awaitable<void> HttpConnection::Connect(const Addresses& addresses, Error& error) {
  co_await state_->tcp.async_connect(addresses, Into(error));
}

asio::awaitable<void> HttpConnection::StartTls(asio::ssl::context& context, const std::string& host, Error& error) {
  auto& tls = state_->tls.emplace(state_->tcp, context);
  tls.set_verify_callback(asio::ssl::host_name_verification(host), error);
  asio::ip::make_address(host, error);
  if (error)
    SSL_set_tlsext_host_name(tls.native_handle(), host.c_str());  // an address is not sent in the clear (RFC 6066)
  error = {};
  co_await tls.async_handshake(asio::ssl::stream_base::client, Into(error));
}

asio::awaitable<void> HttpConnection::Ask(std::string_view request, Error& error) {
  State& s = *state_;
  s.came.clear();
  s.parser.emplace().body_limit(boost::none);
  if (s.tls) {
    co_await asio::async_write(*s.tls, asio::buffer(request), Into(error));
  } else {
    co_await asio::async_write(s.tcp, asio::buffer(request), Into(error));
  }
  while (!error && !s.parser->is_header_done()) {
    co_await ReadSome(error);
    if (error || !s.parser->is_header_done() || s.parser->get().result_int() / 100 != 1) continue;
    s.parser.emplace().body_limit(boost::none);
  }
}

bool HttpConnection::silent() const { return !state_->parser->got_some(); }
int HttpConnection::status() const { return static_cast<int>(state_->parser->get().result_int()); }
std::string_view HttpConnection::header(std::string_view name) const { return state_->parser->get()[name]; }
bool HttpConnection::ended() const { return state_->parser->is_done(); }
bool HttpConnection::keeps() const { return state_->parser->keep_alive(); }

asio::awaitable<std::string_view> HttpConnection::Read(Error& error) {
  auto& body = state_->parser->get().body();
  body.data = state_->piece.data();
  body.size = state_->piece.size();
  co_await ReadSome(error);
  if (error == http::error::need_buffer) error = {};
  co_return std::string_view(state_->piece.data(), state_->piece.size() - body.size);
}

/// One step of the parser, as http::async_read_some does it, over either kind of stream.
asio::awaitable<void> HttpConnection::ReadSome(Error& error) {
  State& s = *state_;
  for (;;) {
    if (s.came.size() > 0) {
      s.came.consume(s.parser->put(s.came.data(), error));
      if (error != http::error::need_more) co_return;
    }
    const asio::mutable_buffer room = s.came.prepare(kPieceBytes);
    size_t bytes = 0;
    if (s.tls) {
      bytes = co_await s.tls->async_read_some(room, Into(error));
    } else {
      bytes = co_await s.tcp.async_read_some(room, Into(error));
    }
    s.came.commit(bytes);
    if (error == asio::error::eof) {
      error = {};
      if (!s.parser->got_some()) {
        error = http::error::end_of_stream;
      } else {
        s.parser->put_eof(error);
      }
      co_return;
    }
    if (error) co_return;
  }
}

}  // namespace baton
