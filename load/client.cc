// clang-format off: <utility> before Asio, whose awaitable.hpp uses std::exchange without it (Boost 1.81).
#include <utility>
// clang-format on

#include "load/client.h"

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/foreign_text.h"
#include "common/shallow_json.h"
#include "common/str_cat.h"
#include "load/answer_reader.h"

namespace baton::load {
namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;

namespace {

constexpr size_t kMostErrorBytes = 4096;

Failure KindOf(error_code error, Failure otherwise) {
  return error == beast::error::timeout ? Failure::kTimeout : otherwise;
}

/// One answer's body: an event stream, or the reason why there is none.
class Body {
 public:
  Body(Outcome& outcome, bool stream) : outcome_(outcome), stream_(stream) {}

  void Feed(std::string_view bytes, Duration now) {
    if (!stream_) {
      other_.append(bytes.substr(0, kMostErrorBytes - std::min(kMostErrorBytes, other_.size())));
      return;
    }
    const bool fits = events_.Feed(bytes, [&](std::string_view data) {
      const Event event = Apply(data, outcome_.answer);
      if (event == Event::kText) outcome_.arrivals.push_back(now);
      if (event == Event::kMalformed)
        Fail(outcome_, Failure::kMalformed, StrCat("an event is not JSON: ", Printable(data, 80)));
    });
    if (!fits) Fail(outcome_, Failure::kMalformed, "an event without end");
  }

  /// The body has ended as HTTP wants it to.
  void End() {
    if (outcome_.http_status != 200) {
      outcome_.unavailable = outcome_.http_status == 503;
      Fail(outcome_, Failure::kRefused, StrCat("HTTP ", outcome_.http_status, ": ", Reason()));
    } else if (!stream_) {
      Fail(outcome_, Failure::kMalformed, StrCat("not an event stream: ", Printable(other_, 200)));
    } else if (!outcome_.answer.error.empty()) {
      Fail(outcome_, Failure::kError, Printable(outcome_.answer.error, 300));
    } else if (!outcome_.answer.finished && !outcome_.answer.done) {
      Fail(outcome_, Failure::kBroken, "the stream ended without an end of the answer");
    } else if (outcome_.arrivals.empty()) {
      Fail(outcome_, Failure::kMalformed, "an answer without a token");
    }
  }

 private:
  std::string Reason() const {
    const nlohmann::json body = ShallowJson(other_);
    if (body.is_object() && body.contains("error") && body["error"].is_object() && body["error"].contains("message"))
      return Printable(body["error"]["message"].dump(), 300);
    return Printable(other_, 200);
  }

  Outcome& outcome_;
  const bool stream_;
  EventLines events_;
  std::string other_;
};

}  // namespace

void Fail(Outcome& outcome, Failure failure, std::string error) {
  if (!outcome.ok()) return;
  outcome.failure = failure;
  outcome.error = std::move(error);
}

/// A socket, and TLS over it with https.
struct Client::Connection {
  explicit Connection(const asio::any_io_executor& executor) : tcp(executor) {}

