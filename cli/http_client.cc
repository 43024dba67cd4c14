#include "cli/http_client.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <charconv>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "cli/timed_socket.h"
#include "common/foreign_text.h"
#include "common/net/address.h"
#include "common/net/resolver.h"
#include "common/status.h"
#include "common/tls/context.h"
#include "load/answer_reader.h"

namespace baton::cli {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;

constexpr size_t kMostAnswer = 64 << 20, kMostStreamedEvent = 16 << 20;  // bytes

absl::Status TimeIsOver(const HttpUrl& url, std::string_view missing) {
  return absl::UnavailableError(
      absl::StrFormat("%s: %s within %g s", AuthorityOf(url), AbslView(missing), Seconds(url.patience)));
}

absl::Status Unreachable(const HttpUrl& url, const beast::error_code& error) {
  return absl::UnavailableError(
      StrCat(AuthorityOf(url), ": ", error.message(), " (`baton serve MODEL` starts a cluster)"));
}

absl::StatusOr<std::shared_ptr<const tls::Context>> ContextFor(const HttpUrl& url) {
  tls::TlsFiles files = url.files;
  if (files.ca.empty()) files.ca = tls::SystemAuthorities();
  BATON_ASSIGN_OR_RETURN(const auto identity, tls::Identity::Load(files, tls::WallSeconds()));
  const std::string& name = url.server_name.empty() ? url.host : url.server_name;
  const std::string sni = net::IsIpAddress(name) ? "" : name;
  return tls::Context::ForClient(identity, {{name}, sni, {"http/1.1"}});
}

// A connection as Beast reads and writes it, in plain text or in TLS.
class Wire {
 public:
  explicit Wire(Duration patience) : socket_(patience) {}
  TimedSocket& socket() { return socket_; }

  // OK once the server is believed. Unavailable says which fact differs.
  absl::Status StartTls(const HttpUrl& url) {
    BATON_ASSIGN_OR_RETURN(auto context, ContextFor(url));
    session_ = std::make_unique<tls::Session>(std::move(context));
    beast::error_code error;
    while (!session_->established() && !error) Turn(error);
    if (session_->established()) return absl::OkStatus();
    return fault_.ok() ? Failure(url, error, "no end of the TLS handshake") : Fault(url);
  }
  // OK while nothing is wrong with the TLS session.
  absl::Status Fault(const HttpUrl& url) const {
    if (fault_.ok()) return fault_;
    return absl::UnavailableError(StrCat(AuthorityOf(url), ": TLS: ", View(fault_.message())));
  }
  // What `error` is: that the time is over, and there is still `missing`; or that nobody is there.
  absl::Status Failure(const HttpUrl& url, const beast::error_code& error, std::string_view missing) const {
    return socket_.over() ? TimeIsOver(url, missing) : Unreachable(url, error);
  }

  template <class Buffers>
  size_t read_some(const Buffers& into, beast::error_code& error) {
    if (!session_) return socket_.Receive(*asio::buffer_sequence_begin(into), error);
    error = {};
    while (text_.empty() && !error) Turn(error);
    if (text_.empty()) return 0;
    error = {};
    const size_t n = asio::buffer_copy(into, asio::buffer(text_));
    text_.erase(0, n);
    return n;
  }
  template <class Buffers>
  size_t write_some(const Buffers& from, beast::error_code& error) {
    error = {};
    std::string bytes;
    for (auto it = asio::buffer_sequence_begin(from); it != asio::buffer_sequence_end(from); ++it) {
      const asio::const_buffer piece(*it);
      bytes.append(static_cast<const char*>(piece.data()), piece.size());
    }
    const size_t n = bytes.size();
    if (session_) {
      if (!session_->Write(bytes).ok()) error = asio::error::connection_aborted;
      bytes = session_->TakeWire();
    }
    if (!error) socket_.Send(bytes, error);
    return error ? 0 : n;
  }
  template <class Buffers>
  size_t read_some(const Buffers& into) {
    beast::error_code error;
    const size_t n = read_some(into, error);
    if (error) throw beast::system_error(error);
    return n;
  }
  template <class Buffers>
  size_t write_some(const Buffers& from) {
    beast::error_code error;
    const size_t n = write_some(from, error);
    if (error) throw beast::system_error(error);
    return n;
  }

