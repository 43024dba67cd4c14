// clang-format off: <utility> before Asio, whose awaitable.hpp uses std::exchange without it (Boost 1.81).
#include <utility>
// clang-format on

#include "router/http/request_reader.h"

#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/http/parser.hpp>
#include <optional>

#include "common/str_cat.h"

namespace baton::router {
namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;
using std::chrono::milliseconds;

namespace {

/// A body in one string whose memory is there at once when its length is known, and a little more, which lets it be
/// read as JSON in place. (Beast's own string_body fills with zeros what it is about to write.)
struct PaddedBody {
  using value_type = std::string;
  static uint64_t size(const value_type& body) { return body.size(); }

  class reader {
   public:
    template <bool isRequest, class Fields>
    reader(http::header<isRequest, Fields>&, value_type& body) : body_(body) {}
    void init(const boost::optional<uint64_t>& length, error_code& error) {
      error = {};
      if (length) body_.reserve(*length + kBehind);  // the parser has held it to its limit
    }
    template <class Buffers>
    size_t put(const Buffers& buffers, error_code& error) {
      error = {};
      const size_t before = body_.size();
      for (const asio::const_buffer part : beast::buffers_range_ref(buffers))
        body_.append(static_cast<const char*>(part.data()), part.size());
      return body_.size() - before;
    }
    void finish(error_code& error) { error = {}; }

   private:
    static constexpr size_t kBehind = 64;
    value_type& body_;
  };
};

constexpr size_t kLongBytes = 32 << 10;  // from here on the rest of a body is worth a wait of its own
constexpr size_t kWakeBytes = 256 << 10;
constexpr size_t kTurnBytes = 1 << 20;  // read of one connection before others have their turn
constexpr size_t kMostOfABodyByte = 4;  // of a body that comes in chunks, with what frames them

using Parser = http::request_parser<PaddedBody>;
using Request = http::request<PaddedBody>;

int StatusOfReadError(error_code error) {
  // The buffer holds what must be whole before it is read: the header, a chunk's own header, the trailers.
  if (error == http::error::header_limit || error == http::error::buffer_overflow) return 431;
  if (error == http::error::body_limit || error == asio::error::message_size) return 413;
  return error.category() == make_error_code(http::error::bad_method).category() ? 400 : 0;
}

// All but the body.
HttpRequest HeadOf(const Request& in) {
  HttpRequest out;
  out.method = std::string(in.method_string());
  std::string target(in.target());
  std::optional<std::string> host;
  if (const size_t scheme = target.find("://"); scheme != std::string::npos && target[0] != '/') {
    const size_t path = target.find_first_of("/?", scheme + 3);  // what a proxy is asked for
    host = target.substr(scheme + 3, path == std::string::npos ? path : path - scheme - 3);
    target = path == std::string::npos ? "/" : target[path] == '?' ? "/" + target.substr(path) : target.substr(path);
  }
  const size_t question = target.find('?');
  out.path = target.substr(0, question);
  if (question != std::string::npos) out.query = target.substr(question + 1);
  for (const auto& field : in) {
    const bool replaced = host && field.name() == http::field::host;  // RFC 9112: the target says it
    out.headers.emplace_back(std::string(field.name_string()), replaced ? *host : std::string(field.value()));
  }
  return out;
}

/// `head`: as it was before the body, where trailers may have changed `in` since.
HttpRequest ToRequest(Request&& in, std::optional<HttpRequest> head) {
  HttpRequest out = head ? *std::move(head) : HeadOf(in);
  out.body = std::move(in.body());
  return out;
}

// RFC 9112: a server must not guess at these, for a proxy before it may guess otherwise.
std::optional<HttpRefusal> WrongHead(const Request& in) {
  const auto [first, last] = in.equal_range(http::field::host);
  const auto hosts = std::distance(first, last);
  if (hosts > 1 || (hosts == 0 && in.version() >= 11))
    return HttpRefusal{400, StrCat("Not a valid HTTP request: ", hosts, " Host headers.")};
  if (in.count(http::field::content_length) > 1 ||
      in[http::field::content_length].find(',') != beast::string_view::npos)
    return HttpRefusal{400, "Not a valid HTTP request: several Content-Lengths."};
  const auto encodings = in.count(http::field::transfer_encoding);
  if (encodings == 0) return std::nullopt;
  if (in.version() < 11)
    return HttpRefusal{400, "Not a valid HTTP request: a Transfer-Encoding header, which HTTP/1.0 has not."};
  if (encodings > 1 || !beast::iequals(in[http::field::transfer_encoding], "chunked"))
    return HttpRefusal{501, "A Transfer-Encoding other than chunked is not supported."};
  return std::nullopt;
}

// An idle connection has none of what it read before, and the keep-alive time; one that has never asked anything has
// that of a request.
asio::awaitable<error_code> FirstBytes(ClientConnection& c, const HttpServer::Options& options) {
  error_code error;
  if (c.buffer.capacity() > 2 * kIdleBytes) c.buffer.shrink_to_fit();
  const asio::mutable_buffer into = c.buffer.prepare(kIdleBytes);
  size_t n = c.stream.holds_text() ? c.stream.ReadNow(into, error) : 0;
  const int32_t idle_ms = c.asked ? options.keep_alive_ms : std::min(options.keep_alive_ms, options.read_timeout_ms);
  if (n == 0 && !error) c.stream.tcp().expires_after(milliseconds(idle_ms));
  c.between_requests = c.asked && n == 0;
  while (n == 0 && !error) {  // of TLS, some bytes bring no text
    n = co_await c.stream.tcp().async_read_some(into, asio::redirect_error(asio::use_awaitable, error));
    c.between_requests = false;
    n = c.stream.Arrived(n, into, error);
  }
  c.buffer.commit(n);
  if (n > 0 && c.asked) c.place.Begins();
  c.stream.tcp().expires_never();
  co_return error;
}

std::string_view NotYetRead(const beast::flat_buffer& buffer) {
  return {static_cast<const char*>(buffer.data().data()), buffer.size()};
}

// Empty lines before a request, as some clients send behind a body (RFC 9112, 2.2), are of none.
void DropEmptyLines(beast::flat_buffer& buffer) {
  while (NotYetRead(buffer).starts_with("\r\n")) buffer.consume(2);
}

bool IsHalfAnEmptyLine(const beast::flat_buffer& buffer) { return NotYetRead(buffer) == "\r"; }

// Whether a header goes on in the next line, which readers of HTTP join each in its own way (RFC 9112: 400).
bool HasFolded(std::string_view head) {
  head = head.substr(0, head.find("\r\n\r\n"));
  return head.find("\r\n ") != head.npos || head.find("\r\n\t") != head.npos;
}

// Whether the rest of a request whose header is here is to be read.
bool TakesRest(const Parser& parser, const HttpServer::Options& options) {
  if (WrongHead(parser.get())) return false;
  return !options.takes_body || options.takes_body(HeadOf(parser.get()));
}

// The socket wakes its reader when so many bytes are here, or when it has no room for more.
void WakeAt(ClientStream& stream, size_t bytes) {
  const int low = static_cast<int>(bytes);
  setsockopt(stream.socket().native_handle(), SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low);
}

// The bytes of a long body that is waited for, once the deadline is armed.
class ArrivingBody {
 public:
  explicit ArrivingBody(ClientConnection& c) : c_(c) {}
  void Has(size_t bytes) {
    if (bytes < kLongBytes) return;
    if (!body_) body_.emplace(c_.bodies, c_.place.from().to_string(), c_.deadline.GiveUp());
    body_->Has(bytes);
  }