  beast::tcp_stream tcp;
  std::optional<asio::ssl::stream<beast::tcp_stream&>> tls;
};

struct Client::Turn {
  std::unique_ptr<Connection> connection;
  const http::request<http::string_body>& request;
  Outcome& outcome;
  bool first_use;
};

Client::Client(const Server& server, const RequestBody& body, const Clock& clock)
    : server_(server), body_(body), clock_(clock) {}
Client::~Client() = default;

asio::awaitable<std::unique_ptr<Client::Connection>> Client::Connect(Outcome& outcome, TimePoint deadline) {
  error_code error;
  const auto executor = co_await asio::this_coro::executor;
  if (addresses_.empty()) {
    asio::ip::tcp::resolver resolver(executor);
    addresses_ =
        co_await resolver.async_resolve(server_.host, server_.port, asio::redirect_error(asio::use_awaitable, error));
    if (error) {
      Fail(outcome, Failure::kConnect, StrCat(server_.host, ": ", error.message()));
      co_return nullptr;
    }
  }
  auto connection = std::make_unique<Connection>(executor);
  connection->tcp.expires_after(deadline - clock_.Now());
  co_await connection->tcp.async_connect(addresses_, asio::redirect_error(asio::use_awaitable, error));
  if (error) {
    Fail(outcome, KindOf(error, Failure::kConnect), StrCat("connecting: ", error.message()));
    co_return nullptr;
  }
  connection->tcp.socket().set_option(asio::ip::tcp::no_delay(true), error);
  if (server_.tls && !co_await BeginTls(*connection, outcome)) co_return nullptr;
  ++connections_;
  co_return connection;
}

asio::awaitable<bool> Client::BeginTls(Connection& connection, Outcome& outcome) {
  connection.tls.emplace(connection.tcp, *server_.tls);
  error_code error;
  connection.tls->set_verify_callback(asio::ssl::host_name_verification(server_.host), error);
  asio::ip::make_address(server_.host, error);
  if (error)  // a name: an address is not sent in the clear (RFC 6066)
    SSL_set_tlsext_host_name(connection.tls->native_handle(), server_.host.c_str());
  error = {};
  co_await connection.tls->async_handshake(asio::ssl::stream_base::client,
                                           asio::redirect_error(asio::use_awaitable, error));
  if (error) Fail(outcome, KindOf(error, Failure::kConnect), StrCat("TLS: ", error.message()));
  co_return !error;
}

// False: a kept connection was closed before a byte of the answer came, and a fresh one may be asked.
template <class Stream>
asio::awaitable<bool> Client::Exchange(Turn& turn, Stream& stream) {
  Outcome& outcome = turn.outcome;
  error_code error;
  beast::flat_buffer buffer;
  std::optional<http::response_parser<http::buffer_body>> head;
  co_await http::async_write(stream, turn.request, asio::redirect_error(asio::use_awaitable, error));
  do {  // what is said before the answer, 100 Continue or 103 Early Hints, is no answer
    head.emplace().body_limit(boost::none);
    if (!error)
      co_await http::async_read_header(stream, buffer, *head, asio::redirect_error(asio::use_awaitable, error));
  } while (!error && head->get().result_int() / 100 == 1);
  auto& parser = *head;
  if (error) {
    if (!turn.first_use && error != beast::error::timeout && !parser.got_some()) co_return false;
    Fail(outcome, KindOf(error, Failure::kBroken), StrCat("no answer: ", error.message()));
    co_return true;
  }
  outcome.http_status = static_cast<int>(parser.get().result_int());
  const std::string_view encoding = parser.get()[http::field::content_encoding];
  if (!encoding.empty() && encoding != "identity")
    Fail(outcome, Failure::kMalformed,
         StrCat("the answer is encoded, which nobody asked for: ", Printable(encoding, 80)));
  const bool events = parser.get()[http::field::content_type].starts_with("text/event-stream");
  Body body(outcome, events && outcome.http_status == 200);
  std::string chunk(16384, '\0');
  while (!parser.is_done()) {
    parser.get().body().data = chunk.data();
    parser.get().body().size = chunk.size();
    co_await http::async_read_some(stream, buffer, parser, asio::redirect_error(asio::use_awaitable, error));
    if (error == http::error::need_buffer) error = {};
    body.Feed(std::string_view(chunk.data(), chunk.size() - parser.get().body().size), Since());
    if (error) {
      Fail(outcome, KindOf(error, Failure::kBroken), StrCat("in the middle of the answer: ", error.message()));
      co_return true;
    }
  }
  body.End();
  if (parser.keep_alive() && idle_.size() < 65536) idle_.push_back(std::move(turn.connection));
  co_return true;
}

asio::awaitable<void> Client::Ask(const Prompt& prompt, size_t index, std::string request_id, Outcome& outcome) {
  const TimePoint deadline = clock_.Now() + server_.timeout;
  http::request<http::string_body> request(http::verb::post, server_.path, 11);
  const bool v6 = server_.host.find(':') != std::string::npos;
  request.set(http::field::host, StrCat(v6 ? "[" : "", server_.host, v6 ? "]:" : ":", server_.port));
  request.set(http::field::user_agent, "baton");
  request.set(http::field::content_type, "application/json");
  request.set("X-Request-Id", request_id);
  for (const auto& [name, value] : server_.headers) request.set(name, value);
  request.body() = body_.Of(prompt, index);
  request.prepare_payload();
  outcome.sent = Since();
  for (bool again = true; again;) {
    Turn turn{nullptr, request, outcome, idle_.empty()};
    if (turn.first_use) {
      turn.connection = co_await Connect(outcome, deadline);
    } else {
      turn.connection = std::move(idle_.back());
      idle_.pop_back();
    }
    again = false;
    if (Connection* connection = turn.connection.get()) {
      connection->tcp.expires_after(deadline - clock_.Now());
      again = connection->tls ? !co_await Exchange(turn, *connection->tls) : !co_await Exchange(turn, connection->tcp);
    }
  }
  outcome.end = Since();
}

MakeAsker HttpAsker(Server server, RequestBody body) {
  // Both live as long as the function, of which the run has a copy.
  auto kept = std::make_shared<std::pair<const Server, const RequestBody>>(std::move(server), std::move(body));
  return [kept](const Clock& clock) { return std::make_unique<Client>(kept->first, kept->second, clock); };
}

}  // namespace baton::load
