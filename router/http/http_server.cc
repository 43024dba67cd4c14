// clang-format off: <utility> before Asio, whose awaitable.hpp uses std::exchange without it (Boost 1.81).
#include <utility>
// clang-format on

#include "router/http/http_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <variant>

#include "common/foreign_text.h"
#include "common/log.h"
#include "common/net/address.h"
#include "common/net/connection_places.h"
#include "common/net/held_socket.h"
#include "common/net/received_bytes.h"
#include "common/net/socket_address.h"
#include "common/str_cat.h"
#include "router/admission/admission.h"
#include "router/asio_event_loop.h"
#include "router/http/beast_exchange.h"
#include "router/http/request_reader.h"
#include "router/http/tls_handshake.h"

namespace baton::router {
namespace asio = boost::asio;
namespace beast = boost::beast;
using tcp = asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

constexpr Duration kLastBytes = std::chrono::seconds(2);  // for answers that are complete when the server stops
constexpr size_t kMostReason = 300;
constexpr size_t kBodies = 4;               // of the largest size may arrive at once, however large that is
constexpr int kUnsentBytes = 128 << 10;     // that the kernel keeps of an answer: what more there is waits for credit
constexpr size_t kDiscardBytes = 64 << 20;  // read and dropped so that a refused client sees the answer, not a reset

/// Of a connection, on its loop's thread but for what ConnectionPlaces does.
struct HttpPlace final : net::ConnectionPlaces::Place {
  HttpPlace(const asio::ip::address& from, size_t loop, int fd)
      : Place(from), home(loop), socket(fd), inode(net::SocketInode(fd)) {}
  uint64_t Brought() const override {
    const net::HeldSocket held(socket, inode);
    return held.open() ? net::ReceivedBytes(held.fd()) : 0;
  }
  const size_t home;
  const int socket;
  const uint64_t inode;
  const TimePoint since = SteadyClock().Now();
  ClientConnection* connection = nullptr;  ///< null: it has not begun, or has ended
  bool gave_way = false;
};

}  // namespace

struct HttpServer::Inner : std::enable_shared_from_this<HttpServer::Inner> {
  Inner(Options o, EventLoopPool& p, HttpHandler h)
      : options(std::move(o)),
        pool(p),
        handler(std::move(h)),
        acceptor(EventLoopPoolAccess::Context(p, 0)),
        places(options.limits),
        bodies(std::max(options.most_arriving_bytes, kBodies * options.max_body_bytes)),
        open(p.size()),
        greeting(p.size()) {}

  using Set = std::set<ClientConnection*>;

  asio::awaitable<void> Accept();
  asio::awaitable<void> Pause(bool some_give_way);
  void GiveWay(const std::shared_ptr<HttpPlace>& place);
  asio::awaitable<void> Serve(tcp::socket socket, HttpPlace& place);
  void Closed(const char* why, const asio::ip::address& from) const {
    if (options.closed) options.closed(why, from.to_string());
  }
  asio::awaitable<bool> Greet(ClientConnection& connection, size_t home);
  asio::awaitable<bool> TakeRequest(ClientConnection& connection, HttpPlace& place);
  asio::awaitable<bool> WriteAnswer(ClientConnection& connection);
  asio::awaitable<void> Discard(ClientStream& stream);
  asio::awaitable<void> Refuse(ClientStream& stream, const HttpRefusal& refusal);
  void WatchForClose(ClientConnection& connection, std::shared_ptr<BeastExchange> exchange);

  const Options options;
  EventLoopPool& pool;
  const HttpHandler handler;
  tcp::acceptor acceptor;
  uint16_t port = 0;
  void CloseUnused();
  void Close(bool also_those_that_send);
  void Left(HttpPlace& place);
  bool WaitEmpty(Duration timeout);

  net::ConnectionPlaces places;
  ArrivingBodies bodies;
  std::atomic<bool> draining{false}, stopping{false};
  std::atomic<TimePoint> gone_by{};          ///< once it drains: clients of before are to have gone
  std::vector<Set> open;                     // [loops], each touched by its own thread
  std::vector<HandshakesUnderWay> greeting;  // [loops], likewise
  std::mutex mutex;                          // guards what follows
  std::condition_variable left;
  size_t served = 0;  ///< connections that have not ended, also those that gave way
};

