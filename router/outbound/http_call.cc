// clang-format off: <utility> before Asio, whose awaitable.hpp uses std::exchange without it (Boost 1.81).
#include <utility>
// clang-format on

#include "router/outbound/http_call.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/this_coro.hpp>

#include "common/foreign_text.h"
#include "common/http/http_connection.h"
#include "common/net/address.h"
#include "common/net/keep_alive.h"
#include "common/status.h"

namespace baton::router {
namespace asio = boost::asio;
using Error = HttpConnection::Error;

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
  absl::Status Broken(const char* what, const Error& error) const {
    return absl::UnavailableError(
        StrCat(request_.who, " ", request_.place.host_header, ": ", what, ": ", error.message()));
  }

  asio::awaitable<void> Talk() {
    Error error;
    const HttpPlace& place = request_.place;
    const auto found = co_await HttpConnection::Resolve(place.host, place.port, patience_.answer);
    if (!found.ok()) {
      result_ = absl::UnavailableError(StrCat(request_.who, " ", View(found.status().message())));
      co_return;
    }
    HttpConnection server(co_await asio::this_coro::executor);
    server.ExpireAfter(patience_.answer);
    co_await server.Connect(*found, error);
    if (error) {
      result_ = Broken("connecting", error);
      co_return;
    }
    net::KeepAlive(server.socket().native_handle());  // a watch may hear nothing for minutes
    if (!request_.place.tls) {
      co_await Ask(server);
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
    co_await server.StartTls(tls, request_.place.host, error);
    if (error) {
      result_ = Broken("TLS", error);
      co_return;
    }
    co_await Ask(server);
  }

  std::string Text() const {
    const bool posts = !request_.body.empty();
    std::string text = StrCat(posts ? "POST " : "GET ", request_.target, " HTTP/1.1\r\n");
    if (posts) text += StrCat("Content-Type: application/json\r\nContent-Length: ", request_.body.size(), "\r\n");
    text += StrCat("Host: ", request_.place.host_header,
                   "\r\nUser-Agent: baton\r\nAccept: application/json\r\nConnection: close\r\n");
    if (!request_.token.empty()) text += StrCat("Authorization: Bearer ", request_.token, "\r\n");
    return StrCat(text, "\r\n", request_.body);
  }

  asio::awaitable<void> Ask(HttpConnection& server) {
    Error error;
    const std::string text = Text();
    server.ExpireAfter(patience_.answer);
    co_await server.Ask(text, error);
    if (error) {
      result_ = Broken("asking", error);
      co_return;
    }
    const int code = server.status();
    const bool well = code >= 200 && code < 300;
    if (well && reader_.on_open) reader_.on_open();
    std::string reason;
    while (!server.ended()) {
      if (well && patience_.silence > Duration::zero()) server.ExpireAfter(patience_.silence);
      const std::string_view got = co_await server.Read(error);
      if (well) {
        result_ = reader_.on_piece(got);
        if (!result_.ok()) co_return;
      } else if (reason.size() < kMostReason) {
        reason.append(got.substr(0, kMostReason - reason.size()));
      }
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
  const CallPatience for_all{patience, Duration::zero()};  // one that drips has no end
  BATON_RETURN_IF_ERROR(Fetch(request, for_all, reader).Run(stop));
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
