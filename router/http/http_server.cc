// <utility> before Asio: Boost 1.81's awaitable.hpp uses std::exchange without it.
#include <utility>

#include "router/http/http_server.h"

#include <sys/socket.h>

#include <atomic>
#include <future>
#include <set>

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

#include "common/str_cat.h"
#include "router/asio_executor.h"

namespace baton::router {
namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using tcp = asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;

namespace {

constexpr size_t kDiscardBytes = 64 << 20;  // read and dropped so that a refused client sees the answer, not a reset

// What one exchange has to say, and where the connection's coroutine waits for it.
class Exchange final : public HttpExchange, public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(Executor& executor, asio::io_context& context, const HttpHeaders& always, bool keep_alive, bool http11, bool head)
      : executor_(executor), wake_(context), always_(always), keep_alive_(keep_alive), http11_(http11), head_only_(head) {
    wake_.expires_at(asio::steady_timer::time_point::max());
  }

  Executor& executor() override { return executor_; }

  void Respond(HttpResponse response) override {
    if (ended_ || gone_ || started_) return;
    started_ = true;
    Head(response.status, response.headers, response.content_type);
    if (response.status != 204) absl::StrAppend(&pending_, "Content-Length: ", response.body.size(), "\r\n");
    pending_ += "\r\n";
    if (!head_only_) pending_ += response.body;
    End();
  }

  void StartStream(int status, HttpHeaders headers, std::string content_type) override {
    if (ended_ || gone_ || started_) return;
    started_ = true;
    chunked_ = http11_;
    if (!http11_) keep_alive_ = false;
    Head(status, headers, content_type);
    pending_ += chunked_ ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n";
  }

  void Write(std::string bytes) override {
    if (ended_ || gone_ || bytes.empty()) return;
    if (chunked_) {
      absl::StrAppend(&pending_, absl::Hex(bytes.size()), "\r\n", bytes, "\r\n");
    } else {
      pending_ += bytes;
    }
    Wake();
  }

  void End() override {
    if (ended_ || gone_) return;
    if (chunked_) pending_ += "0\r\n\r\n";
    ended_ = true;
    Wake();
  }

  size_t UnsentBytes() const override { return pending_.size() + in_flight_; }

  void Watch(std::function<void()> gone, std::function<void()> drained) override {
    on_gone_ = std::move(gone);
    on_drained_ = std::move(drained);
  }

  // ---- for the connection's coroutine
  bool has_output() const { return !pending_.empty(); }
  bool ended() const { return ended_; }
  bool gone() const { return gone_; }
  bool keep_alive() const { return keep_alive_; }
  asio::steady_timer& wake() { return wake_; }
  std::string TakeOutput() {
    in_flight_ = pending_.size();
    return std::exchange(pending_, {});
  }
  void Sent() {
    in_flight_ = 0;
    if (pending_.empty() && on_drained_ && !ended_) on_drained_();
  }
  void ClientGone() {
    if (std::exchange(gone_, true)) return;
    auto gone = std::exchange(on_gone_, nullptr);
    on_drained_ = nullptr;
    if (gone && !ended_) gone();
    Wake();
  }
  void Release() { on_gone_ = nullptr, on_drained_ = nullptr; }

 private:
  void Wake() { wake_.cancel(); }
  void Head(int status, const HttpHeaders& headers, const std::string& content_type) {
    absl::StrAppend(&pending_, "HTTP/1.1 ", status, " ", HttpReason(status), "\r\n");
    if (status != 204) absl::StrAppend(&pending_, "Content-Type: ", content_type, "\r\n");
    for (const auto& [key, value] : headers) absl::StrAppend(&pending_, key, ": ", value, "\r\n");
    for (const auto& [key, value] : always_) absl::StrAppend(&pending_, key, ": ", value, "\r\n");
    pending_ += keep_alive_ ? "Connection: keep-alive\r\n" : "Connection: close\r\n";
  }

  Executor& executor_;
  asio::steady_timer wake_;
  const HttpHeaders& always_;
  bool keep_alive_;
  const bool http11_, head_only_;
  std::string pending_;
  size_t in_flight_ = 0;
  bool started_ = false, chunked_ = false, ended_ = false, gone_ = false;
  std::function<void()> on_gone_, on_drained_;
};

}  // namespace

