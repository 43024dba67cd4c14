// clang-format off: <utility> before Asio, whose awaitable.hpp uses std::exchange without it (Boost 1.81).
#include <utility>
// clang-format on

#include "router/outbound/http_call.h"

#include <openssl/ssl.h>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>

#include "common/foreign_text.h"
#include "common/net/address.h"
#include "common/status.h"

namespace baton::router {
namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr size_t kMostAnswerBytes = 64 << 20, kMostLine = 8 << 20, kMostReason = 300;

/// What becomes of an answer.
struct Reader {
  std::function<void()> on_open;
  std::function<absl::Status(std::string_view piece)> on_piece;
};

class Fetch {
 public:
  Fetch(const HttpCall& request, const CallPatience& patience, const Reader& reader)
      : request_(request), patience_(patience), reader_(reader) {}

  absl::Status Run(CallStop& stop) {
    asio::io_context context;
    if (!stop.Enter(context)) return absl::CancelledError("stopped");
    asio::co_spawn(context, [this]() -> asio::awaitable<void> { co_await Talk(); }, asio::detached);
    context.run();
    return stop.Leave() ? absl::CancelledError("stopped") : result_;
  }

 private:
  absl::Status Broken(const char* what, error_code error) const {
    return absl::UnavailableError(
        StrCat(request_.who, " ", request_.place.host_header, ": ", what, ": ", error.message()));
  }

  asio::awaitable<void> Talk() {
    error_code error;
    const auto executor = co_await asio::this_coro::executor;
    tcp::resolver resolver(executor);
    const auto found = co_await resolver.async_resolve(request_.place.host, request_.place.port,
                                                       asio::redirect_error(asio::use_awaitable, error));
    if (error) {
      result_ = Broken("its name is not resolved", error);
      co_return;
    }
    beast::tcp_stream socket(executor);
    socket.expires_after(patience_.answer);
    co_await socket.async_connect(found, asio::redirect_error(asio::use_awaitable, error));
    if (error) {
      result_ = Broken("connecting", error);
      co_return;
    }
    socket.socket().set_option(asio::socket_base::keep_alive(true), error);
    if (!request_.place.tls) {
      co_await Ask(socket, socket);
      co_return;
    }
    asio::ssl::context tls(asio::ssl::context::tls_client);
    tls.set_verify_mode(asio::ssl::verify_peer);
    request_.ca_file.empty() ? tls.set_default_verify_paths(error) : tls.load_verify_file(request_.ca_file, error);
    if (error) {
      result_ =
          absl::UnavailableError(StrCat("no certificates can be read from ", request_.ca_file, ": ", error.message()));
      co_return;
    }
    beast::ssl_stream<beast::tcp_stream> stream(std::move(socket), tls);
    stream.set_verify_callback(asio::ssl::host_name_verification(request_.place.host));
    if (!net::IsIpAddress(request_.place.host))
      SSL_set_tlsext_host_name(stream.native_handle(), request_.place.host.c_str());
    co_await stream.async_handshake(asio::ssl::stream_base::client, asio::redirect_error(asio::use_awaitable, error));
    if (error) {
      result_ = Broken("TLS", error);
      co_return;
    }
    co_await Ask(stream, beast::get_lowest_layer(stream));
  }

