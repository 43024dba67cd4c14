// clang-format off: <utility> before Asio, whose awaitable.hpp uses std::exchange without it (Boost 1.81).
#include <utility>
// clang-format on

#include "router/http/http_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <condition_variable>
#include <future>
#include <mutex>
#include <optional>
#include <set>

#include "common/str_cat.h"
#include "router/asio_executor.h"
#include "router/http/beast_exchange.h"
#include "router/http/read_deadline.h"

namespace baton::router {
namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using tcp = asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;

namespace {

constexpr Duration kLastBytes = std::chrono::seconds(2);  // for answers that are complete when the server stops
constexpr size_t kReadBytes = 64 << 10;                   // of a body at once
constexpr size_t kIdleBytes = 4096;                       // of a request's first read, and kept by an idle connection
constexpr int kUnsentBytes = 128 << 10;     // that the kernel keeps of an answer: what more there is waits for credit
constexpr size_t kDiscardBytes = 64 << 20;  // read and dropped so that a refused client sees the answer, not a reset

}  // namespace

struct HttpServer::Inner : std::enable_shared_from_this<HttpServer::Inner> {
  Inner(Options o, ExecutorPool& p, HttpHandler h)
      : options(std::move(o)),
        pool(p),
        handler(std::move(h)),
        acceptor(ExecutorPoolAccess::Context(p, 0)),
        open(p.size()) {}

  // One connection; lives in its coroutine's frame.
  struct Connection {
    beast::tcp_stream stream;
    beast::flat_buffer buffer;                     // what came and is not read yet: also of requests to come
    ReadDeadline deadline{stream};                 // of a request that has begun to arrive
    std::shared_ptr<BeastExchange> exchange = {};  // being answered; null between requests
  };
  using Parser = http::request_parser<http::string_body>;
  using Set = std::set<Connection*>;

  asio::awaitable<void> Accept();
  asio::awaitable<void> Serve(tcp::socket socket, size_t home);
  asio::awaitable<bool> ReadRequest(Connection& connection, size_t home);
  asio::awaitable<error_code> FirstBytes(Connection& connection);
  asio::awaitable<error_code> Parse(Connection& connection, Parser& parser);
  asio::awaitable<bool> WriteAnswer(beast::tcp_stream& stream, BeastExchange& exchange);
  struct Refusal {
    int status;
    std::string message;
  };
  static std::optional<Refusal> WrongHead(const http::request<http::string_body>& request);
  std::optional<Refusal> RefusalOf(const Connection& connection, error_code error) const;
  asio::awaitable<void> Refuse(beast::tcp_stream& stream, const Refusal& refusal);
  void WatchForClose(Connection& connection, std::shared_ptr<BeastExchange> exchange);

  const Options options;
  ExecutorPool& pool;
  const HttpHandler handler;
  tcp::acceptor acceptor;
  uint16_t port = 0;
  void Close(bool also_those_that_send);
  void Left();
  bool WaitEmpty(Duration timeout);

  std::atomic<int32_t> connections{0};
  std::atomic<bool> stopping{false};
  std::vector<Set> open;  // [executors], each touched by its own thread
  std::mutex mutex;
  std::condition_variable left;
};

asio::awaitable<void> HttpServer::Inner::Accept() {
  size_t next = 0;
  while (!stopping) {
    const size_t home = next++ % pool.size();
    tcp::socket socket(ExecutorPoolAccess::Context(pool, home));
    error_code error;
    co_await acceptor.async_accept(socket, asio::redirect_error(asio::use_awaitable, error));
    if (error == asio::error::operation_aborted || !acceptor.is_open()) co_return;
    if (error || connections >= options.max_connections) {
      error_code ignored;
      socket.close(ignored);
      if (error) {  // out of file descriptors: give running connections time to end
        asio::steady_timer pause(acceptor.get_executor(), milliseconds(10));
        co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
      }
      continue;
    }
    error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kUnsentBytes, sizeof kUnsentBytes);
    socket.non_blocking(true, ignored);
    ++connections;
    auto& context = ExecutorPoolAccess::Context(pool, home);
    asio::co_spawn(
        context,
        [self = shared_from_this(), socket = std::move(socket), home]() mutable -> asio::awaitable<void> {
          co_await self->Serve(std::move(socket), home);
          self->Left();
        },
        asio::detached);
  }
}