 private:
  // Sends what the session has to say and takes what comes next.
  void Turn(beast::error_code& error) {
    socket_.Send(session_->TakeWire(), error);
    if (error) return;
    if (session_->peer_closed()) error = asio::error::eof;
    if (error) return;
    char in[16 << 10];
    const size_t n = socket_.Receive(asio::buffer(in), error);
    if (error) return;
    fault_ = session_->Feed({in, n});
    text_ += session_->TakePlain();
    if (fault_.ok()) return;
    beast::error_code ignored;  // it hears why
    socket_.Send(session_->TakeWire(), ignored);
    error = asio::error::connection_aborted;
  }

  TimedSocket socket_;
  std::unique_ptr<tls::Session> session_;  // null: plain text
  std::string text_;                       // came and is not read yet
  absl::Status fault_;                     // of the session
};

// Every address of the server.
absl::StatusOr<std::vector<net::SocketAddress>> AddressesOf(const HttpUrl& url, TimePoint until, Cancellation* stop) {
  uint16_t port = 0;
  std::from_chars(url.port.data(), url.port.data() + url.port.size(), port);
  if (auto known = net::KnownAddresses(url.host, port)) return *std::move(known);
  std::mutex mutex;
  std::condition_variable came;
  std::optional<absl::StatusOr<std::vector<net::SocketAddress>>> found;
  bool stopped = false;
  net::Resolver resolver;
  resolver.Resolve(url.host, port, [&](auto addresses) {
    std::lock_guard lock(mutex);
    found = std::move(addresses);
    came.notify_all();
  });
  if (stop != nullptr) {
    stop->Set([&] {
      std::lock_guard lock(mutex);
      stopped = true;
      came.notify_all();
    });
  }
  std::unique_lock lock(mutex);
  const auto is_over = [&] { return found || stopped; };
  if (until == TimePoint::max()) {
    came.wait(lock, is_over);
  } else {
    came.wait_until(lock, until, is_over);
  }
  lock.unlock();
  if (stop != nullptr) stop->Set({});
  lock.lock();
  if (stopped) return absl::CancelledError("stopped");
  if (!found) return TimeIsOver(url, "no address of this name");
  if (found->ok()) return *std::move(found);
  return absl::Status(found->status().code(), StrCat(AuthorityOf(url), ": ", found->status().message()));
}

absl::StatusOr<HttpResponse> ReadResponse(const HttpUrl& url, Wire& wire,
                                          const std::function<void(std::string_view)>* on_event) {
  beast::error_code error;
  beast::flat_buffer buffer;
  http::response_parser<http::buffer_body> parser;
  parser.body_limit(boost::none);
  http::read_header(wire, buffer, parser, error);
  if (error) return wire.Failure(url, error, "no answer");
  HttpResponse response{.status = static_cast<int>(parser.get().result_int())};
  const bool stream =
      on_event != nullptr && load::IsEventStream(std::string_view(parser.get()[http::field::content_type]));
  if (stream) wire.socket().Lift();
  load::EventLines events(kMostStreamedEvent);
  std::string chunk(16384, '\0');
  while (!parser.is_done()) {
    parser.get().body().data = chunk.data();
    parser.get().body().size = chunk.size();
    http::read_some(wire, buffer, parser, error);
    if (error == http::error::need_buffer) error = {};
    const std::string_view got(chunk.data(), chunk.size() - parser.get().body().size);
    if (stream && !events.Feed(got, *on_event)) {
      return absl::ResourceExhaustedError(
          StrCat(AuthorityOf(url), " sends an event of more than ", kMostStreamedEvent, " bytes"));
    }
    if (!stream) response.body.append(got);
    if (response.body.size() > kMostAnswer) {
      return absl::ResourceExhaustedError(
          StrCat(AuthorityOf(url), " has answered ", response.body.size(), " bytes, at most ", kMostAnswer));
    }
    if (error && wire.socket().over()) return TimeIsOver(url, "no end of the answer");
    if (error)
      return absl::UnavailableError(StrCat("the connection broke in the middle of the answer: ", error.message()));
  }
  return response;
}

absl::StatusOr<HttpResponse> Talk(const HttpUrl& url, Wire& wire, const http::request<http::string_body>& request,
                                  const std::function<void(std::string_view)>* on_event) {
  if (url.tls) BATON_RETURN_IF_ERROR(wire.StartTls(url));
  beast::error_code error;
  http::write(wire, request, error);
  if (error) return wire.Failure(url, error, "nobody who reads the request");
  absl::StatusOr<HttpResponse> response = ReadResponse(url, wire, on_event);
  if (!response.ok()) BATON_RETURN_IF_ERROR(wire.Fault(url));
  return response;
}

absl::StatusOr<HttpResponse> Exchange(const HttpUrl& url, http::request<http::string_body> request,
                                      const std::function<void(std::string_view)>* on_event, Cancellation* stop) {
  Wire wire(url.patience);
  BATON_ASSIGN_OR_RETURN(const auto addresses, AddressesOf(url, wire.socket().until(), stop));
  beast::error_code error;
  wire.socket().Connect(addresses, stop, error);
  if (stop != nullptr && stop->cancelled()) return absl::CancelledError("stopped");
  if (error) return wire.Failure(url, error, "no connection");
  const StopsSocket stops(stop, wire.socket().fd());
  request.set(http::field::host, net::JoinHostPort(url.host, std::stoi(url.port)));
  request.prepare_payload();
  absl::StatusOr<HttpResponse> response = Talk(url, wire, request, on_event);
  if (!response.ok() && stop != nullptr && stop->cancelled()) return absl::CancelledError("stopped");
  return response;
}

http::request<http::string_body> MakeRequest(http::verb verb, const HttpUrl& url, std::string_view path,
                                             const std::string& api_key) {
  http::request<http::string_body> request(verb, StrCat(url.path, path), 11);
  request.set(http::field::user_agent, "baton");
  request.set(http::field::connection, "close");
  if (!api_key.empty()) request.set(http::field::authorization, StrCat("Bearer ", api_key));
  return request;
}

}  // namespace