asio::awaitable<void> HttpServer::Inner::Accept() {
  size_t next = 0;
  while (!stopping) {
    const size_t home = next++ % pool.size();
    tcp::socket socket(EventLoopPoolAccess::Context(pool, home));
    tcp::endpoint peer;
    error_code error;
    co_await acceptor.async_accept(socket, peer, asio::redirect_error(asio::use_awaitable, error));
    if (error == asio::error::operation_aborted || !acceptor.is_open()) co_return;
    const auto place = std::make_shared<HttpPlace>(net::CountedAs(peer.address()), home, socket.native_handle());
    net::ConnectionPlaces::Entered entered;
    if (!error) entered = places.Enter(*place);
    if (error || entered.full != nullptr) {
      error_code ignored;
      socket.close(ignored);
      if (entered.full != nullptr) Closed(entered.full, place->from());
      if (error) co_await Pause(error == asio::error::no_descriptors);
      continue;
    }
    if (entered.gave_way) GiveWay(std::static_pointer_cast<HttpPlace>(entered.gave_way));
    {
      std::lock_guard lock(mutex);
      ++served;
    }
    error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kUnsentBytes, sizeof kUnsentBytes);
    socket.non_blocking(true, ignored);
    auto& context = EventLoopPoolAccess::Context(pool, home);
    asio::co_spawn(
        context,
        [self = shared_from_this(), socket = std::move(socket), place]() mutable -> asio::awaitable<void> {
          co_await self->Serve(std::move(socket), *place);
          self->Left(*place);
        },
        asio::detached);
  }
}

// No connection can be taken. Where this process has no file descriptor left some give way. What ends has a moment for
// that.
asio::awaitable<void> HttpServer::Inner::Pause(bool some_give_way) {
  if (some_give_way)
    for (const auto& place : places.GiveUpSome()) GiveWay(std::static_pointer_cast<HttpPlace>(place));
  error_code ignored;
  asio::steady_timer pause(acceptor.get_executor(), milliseconds(10));
  co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
}

// Another connection has its place.
void HttpServer::Inner::GiveWay(const std::shared_ptr<HttpPlace>& place) {
  Closed("for-another", place->from());
  pool.at(place->home).Post([place] {
    place->gave_way = true;
    if (place->connection != nullptr) place->connection->stream.tcp().close();
  });
}

// The client that goes away while it is answered ends its stream of bytes. What comes before that end is its next
// request, which is kept as far as the buffer goes.
void HttpServer::Inner::WatchForClose(ClientConnection& connection, std::shared_ptr<BeastExchange> exchange) {
  connection.stream.socket().async_wait(tcp::socket::wait_read, [this, &connection, exchange](error_code error) {
    if (error || exchange->ended() || exchange->gone()) return;
    beast::flat_buffer& buffer = connection.buffer;
    const size_t room = std::min(buffer.max_size() - buffer.size(), kIdleBytes);
    if (room == 0) return;
    const auto into = buffer.prepare(room);
    const size_t n = connection.stream.ReadNow(into, error);
    if (error && error != asio::error::would_block) return exchange->ClientGone();
    buffer.commit(n);
    WatchForClose(connection, exchange);
  });
}

asio::awaitable<void> HttpServer::Inner::Refuse(ClientStream& stream, const HttpRefusal& refusal) {
  const auto& [status, message] = refusal;
  const std::string body = options.error_body ? options.error_body(status, message) : message;
  std::string out =
      StrCat("HTTP/1.1 ", status, " ", HttpReason(status),
             "\r\nContent-Type: application/json\r\nContent-Length: ", body.size(), "\r\nConnection: close\r\n");
  for (const auto& [key, value] : options.always) absl::StrAppend(&out, key, ": ", value, "\r\n");
  absl::StrAppend(&out, "\r\n", body);
  error_code error;
  stream.tcp().expires_after(milliseconds(options.write_timeout_ms));
  co_await WriteAll(stream, out, error);
  co_await Discard(stream);
}

// An answer that went out before its request was read: closing now would take it back. What still comes is thrown away
// for a while, so that the client can read what it is told.
asio::awaitable<void> HttpServer::Inner::Discard(ClientStream& stream) {
  error_code error;
  stream.SayEnd();
  stream.socket().shutdown(tcp::socket::shutdown_send, error);
  stream.tcp().expires_after(std::chrono::seconds(2));
  char sink[16384];
  for (size_t dropped = 0; dropped < kDiscardBytes && !error;) {
    dropped +=
        co_await stream.tcp().async_read_some(asio::buffer(sink), asio::redirect_error(asio::use_awaitable, error));
  }
}