// The client that goes away while it is answered ends its stream of bytes. What comes before that end is its next
// request, which is kept as far as the buffer goes.
void HttpServer::Inner::WatchForClose(Connection& connection, std::shared_ptr<BeastExchange> exchange) {
  connection.stream.socket().async_wait(tcp::socket::wait_read, [this, &connection, exchange](error_code error) {
    if (error || exchange->ended() || exchange->gone()) return;
    beast::flat_buffer& buffer = connection.buffer;
    const size_t room = std::min(buffer.max_size() - buffer.size(), kIdleBytes);
    if (room == 0) return;
    const auto into = buffer.prepare(room);
    const ssize_t n = ::recv(connection.stream.socket().native_handle(), into.data(), into.size(), MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return exchange->ClientGone();
    buffer.commit(static_cast<size_t>(std::max<ssize_t>(0, n)));
    WatchForClose(connection, exchange);
  });
}

asio::awaitable<void> HttpServer::Inner::Refuse(beast::tcp_stream& stream, const Refusal& refusal) {
  const auto& [status, message] = refusal;
  const std::string body = options.error_body ? options.error_body(status, message) : message;
  std::string out =
      StrCat("HTTP/1.1 ", status, " ", HttpReason(status),
             "\r\nContent-Type: application/json\r\nContent-Length: ", body.size(), "\r\nConnection: close\r\n");
  for (const auto& [key, value] : options.always) absl::StrAppend(&out, key, ": ", value, "\r\n");
  absl::StrAppend(&out, "\r\n", body);
  error_code error;
  stream.expires_after(milliseconds(options.write_timeout_ms));
  co_await asio::async_write(stream, asio::buffer(out), asio::redirect_error(asio::use_awaitable, error));
  stream.socket().shutdown(tcp::socket::shutdown_send, error);
  stream.expires_after(std::chrono::seconds(2));
  char sink[16384];
  for (size_t dropped = 0; dropped < kDiscardBytes && !error;) {
    dropped += co_await stream.async_read_some(asio::buffer(sink), asio::redirect_error(asio::use_awaitable, error));
  }
}

namespace {

int StatusOfReadError(error_code error) {
  // The buffer holds what must be whole before it is read: the header, a chunk's own header, the trailers.
  if (error == http::error::header_limit || error == http::error::buffer_overflow) return 431;
  if (error == http::error::body_limit) return 413;
  return error.category() == make_error_code(http::error::bad_method).category() ? 400 : 0;
}

HttpRequest ToRequest(http::request<http::string_body>&& in) {
  HttpRequest out;
  out.method = std::string(in.method_string());
  std::string target(in.target());
  if (const size_t scheme = target.find("://"); scheme != std::string::npos && target[0] != '/') {
    const size_t path = target.find_first_of("/?", scheme + 3);  // what a proxy is asked for
    target = path == std::string::npos ? "/" : target[path] == '?' ? "/" + target.substr(path) : target.substr(path);
  }
  const size_t question = target.find('?');
  out.path = target.substr(0, question);
  if (question != std::string::npos) out.query = target.substr(question + 1);
  for (const auto& field : in) out.headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
  out.body = std::move(in.body());
  return out;
}

}  // namespace

// RFC 9112: a server must not guess at these, for a proxy before it may guess otherwise.
std::optional<HttpServer::Inner::Refusal> HttpServer::Inner::WrongHead(const http::request<http::string_body>& in) {
  const auto [first, last] = in.equal_range(http::field::host);
  const auto hosts = std::distance(first, last);
  if (hosts > 1 || (hosts == 0 && in.version() >= 11))
    return Refusal{400, StrCat("Not a valid HTTP request: ", hosts, " Host headers.")};
  if (in.count(http::field::transfer_encoding) > 0 && !in.chunked())
    return Refusal{501, "A Transfer-Encoding other than chunked is not supported."};
  return std::nullopt;
}

// An idle connection has the keep-alive time, and none of what it read before.
asio::awaitable<error_code> HttpServer::Inner::FirstBytes(Connection& c) {
  error_code error;
  if (c.buffer.capacity() > 2 * kIdleBytes) c.buffer.shrink_to_fit();
  c.stream.expires_after(milliseconds(options.keep_alive_ms));
  const size_t n =
      co_await c.stream.async_read_some(c.buffer.prepare(kIdleBytes), asio::redirect_error(asio::use_awaitable, error));
  c.buffer.commit(n);
  c.stream.expires_never();
  co_return error;
}

// Reads until the request is whole. One that is here already costs no turn of the loop and no timer.
asio::awaitable<error_code> HttpServer::Inner::Parse(Connection& c, Parser& parser) {
  error_code error;
  bool armed = false, continued = false;
  parser.eager(true);
  while (true) {
    if (c.buffer.size() > 0) c.buffer.consume(parser.put(c.buffer.data(), error));
    if (error == http::error::need_more) error = {};
    if (error || parser.is_done()) break;
    const bool old = parser.is_header_done() && parser.get().version() < 11;  // would take 100 for the answer
    if (parser.is_header_done() && !old && !std::exchange(continued, true) &&
        beast::iequals(parser.get()[http::field::expect], "100-continue")) {
      static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
      co_await asio::async_write(c.stream, asio::buffer(kContinue), asio::redirect_error(asio::use_awaitable, error));
      if (error) break;
    }
    const size_t room = std::min(c.buffer.max_size() - c.buffer.size(), kReadBytes);
    if (room == 0) {
      error = http::error::buffer_overflow;
      break;
    }
    const auto into = c.buffer.prepare(room);
    size_t n = c.stream.socket().read_some(into, error);
    if (error == asio::error::would_block) {
      if (!std::exchange(armed, true)) c.deadline.Arm(milliseconds(options.read_timeout_ms));
      n = co_await c.stream.async_read_some(into, asio::redirect_error(asio::use_awaitable, error));
    }
    if (error) break;
    c.buffer.commit(n);
  }
  if (armed) c.deadline.Disarm();
  co_return error;
}

// What the client is told of a request that could not be read; nothing: it is gone.
std::optional<HttpServer::Inner::Refusal> HttpServer::Inner::RefusalOf(const Connection& c, error_code error) const {
  if (c.deadline.over()) {
    return Refusal{408, StrCat("The request did not arrive whole within ", options.read_timeout_ms / 1000.0,
                               " seconds of its first byte (--read-timeout-ms).")};
  }
  const int status = StatusOfReadError(error);
  switch (status) {
    case 0: return std::nullopt;
    case 413:
      return Refusal{status, StrCat("The body is longer than ", options.max_body_bytes, " bytes (--max-body-bytes).")};
    case 431:
      return Refusal{status, StrCat("The headers, or those of a chunk, are longer than ", options.max_header_bytes,
                                    " bytes (--max-header-bytes).")};
    default: return Refusal{status, StrCat("Not a valid HTTP request: ", error.message(), ".")};
  }
}

// False: the connection ends. On true its exchange is being answered.
asio::awaitable<bool> HttpServer::Inner::ReadRequest(Connection& c, size_t home) {
  if (c.buffer.size() == 0 && co_await FirstBytes(c)) co_return false;
  Parser parser;
  parser.header_limit(static_cast<uint32_t>(options.max_header_bytes));
  parser.body_limit(options.max_body_bytes);
  if (const error_code error = co_await Parse(c, parser)) {
    const std::optional<Refusal> refusal = RefusalOf(c, error);
    if (refusal) co_await Refuse(c.stream, *refusal);
    co_return false;
  }
  http::request<http::string_body> request = parser.release();
  const std::optional<Refusal> refusal = WrongHead(request);
  if (refusal) {
    co_await Refuse(c.stream, *refusal);
    co_return false;
  }
  c.exchange = std::make_shared<BeastExchange>(pool.at(home), ExecutorPoolAccess::Context(pool, home), options.always,
                                               request.keep_alive(), request.version() >= 11,
                                               request.method() == http::verb::head);
  handler(c.exchange, ToRequest(std::move(request)));
  co_return true;
}

// Writes until the answer has ended. False: the client is gone.
asio::awaitable<bool> HttpServer::Inner::WriteAnswer(beast::tcp_stream& stream, BeastExchange& exchange) {
  error_code error;
  while (true) {
    while (exchange.has_output()) {
      const std::string output = exchange.TakeOutput();
      // A client that keeps up takes all at once: no timer, no turn of the loop.
      size_t sent = stream.socket().write_some(asio::buffer(output), error);
      if (error == asio::error::would_block) error = {};
      const bool waits = !error && sent < output.size();
      while (!error && sent < output.size()) {  // the time limit is for each byte that is taken
        stream.expires_after(milliseconds(options.write_timeout_ms));
        sent += co_await stream.async_write_some(asio::buffer(output) + sent,
                                                 asio::redirect_error(asio::use_awaitable, error));
      }
      if (waits) stream.expires_never();
      if (error) co_return false;
      exchange.Sent();
    }
    if (exchange.gone()) co_return false;
    if (exchange.ended()) co_return true;
    error_code ignored;
    exchange.SetIdle(&stream.socket());
    co_await exchange.wake().async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    exchange.SetIdle(nullptr);
  }
}

asio::awaitable<void> HttpServer::Inner::Serve(tcp::socket socket, size_t home) {
  Connection c{beast::tcp_stream(std::move(socket)), beast::flat_buffer(options.max_header_bytes + kReadBytes)};
  open[home].insert(&c);
  bool more = true;
  while (more && !stopping) {
    if (!co_await ReadRequest(c, home)) break;
    if (!c.exchange->ended()) WatchForClose(c, c.exchange);
    const bool whole = co_await WriteAnswer(c.stream, *c.exchange);
    if (!whole) c.exchange->ClientGone();
    c.exchange->Release();
    error_code ignored;
    c.stream.socket().cancel(ignored);  // of WatchForClose
    more = whole && c.exchange->keep_alive();
    c.exchange.reset();
  }
  error_code ignored;
  c.stream.socket().shutdown(tcp::socket::shutdown_send, ignored);
  open[home].erase(&c);
}

void HttpServer::Inner::Left() {
  std::lock_guard lock(mutex);
  --connections;
  left.notify_all();
}

bool HttpServer::Inner::WaitEmpty(Duration timeout) {
  std::unique_lock lock(mutex);
  return left.wait_for(lock, timeout, [this] { return connections == 0; });
}

// Connections whose answer is complete may be left to send it.
void HttpServer::Inner::Close(bool also_those_that_send) {
  for (size_t i = 0; i < pool.size(); ++i) {
    std::promise<void> done;
    pool.at(i).Post([&, i] {
      for (Connection* c : open[i]) {
        if (c->exchange && c->exchange->ended() && !also_those_that_send) continue;
        if (c->exchange) c->exchange->ClientGone();
        c->stream.close();
      }
      done.set_value();
    });
    done.get_future().wait();
  }
}

namespace {

absl::Status CannotListen(const HttpServer::Options& o, error_code error) {
  const std::string message =
      StrCat("cannot listen on ", o.host, ":", o.port, ": ", error.message(), " (--host, ", o.port_flag, ")");
  return error == asio::error::address_in_use ? absl::AlreadyExistsError(message)
                                              : absl::PermissionDeniedError(message);
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(Options options, ExecutorPool& pool,
                                                              HttpHandler handler) {
  auto inner = std::make_shared<Inner>(std::move(options), pool, std::move(handler));
  const Options& o = inner->options;
  error_code error;
  const auto address = asio::ip::make_address(o.host == "localhost" ? "127.0.0.1" : o.host, error);
  if (error) return absl::FailedPreconditionError(StrCat("--host ", o.host, " is not an IP address"));
  const tcp::endpoint endpoint(address, o.port);
  tcp::acceptor& acceptor = inner->acceptor;
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) return CannotListen(o, error);
  inner->port = acceptor.local_endpoint().port();
  asio::co_spawn(
      ExecutorPoolAccess::Context(pool, 0), [inner]() -> asio::awaitable<void> { co_await inner->Accept(); },
      asio::detached);
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(inner)));
}

HttpServer::~HttpServer() { Stop(); }
uint16_t HttpServer::port() const { return inner_->port; }
int32_t HttpServer::connections() const { return inner_->connections; }

void HttpServer::StopAccepting() {
  std::promise<void> done;
  inner_->pool.at(0).Post([&] {
    error_code ignored;
    inner_->acceptor.close(ignored);
    done.set_value();
  });
  done.get_future().wait();
}

void HttpServer::Stop() {
  if (inner_->stopping.exchange(true)) return;
  StopAccepting();
  inner_->Close(false);
  if (inner_->WaitEmpty(kLastBytes)) return;
  inner_->Close(true);
  inner_->WaitEmpty(kLastBytes);
}

}  // namespace baton::router