struct HttpServer::Inner : std::enable_shared_from_this<HttpServer::Inner> {
  Inner(Options o, ExecutorPool& p, HttpHandler h)
      : options(std::move(o)), pool(p), handler(std::move(h)), acceptor(ExecutorPoolAccess::Context(p, 0)), open(p.size()) {}

  asio::awaitable<void> Accept();
  asio::awaitable<void> Serve(tcp::socket socket, size_t home);
  asio::awaitable<bool> ReadRequest(beast::tcp_stream& stream, beast::flat_buffer& buffer, size_t home,
                                    std::shared_ptr<Exchange>& exchange);
  asio::awaitable<bool> WriteAnswer(beast::tcp_stream& stream, Exchange& exchange);
  asio::awaitable<void> Refuse(beast::tcp_stream& stream, int status, std::string message);
  void WatchForClose(beast::tcp_stream& stream, std::shared_ptr<Exchange> exchange);

  const Options options;
  ExecutorPool& pool;
  const HttpHandler handler;
  tcp::acceptor acceptor;
  uint16_t port = 0;
  std::atomic<int32_t> connections{0};
  std::atomic<bool> stopping{false};
  std::vector<std::set<beast::tcp_stream*>> open;  // [executors], each touched by its own thread
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
    ++connections;
    auto& context = ExecutorPoolAccess::Context(pool, home);
    asio::co_spawn(
        context,
        [self = shared_from_this(), socket = std::move(socket), home]() mutable -> asio::awaitable<void> {
          co_await self->Serve(std::move(socket), home);
          --self->connections;
        },
        asio::detached);
  }
}

// The client that goes away while it is answered: its socket becomes readable with nothing to read.
void HttpServer::Inner::WatchForClose(beast::tcp_stream& stream, std::shared_ptr<Exchange> exchange) {
  stream.socket().async_wait(tcp::socket::wait_read, [this, &stream, exchange](error_code error) {
    if (error || exchange->ended() || exchange->gone()) return;
    char byte;
    const ssize_t n = ::recv(stream.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n > 0) return;  // the next request is waiting already
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return WatchForClose(stream, exchange);
    exchange->ClientGone();
  });
}

asio::awaitable<void> HttpServer::Inner::Refuse(beast::tcp_stream& stream, int status, std::string message) {
  const std::string body = options.error_body ? options.error_body(status, message) : message;
  std::string out = StrCat("HTTP/1.1 ", status, " ", HttpReason(status), "\r\nContent-Type: application/json\r\nContent-Length: ",
                           body.size(), "\r\nConnection: close\r\n");
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
  if (error == http::error::header_limit) return 431;
  if (error == http::error::body_limit) return 413;
  if (error == beast::error::timeout) return 408;
  return error.category() == make_error_code(http::error::bad_method).category() ? 400 : 0;
}

HttpRequest ToRequest(http::request<http::string_body>&& in) {
  HttpRequest out;
  out.method = std::string(in.method_string());
  const std::string target(in.target());
  const size_t question = target.find('?');
  out.path = target.substr(0, question);
  if (question != std::string::npos) out.query = target.substr(question + 1);
  for (const auto& field : in) out.headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
  out.body = std::move(in.body());
  return out;
}

}  // namespace