// The handshake of a port that speaks TLS. False: the connection ends.
asio::awaitable<bool> HttpServer::Inner::Greet(ClientConnection& c, size_t home) {
  const size_t most = std::max<size_t>(1, options.tls->handshakes / pool.size());
  const Greeted greeted = co_await Handshake(c, *options.tls, greeting[home], most);
  if (greeted == Greeted::kPlaintext) {
    const HttpRefusal refusal{400, "This port speaks TLS, and the request came in plain text: use https://."};
    co_await Refuse(c.stream, refusal);
  }
  if (greeted == Greeted::kRefused) co_await Discard(c.stream);
  co_return greeted == Greeted::kTls;
}

// False: the connection ends. On true its exchange is being answered.
asio::awaitable<bool> HttpServer::Inner::TakeRequest(ClientConnection& c, HttpPlace& place) {
  IncomingHttp incoming = co_await ReadRequest(c, options);
  if (const auto* refusal = std::get_if<HttpRefusal>(&incoming)) {
    if (c.deadline.given_up()) Closed("arriving-bodies", place.from());
    co_await Refuse(c.stream, *refusal);
  }
  auto* read = std::get_if<ReadHttpRequest>(&incoming);
  if (read == nullptr || !places.SetBusy(place)) co_return false;
  c.exchange = std::make_shared<BeastExchange>(pool.at(place.home), EventLoopPoolAccess::Context(pool, place.home),
                                               options.always, draining, read->keep_alive, read->http11, read->head);
  c.body_unread = read->body_unread;
  c.asked = true;
  read->request.connected = place.since;
  try {
    handler(c.exchange, std::move(read->request));
  } catch (const std::exception& why) {  // of a library of ours; the connection must not keep its place
    LogError("{}: a request ends its connection: {}", options.port_flag, Printable(why.what(), kMostReason));
    c.exchange->ClientGone();
    c.exchange->Release();
    co_return false;
  }
  co_return true;
}

// Writes until the answer has ended. False: the client is gone.
asio::awaitable<bool> HttpServer::Inner::WriteAnswer(ClientConnection& c) {
  ClientStream& stream = c.stream;
  BeastExchange& exchange = *c.exchange;
  error_code error;
  std::optional<steady_clock::time_point> all_by;  // of an answer that is complete
  while (true) {
    while (exchange.has_output()) {
      const std::string output = exchange.TakeOutput();
      // A client that keeps up takes all at once: no timer, no turn of the loop.
      size_t sent = exchange.Took(stream.WriteNow(output, error));
      if (error == asio::error::would_block) error = {};
      const bool waits = !error && sent < output.size();
      std::optional<steady_clock::time_point> by;  // of what waits of one that is not
      while (!error && sent < output.size()) {     // and there is a limit for each byte that is taken
        const auto soon = steady_clock::now() + milliseconds(options.write_timeout_ms);
        const auto in_time = [&](size_t n) { return soon + milliseconds(1000 * n / options.slowest_bytes_per_s); };
        if (!by) by = in_time(output.size() - sent);
        if (exchange.ended() && !all_by) all_by = in_time(exchange.UnsentBytes() - sent);
        stream.tcp().expires_at(std::min(soon, all_by.value_or(*by)));
        const asio::const_buffer wire = stream.Wire(std::string_view(output).substr(sent), error);
        if (error) break;
        sent += exchange.Took(stream.Sent(
            co_await stream.tcp().async_write_some(wire, asio::redirect_error(asio::use_awaitable, error))));
      }
      if (waits) stream.tcp().expires_never();
      if (error == beast::error::timeout) Closed("slow-reader", c.place.from());
      if (error) co_return false;
      exchange.Sent();
    }
    if (exchange.gone()) co_return false;
    if (exchange.ended()) co_return true;
    error_code ignored;
    exchange.SetIdle(&stream);
    co_await exchange.wake().async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    exchange.SetIdle(nullptr);
  }
}