 private:
  ClientConnection& c_;
  std::optional<ArrivingBodies::Body> body_;
};

// The rest of a long body in plain text, whose length is known, goes from the socket to where it stays, without the
// buffer between. The loop wakes for many bytes at once, and no memory is taken for those that are not here yet.
asio::awaitable<void> ReadLongBody(ClientConnection& c, std::string& body, size_t rest,
                                   const HttpServer::Options& options, bool& armed, ArrivingBody& arriving,
                                   error_code& error) {
  bool sleeps = false;
  while (rest > 0) {
    const size_t wanted = std::min(rest, kWakeBytes);
    size_t here = c.stream.socket().available(error);
    if (here < wanted && !error) {
      WakeAt(c.stream, wanted);
      sleeps = true;
      if (!std::exchange(armed, true)) c.deadline.Arm(milliseconds(options.read_timeout_ms));
      arriving.Has(body.size() + here);
      if (c.deadline.over()) error = asio::error::timed_out;  // given up in another wait's end
      if (error) break;
      co_await c.stream.socket().async_wait(asio::socket_base::wait_read,
                                            asio::redirect_error(asio::use_awaitable, error));
      if (!error) here = c.stream.socket().available(error);
    }
    if (error) break;
    const size_t before = body.size();
    body.resize(before + std::clamp<size_t>(here, 1, rest));  // none are here: it is the end
    const size_t n = c.stream.socket().read_some(asio::buffer(body) + before, error);
    body.resize(before + n);
    rest -= n;
    if (error == asio::error::would_block) error = {};
    if (error) break;
  }
  if (sleeps) WakeAt(c.stream, 1);
}

// Reads until the request is whole, or its body is not wanted. One that is here already costs no turn of the loop and
// no timer. `head`: of a request in chunks, whose trailers say nothing of it. `whole`: nothing of it is left to be
// read.
asio::awaitable<error_code> ParseRequest(ClientConnection& c, Parser& parser, const HttpServer::Options& options,
                                         std::optional<HttpRequest>& head, bool& whole) {
  error_code error;
  ArrivingBody arriving(c);
  bool armed = false, continued = false, asked = false;
  size_t turn = 0, all = 0;  // bytes
  while (true) {
    if (turn >= kTurnBytes) {
      turn = 0;
      if (!std::exchange(armed, true)) c.deadline.Arm(milliseconds(options.read_timeout_ms));
      co_await asio::post(c.stream.tcp().get_executor(), asio::use_awaitable);
      if (c.deadline.over()) error = asio::error::timed_out;
    }
    if (all > options.max_header_bytes + kMostOfABodyByte * options.max_body_bytes) error = asio::error::message_size;
    if (error) break;
    const bool heads = !parser.is_header_done();
    if (heads) DropEmptyLines(c.buffer);  // the parser has taken nothing yet
    if (heads && HasFolded(NotYetRead(c.buffer))) error = http::error::bad_obs_fold;
    if (!error && c.buffer.size() > 0 && !(heads && IsHalfAnEmptyLine(c.buffer)))
      c.buffer.consume(parser.put(c.buffer.data(), error));
    if (error == http::error::need_more) error = {};
    if (!error && parser.is_header_done() && !parser.eager()) {  // until now it stops behind the header
      parser.eager(true);
      if (parser.chunked()) head = HeadOf(parser.get());
      if (!parser.is_done() && c.buffer.size() > 0) continue;
    }
    whole = parser.is_done();
    if (error || whole) break;
    if (parser.is_header_done() && !std::exchange(asked, true) && !TakesRest(parser, options)) break;
    const bool old = parser.is_header_done() && parser.get().version() < 11;  // would take 100 for the answer
    if (parser.is_header_done() && !old && !std::exchange(continued, true) &&
        beast::iequals(parser.get()[http::field::expect], "100-continue")) {
      static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
      co_await WriteAll(c.stream, kContinue, error);
      if (error) break;
    }
    const uint64_t rest = parser.is_header_done() ? parser.content_length_remaining().value_or(0) : 0;
    if (rest >= kLongBytes && c.stream.session() == nullptr) {
      co_await ReadLongBody(c, parser.get().body(), rest, options, armed, arriving, error);
      whole = !error;
      break;
    }
    const size_t room = std::min(c.buffer.max_size() - c.buffer.size(), kReadBytes);
    if (room == 0) {
      error = http::error::buffer_overflow;
      break;
    }
    const auto into = c.buffer.prepare(room);
    size_t n = c.stream.ReadNow(into, error);
    if (error == asio::error::would_block) {
      if (!std::exchange(armed, true)) c.deadline.Arm(milliseconds(options.read_timeout_ms));
      if (parser.is_header_done()) arriving.Has(parser.get().body().size());
      error = {};
      if (c.deadline.over()) error = asio::error::timed_out;  // likewise
      if (error) break;
      n = co_await c.stream.tcp().async_read_some(into, asio::redirect_error(asio::use_awaitable, error));
      n = c.stream.Arrived(n, into, error);
    }
    if (error) break;
    c.buffer.commit(n);
    turn += n;
    all += n;
  }
  if (armed) c.deadline.Disarm();
  co_return error;
}

// What the client is told of a request that could not be read; nothing: it is gone.
std::optional<HttpRefusal> RefusalOf(const ClientConnection& c, error_code error, const HttpServer::Options& options) {
  if (c.deadline.given_up()) {
    return HttpRefusal{503,
                       "More of long bodies is arriving here at once than is kept, and this one has been for the "
                       "longest. Send it again."};
  }
  if (c.deadline.over()) {
    return HttpRefusal{408, StrCat("The request did not arrive whole within ", options.read_timeout_ms / 1000.0,
                                   " seconds of its first byte (--read-timeout-ms).")};
  }
  const int status = StatusOfReadError(error);
  switch (status) {
    case 0: return std::nullopt;
    case 413:
      return HttpRefusal{status, StrCat(error == asio::error::message_size
                                            ? StrCat("The body with what frames its chunks is longer than ",
                                                     kMostOfABodyByte, " times ")
                                            : "The body is longer than ",
                                        options.max_body_bytes, " bytes (--max-body-bytes).")};
    case 431:
      return HttpRefusal{status, StrCat("The headers, or those of a chunk, are longer than ", options.max_header_bytes,
                                        " bytes (--max-header-bytes).")};
    default: return HttpRefusal{status, StrCat("Not a valid HTTP request: ", error.message(), ".")};
  }
}

}  // namespace

asio::awaitable<IncomingHttp> ReadRequest(ClientConnection& c, const HttpServer::Options& options) {
  DropEmptyLines(c.buffer);
  if (c.buffer.size() == 0 && co_await FirstBytes(c, options)) co_return IncomingHttp();
  Parser parser;
  parser.header_limit(static_cast<uint32_t>(options.max_header_bytes));
  parser.body_limit(options.max_body_bytes);
  std::optional<HttpRefusal> refusal;
  std::optional<HttpRequest> head;
  bool whole = false;
  if (const error_code error = co_await ParseRequest(c, parser, options, head, whole)) {
    refusal = RefusalOf(c, error, options);
    if (!refusal) co_return IncomingHttp();
  } else {
    refusal = WrongHead(parser.get());
  }
  if (refusal) co_return *std::move(refusal);
  const bool unread = !whole;
  Request request = parser.release();
  ReadHttpRequest out{
      {}, request.keep_alive() && !unread, request.version() >= 11, request.method() == http::verb::head, unread};
  if (unread) request.body().clear();
  out.request = ToRequest(std::move(request), std::move(head));
  co_return out;
}

}  // namespace baton::router