// False: the connection ends. On true `exchange` is being answered.
asio::awaitable<bool> HttpServer::Inner::ReadRequest(beast::tcp_stream& stream, beast::flat_buffer& buffer, size_t home,
                                                     std::shared_ptr<Exchange>& exchange) {
  error_code error;
  if (buffer.size() == 0) {
    stream.expires_after(milliseconds(options.keep_alive_ms));
    const size_t n = co_await stream.async_read_some(buffer.prepare(4096), asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return false;
    buffer.commit(n);
  }
  http::request_parser<http::string_body> parser;
  parser.header_limit(static_cast<uint32_t>(options.max_header_bytes));
  parser.body_limit(options.max_body_bytes);
  stream.expires_after(milliseconds(options.read_timeout_ms));
  co_await http::async_read_header(stream, buffer, parser, asio::redirect_error(asio::use_awaitable, error));
  if (!error && beast::iequals(parser.get()[http::field::expect], "100-continue")) {
    static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    co_await asio::async_write(stream, asio::buffer(kContinue), asio::redirect_error(asio::use_awaitable, error));
  }
  if (!error) co_await http::async_read(stream, buffer, parser, asio::redirect_error(asio::use_awaitable, error));
  if (error) {
    const int status = StatusOfReadError(error);
    if (error == http::error::end_of_stream || error == http::error::partial_message || status == 0) co_return false;
    const std::string limit = status == 431   ? StrCat("The headers are longer than ", options.max_header_bytes, " bytes (--max-header-bytes).")
                              : status == 413 ? StrCat("The body is longer than ", options.max_body_bytes, " bytes (--max-body-bytes).")
                              : status == 408 ? StrCat("The request did not arrive within ", options.read_timeout_ms, " ms (--read-timeout-ms).")
                                              : StrCat("Not a valid HTTP request: ", error.message(), ".");
    co_await Refuse(stream, status, limit);
    co_return false;
  }
  stream.expires_never();
  http::request<http::string_body> request = parser.release();
  exchange = std::make_shared<Exchange>(pool.at(home), ExecutorPoolAccess::Context(pool, home), options.always,
                                        request.keep_alive(), request.version() >= 11, request.method() == http::verb::head);
  handler(exchange, ToRequest(std::move(request)));
  co_return true;
}

// Writes until the answer has ended. False: the client is gone.
asio::awaitable<bool> HttpServer::Inner::WriteAnswer(beast::tcp_stream& stream, Exchange& exchange) {
  error_code error;
  while (true) {
    while (exchange.has_output()) {
      const std::string output = exchange.TakeOutput();
      stream.expires_after(milliseconds(options.write_timeout_ms));
      co_await asio::async_write(stream, asio::buffer(output), asio::redirect_error(asio::use_awaitable, error));
      stream.expires_never();
      if (error) co_return false;
      exchange.Sent();
    }
    if (exchange.gone()) co_return false;
    if (exchange.ended()) co_return true;
    exchange.wake().expires_at(asio::steady_timer::time_point::max());
    error_code ignored;
    co_await exchange.wake().async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
}

asio::awaitable<void> HttpServer::Inner::Serve(tcp::socket socket, size_t home) {
  beast::tcp_stream stream(std::move(socket));
  open[home].insert(&stream);
  beast::flat_buffer buffer;
  bool more = true;
  while (more && !stopping) {
    std::shared_ptr<Exchange> exchange;
    if (!co_await ReadRequest(stream, buffer, home, exchange)) break;
    if (!exchange->ended()) WatchForClose(stream, exchange);
    const bool whole = co_await WriteAnswer(stream, *exchange);
    if (!whole) exchange->ClientGone();
    exchange->Release();
    error_code ignored;
    stream.socket().cancel(ignored);  // of WatchForClose
    more = whole && exchange->keep_alive();
  }
  error_code ignored;
  stream.socket().shutdown(tcp::socket::shutdown_send, ignored);
  open[home].erase(&stream);
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(Options options, ExecutorPool& pool, HttpHandler handler) {
  auto inner = std::make_shared<Inner>(std::move(options), pool, std::move(handler));
  const Options& o = inner->options;
  const std::string where = StrCat(o.host, ":", o.port);
  error_code error;
  const auto address = asio::ip::make_address(o.host == "localhost" ? "127.0.0.1" : o.host, error);
  if (error) return absl::InvalidArgumentError(StrCat("--host ", o.host, " is not an IP address"));
  const tcp::endpoint endpoint(address, o.port);
  tcp::acceptor& acceptor = inner->acceptor;
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) return absl::UnavailableError(StrCat("cannot listen on ", where, ": ", error.message(), " (--host, --port)"));
  inner->port = acceptor.local_endpoint().port();
  asio::co_spawn(ExecutorPoolAccess::Context(pool, 0), [inner]() -> asio::awaitable<void> { co_await inner->Accept(); },
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
  for (size_t i = 0; i < inner_->pool.size(); ++i) {
    std::promise<void> done;
    inner_->pool.at(i).Post([&, i] {
      for (beast::tcp_stream* stream : inner_->open[i]) {
        error_code ignored;
        stream->socket().shutdown(tcp::socket::shutdown_both, ignored);
        stream->cancel();
      }
      done.set_value();
    });
    done.get_future().wait();
  }
}

}  // namespace baton::router