  template <class Stream>
  asio::awaitable<void> Ask(Stream& stream, beast::tcp_stream& socket) {
    error_code error;
    http::request<http::string_body> request(request_.body.empty() ? http::verb::get : http::verb::post,
                                             request_.target, 11);
    if (!request_.body.empty()) {
      request.set(http::field::content_type, "application/json");
      request.body() = request_.body;
      request.prepare_payload();
    }
    request.set(http::field::host, request_.place.host_header);
    request.set(http::field::user_agent, "baton");
    request.set(http::field::accept, "application/json");
    request.set(http::field::connection, "close");
    if (!request_.token.empty()) request.set(http::field::authorization, StrCat("Bearer ", request_.token));
    socket.expires_after(patience_.answer);
    co_await http::async_write(stream, request, asio::redirect_error(asio::use_awaitable, error));
    beast::flat_buffer buffer;
    http::response_parser<http::buffer_body> parser;
    parser.body_limit(boost::none);
    if (!error)
      co_await http::async_read_header(stream, buffer, parser, asio::redirect_error(asio::use_awaitable, error));
    if (error) {
      result_ = Broken("asking", error);
      co_return;
    }
    const unsigned code = parser.get().result_int();
    const bool well = code >= 200 && code < 300;
    if (well && reader_.on_open) reader_.on_open();
    std::string reason;
    while (!parser.is_done()) {
      char piece[16 << 10];
      parser.get().body().data = piece;
      parser.get().body().size = sizeof(piece);
      socket.expires_after(well ? patience_.silence : patience_.answer);
      co_await http::async_read_some(stream, buffer, parser, asio::redirect_error(asio::use_awaitable, error));
      const std::string_view got(piece, sizeof(piece) - parser.get().body().size);
      if (well) {
        result_ = reader_.on_piece(got);
        if (!result_.ok()) co_return;
      } else if (reason.size() < kMostReason) {
        reason.append(got.substr(0, kMostReason - reason.size()));
      }
      if (error == http::error::need_buffer) continue;
      if (error && well) {
        result_ = Broken("the answer broke off", error);
        co_return;
      }
      if (error) break;
    }
    if (well) co_return;
    const std::string said =
        StrCat(request_.who, " ", request_.place.host_header, " answers ", code, ": ", Printable(reason, kMostReason));
    const bool may_change = code == 429 || code == 502 || code == 503 || code == 504;
    result_ = code == 410  ? absl::OutOfRangeError(said)
              : may_change ? absl::UnavailableError(said)
                           : absl::FailedPreconditionError(said);
  }

  const HttpCall& request_;
  const CallPatience& patience_;
  const Reader& reader_;
  absl::Status result_;
};

}  // namespace

absl::StatusOr<HttpPlace> ParseHttpPlace(std::string_view url) {
  HttpPlace place;
  place.tls = url.starts_with("https://");
  if (!place.tls && !url.starts_with("http://"))
    return absl::InvalidArgumentError("https://HOST[:PORT] or http://HOST[:PORT] is expected");
  const std::string_view rest = url.substr(url.find("//") + 2);
  const size_t slash = std::min(rest.find('/'), rest.size());
  const std::string authority(rest.substr(0, slash));
  const bool has_port = authority.rfind(':') != std::string::npos && !authority.ends_with(']');
  BATON_ASSIGN_OR_RETURN(const auto where,
                         net::ParseHostPort(has_port ? authority : StrCat(authority, place.tls ? ":443" : ":80")));
  place.host = where.host;
  place.port = StrCat(where.port);
  place.host_header = net::JoinHostPort(where.host, where.port);
  place.path = rest.substr(slash);
  return place;
}

void CallStop::Stop() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
  if (running_ != nullptr) running_->stop();
}
bool CallStop::Enter(asio::io_context& context) {
  std::lock_guard lock(mutex_);
  running_ = stopped_ ? nullptr : &context;
  return !stopped_;
}
bool CallStop::Leave() {
  std::lock_guard lock(mutex_);
  running_ = nullptr;
  return stopped_;
}

absl::StatusOr<std::string> FetchWhole(const HttpCall& request, Duration patience, CallStop& stop) {
  std::string body;
  const Reader reader{nullptr, [&body](std::string_view piece) {
                        body.append(piece);
                        return body.size() <= kMostAnswerBytes
                                   ? absl::OkStatus()
                                   : absl::UnavailableError("the answer has more than 64 MiB");
                      }};
  const CallPatience both{patience, patience};
  BATON_RETURN_IF_ERROR(Fetch(request, both, reader).Run(stop));
  return body;
}

absl::Status FetchLines(const HttpCall& request, const CallPatience& patience, CallStop& stop,
                        const std::function<void()>& on_open,
                        const std::function<absl::Status(std::string_view line)>& on_line) {
  std::string rest;
  const Reader reader{
      on_open, [&](std::string_view piece) {
        const size_t looked_at = rest.size();  // a line may come in many pieces
        rest.append(piece);
        size_t from = 0;
        for (size_t end = rest.find('\n', looked_at); end != std::string::npos; end = rest.find('\n', from)) {
          const std::string_view line = std::string_view(rest).substr(from, end - from);
          from = end + 1;
          if (line.find_first_not_of(" \r\t") == std::string_view::npos) continue;
          BATON_RETURN_IF_ERROR(on_line(line));
        }
        rest.erase(0, from);
        return rest.size() <= kMostLine ? absl::OkStatus() : absl::UnavailableError("an event has more than 8 MiB");
      }};
  return Fetch(request, patience, reader).Run(stop);
}

}  // namespace baton::router