asio::awaitable<void> HttpServer::Inner::Serve(tcp::socket socket, HttpPlace& place) {
  if (place.gave_way) co_return;
  const size_t home = place.home;
  ClientConnection c{place, bodies, ClientStream(std::move(socket)),
                     beast::flat_buffer(options.max_header_bytes + kReadBytes)};
  open[home].insert(&c);
  place.connection = &c;
  bool more = !options.tls || co_await Greet(c, home);
  while (more && !stopping) {
    if (!co_await TakeRequest(c, place)) break;
    if (!c.exchange->ended() && !c.body_unread) WatchForClose(c, c.exchange);
    const bool in_pieces = !c.exchange->ended();
    if (in_pieces) c.stream.KeepBuffers(true);
    const bool whole = co_await WriteAnswer(c);
    if (in_pieces) c.stream.KeepBuffers(false);
    if (!whole) c.exchange->ClientGone();
    c.exchange->Release();
    error_code ignored;
    c.stream.socket().cancel(ignored);                      // of WatchForClose
    const bool drained = draining && c.buffer.size() == 0;  // what has come is answered
    more = whole && c.exchange->keep_alive() && !drained;
    c.exchange.reset();
    places.SetIdle(place);
  }
  error_code ignored;
  if (c.body_unread) co_await Discard(c.stream);
  c.stream.SayEnd();
  c.stream.socket().shutdown(tcp::socket::shutdown_send, ignored);
  open[home].erase(&c);
  place.connection = nullptr;
}

void HttpServer::Inner::Left(HttpPlace& place) {
  places.Leave(place);
  std::lock_guard lock(mutex);
  --served;
  left.notify_all();
}

bool HttpServer::Inner::WaitEmpty(Duration timeout) {
  std::unique_lock lock(mutex);
  return left.wait_for(lock, timeout, [this] { return served == 0; });
}

// Nothing has come on them since the last answer: their clients hear the end before they ask again, or just after.
void HttpServer::Inner::CloseUnused() {
  for (size_t i = 0; i < pool.size(); ++i) {
    std::promise<void> done;
    pool.at(i).Post([&, i] {
      for (ClientConnection* c : open[i]) {
        error_code error;
        if (c->between_requests && c->stream.socket().available(error) == 0) c->stream.tcp().cancel();
      }
      done.set_value();
    });
    done.get_future().wait();
  }
}

// Connections whose answer is complete may be left to send it.
void HttpServer::Inner::Close(bool also_those_that_send) {
  for (size_t i = 0; i < pool.size(); ++i) {
    std::promise<void> done;
    pool.at(i).Post([&, i] {
      for (ClientConnection* c : open[i]) {
        if (c->exchange && c->exchange->ended() && !also_those_that_send) continue;
        if (c->exchange) c->exchange->ClientGone();
        c->stream.tcp().close();
      }
      done.set_value();
    });
    done.get_future().wait();
  }
}

namespace {

absl::Status CannotListen(const HttpServer::Options& o, error_code error) {
  const std::string message = StrCat("cannot listen on ", net::JoinHostPort(o.host, o.port), ": ", error.message(),
                                     " (--host, ", o.port_flag, ")");
  return error == asio::error::address_in_use ? absl::AlreadyExistsError(message)
                                              : absl::PermissionDeniedError(message);
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(Options options, EventLoopPool& pool,
                                                              HttpHandler handler) {
  auto inner = std::make_shared<Inner>(std::move(options), pool, std::move(handler));
  const Options& o = inner->options;
  error_code error;
  const auto where = net::AddressToBind(o.host, o.port);
  if (!where.ok()) return absl::FailedPreconditionError(StrCat("--host ", o.host, ": ", where.status().message()));
  tcp::endpoint endpoint;
  std::memcpy(endpoint.data(), where->get(), where->bytes());
  endpoint.resize(where->bytes());
  tcp::acceptor& acceptor = inner->acceptor;
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (!error && where->family() == AF_INET6) acceptor.set_option(asio::ip::v6_only(false), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) return CannotListen(o, error);
  inner->port = acceptor.local_endpoint().port();
  asio::co_spawn(
      EventLoopPoolAccess::Context(pool, 0), [inner]() -> asio::awaitable<void> { co_await inner->Accept(); },
      asio::detached);
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(inner)));
}

HttpServer::~HttpServer() { Stop(); }
uint16_t HttpServer::port() const { return inner_->port; }
int32_t HttpServer::connections() const { return inner_->places.all(); }

void HttpServer::Drain() {
  if (inner_->draining.exchange(true)) return;
  inner_->gone_by = SteadyClock().Now() + Admission::kOnItsWay;
  inner_->CloseUnused();
}

bool HttpServer::WaitGone(Duration timeout) const {
  const Duration rest = inner_->gone_by.load() - SteadyClock().Now();
  return rest <= Duration::zero() || inner_->WaitEmpty(std::min(timeout, rest)) || rest <= timeout;
}

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