std::string AuthorityOf(const HttpUrl& url) {
  const bool v6 = url.host.find(':') != std::string::npos;
  return StrCat(url.tls ? "https://" : "http://", v6 ? "[" : "", url.host, v6 ? "]:" : ":", url.port);
}

absl::StatusOr<HttpUrl> ParseHttpUrl(std::string_view url) {
  const auto bad = [url](std::string_view why) {
    return absl::InvalidArgumentError(StrCat(Quoted(url), " is not an address such as http://127.0.0.1:8000: ", why));
  };
  const size_t scheme = url.find("://");
  const bool bare = scheme == std::string_view::npos;
  HttpUrl out;
  if (!bare) {
    const std::string name = absl::AsciiStrToLower(AbslView(url.substr(0, scheme)));
    out.tls = name == "https";
    if (name != "http" && !out.tls) return bad(StrCat(Quoted(name), " is neither http nor https"));
  }
  const std::string_view rest = bare ? url : url.substr(scheme + 3);
  const size_t end = std::min(rest.find('/'), rest.size());
  std::string authority(rest.substr(0, end));
  if (authority.find('@') != std::string::npos) return bad("a name and a password have no place there (--api-key)");
  const bool no_host = authority.starts_with(':') && !authority.starts_with("::");  // "::1" lacks its brackets
  if (authority.empty() || (!bare && no_host)) return bad("the host is missing");
  if (no_host) authority.insert(0, "127.0.0.1");
  const bool no_port = authority.ends_with(']') || authority.find(':') == std::string::npos;
  if (no_port) authority += bare ? ":8000" : out.tls ? ":443" : ":80";
  const absl::StatusOr<net::HostPort> where = net::ParseHostPort(authority);
  if (!where.ok()) return where.status();
  out.host = where->host;
  out.port = StrCat(where->port);
  out.path = std::string(rest.substr(end));
  while (out.path.ends_with('/')) out.path.pop_back();
  if (out.path.ends_with("/v1")) out.path.resize(out.path.size() - 3);
  return out;
}

absl::StatusOr<HttpResponse> HttpGet(const HttpUrl& url, std::string_view path, const std::string& api_key,
                                     Cancellation* stop) {
  return Exchange(url, MakeRequest(http::verb::get, url, path, api_key), nullptr, stop);
}

absl::StatusOr<HttpResponse> HttpEvents(const HttpUrl& url, std::string_view path, const std::string& api_key,
                                        const std::function<void(std::string_view)>& on_event, Cancellation* stop) {
  return Exchange(url, MakeRequest(http::verb::get, url, path, api_key), &on_event, stop);
}

absl::StatusOr<HttpResponse> HttpPost(const HttpUrl& url, std::string_view path, const std::string& api_key,
                                      const std::string& json, const std::function<void(std::string_view)>& on_event,
                                      Cancellation* stop) {
  http::request<http::string_body> request = MakeRequest(http::verb::post, url, path, api_key);
  request.set(http::field::content_type, "application/json");
  request.body() = json;
  return Exchange(url, std::move(request), on_event ? &on_event : nullptr, stop);
}

}  // namespace baton::cli
