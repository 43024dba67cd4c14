#include "cli/http_client.h"

#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <memory>

#include "common/net/address.h"
#include "common/status.h"
#include "common/tls/context.h"
#include "load/answer_reader.h"

namespace baton::cli {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;

constexpr size_t kMostAnswer = 64 << 20, kMostStreamedEvent = 16 << 20;  // bytes

std::string Authority(const HttpUrl& url) {
  return StrCat(url.tls ? "https://" : "http://",
                url.host.find(':') != std::string::npos ? "[" + url.host + "]" : url.host, ":", url.port);
}

absl::Status Unreachable(const HttpUrl& url, const beast::error_code& error) {
  return absl::UnavailableError(
      StrCat(Authority(url), ": ", error.message(), " (`baton serve MODEL` starts a cluster)"));
}

absl::StatusOr<std::shared_ptr<const tls::Context>> ContextFor(const HttpUrl& url) {
  tls::TlsFiles files = url.files;
  if (files.ca.empty()) files.ca = tls::SystemAuthorities();
  BATON_ASSIGN_OR_RETURN(const auto identity, tls::Identity::Load(files, tls::WallSeconds()));
  const std::string& name = url.server_name.empty() ? url.host : url.server_name;
  const std::string sni = net::IsIpAddress(name) ? "" : name;
  return tls::Context::ForClient(identity, {{name}, sni, {"http/1.1"}});
}

// A socket as Beast reads and writes it, in plain text or in TLS.
class Wire {
 public:
  explicit Wire(asio::io_context& context) : socket_(context) {}
  asio::ip::tcp::socket& socket() { return socket_; }

  // OK once the server is believed. Unavailable says which fact differs.
  absl::Status StartTls(const HttpUrl& url) {
    BATON_ASSIGN_OR_RETURN(auto context, ContextFor(url));
    session_ = std::make_unique<tls::Session>(std::move(context));
    beast::error_code error;
    while (!session_->established() && !error) Turn(error);
    if (session_->established()) return absl::OkStatus();
    return fault_.ok() ? Unreachable(url, error) : Fault(url);
  }
  // OK while nothing is wrong with the TLS session.
  absl::Status Fault(const HttpUrl& url) const {
    if (fault_.ok()) return fault_;
    return absl::UnavailableError(StrCat(Authority(url), ": TLS: ", View(fault_.message())));
  }

  template <class Buffers>
  size_t read_some(const Buffers& into, beast::error_code& error) {
    if (!session_) return socket_.read_some(into, error);
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
    if (!session_) return socket_.write_some(from, error);
    error = {};
    size_t n = 0;
    for (auto it = asio::buffer_sequence_begin(from); it != asio::buffer_sequence_end(from); ++it) {
      const asio::const_buffer piece(*it);
      if (!session_->Write({static_cast<const char*>(piece.data()), piece.size()}).ok())
        error = asio::error::connection_aborted;
      n += piece.size();
    }
    if (!error) asio::write(socket_, asio::buffer(session_->TakeWire()), error);
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
    if (const std::string out = session_->TakeWire(); !out.empty()) asio::write(socket_, asio::buffer(out), error);
    if (error) return;
    if (session_->peer_closed()) error = asio::error::eof;
    if (error) return;
    char in[16 << 10];
    const size_t n = socket_.read_some(asio::buffer(in), error);
    if (error) return;
    fault_ = session_->Feed({in, n});
    text_ += session_->TakePlain();
    if (fault_.ok()) return;
    beast::error_code ignored;  // it hears why
    asio::write(socket_, asio::buffer(session_->TakeWire()), ignored);
    error = asio::error::connection_aborted;
  }

  asio::ip::tcp::socket socket_;
  std::unique_ptr<tls::Session> session_;  // null: plain text
  std::string text_;                       // came and is not read yet
  absl::Status fault_;                     // of the session
};

// While it lives, `stop` ends what the socket waits for.
class StopsSocket {
 public:
  StopsSocket(Cancellation* stop, asio::ip::tcp::socket& socket) : stop_(stop) {
    if (stop_ != nullptr) stop_->Set([fd = socket.native_handle()] { shutdown(fd, SHUT_RDWR); });
  }
  ~StopsSocket() {
    if (stop_ != nullptr) stop_->Set({});
  }
  StopsSocket(const StopsSocket&) = delete;
  StopsSocket& operator=(const StopsSocket&) = delete;

 private:
  Cancellation* const stop_;
};

// Tries one address after another, and stays stoppable meanwhile.
beast::error_code Connect(asio::ip::tcp::socket& socket, const asio::ip::tcp::resolver::results_type& endpoints,
                          Cancellation* stop) {
  beast::error_code error = asio::error::host_not_found;
  for (const auto& entry : endpoints) {
    if (stop != nullptr && stop->cancelled()) return asio::error::operation_aborted;
    socket.close(error);
    socket.open(entry.endpoint().protocol(), error);
    if (error) continue;
    const StopsSocket stops(stop, socket);
    socket.connect(entry.endpoint(), error);
    if (!error) break;
  }
  return error;
}

absl::StatusOr<HttpResponse> ReadResponse(const HttpUrl& url, Wire& wire,
                                          const std::function<void(std::string_view)>* on_event) {
  beast::error_code error;
  beast::flat_buffer buffer;
  http::response_parser<http::buffer_body> parser;
  parser.body_limit(boost::none);
  http::read_header(wire, buffer, parser, error);
  if (error) return Unreachable(url, error);
  HttpResponse response{.status = static_cast<int>(parser.get().result_int())};
  const bool stream = on_event != nullptr && parser.get()[http::field::content_type].starts_with("text/event-stream");
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
          StrCat(Authority(url), " sends an event of more than ", kMostStreamedEvent, " bytes"));
    }
    if (!stream) response.body.append(got);
    if (response.body.size() > kMostAnswer) {
      return absl::ResourceExhaustedError(
          StrCat(Authority(url), " has answered ", response.body.size(), " bytes, at most ", kMostAnswer));
    }
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
  if (error) return Unreachable(url, error);
  absl::StatusOr<HttpResponse> response = ReadResponse(url, wire, on_event);
  if (!response.ok()) BATON_RETURN_IF_ERROR(wire.Fault(url));
  return response;
}

absl::StatusOr<HttpResponse> Exchange(const HttpUrl& url, http::request<http::string_body> request,
                                      const std::function<void(std::string_view)>* on_event, Cancellation* stop) {
  asio::io_context context;
  asio::ip::tcp::resolver resolver(context);
  Wire wire(context);
  asio::ip::tcp::socket& socket = wire.socket();
  beast::error_code error;
  const auto endpoints = resolver.resolve(url.host, url.port, error);
  if (!error) error = Connect(socket, endpoints, stop);
  if (stop != nullptr && stop->cancelled()) return absl::CancelledError("stopped");
  if (error) return Unreachable(url, error);
  const StopsSocket stops(stop, socket);
  socket.set_option(asio::ip::tcp::no_delay(true), error);
  const bool v6 = url.host.find(':') != std::string::npos;
  request.set(http::field::host, StrCat(v6 ? "[" : "", url.host, v6 ? "]:" : ":", url.port));
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

absl::StatusOr<HttpUrl> ParseHttpUrl(std::string_view url) {
  constexpr std::string_view kScheme = "http://", kTlsScheme = "https://";
  const size_t scheme = url.find("://");
  const bool bare = scheme == std::string_view::npos;
  const std::string_view rest = bare ? url : url.substr(scheme + 3);
  if ((!bare && !url.starts_with(kScheme) && !url.starts_with(kTlsScheme)) || rest.empty()) {
    return absl::InvalidArgumentError(StrCat("\"", url, "\" is not an address such as http://127.0.0.1:8000"));
  }
  const size_t slash = rest.find('/');
  const std::string_view authority = rest.substr(0, slash);
  const size_t colon = authority.ends_with(']') ? std::string_view::npos : authority.rfind(':');
  std::string_view host = authority.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  HttpUrl out;
  out.tls = url.starts_with(kTlsScheme);
  out.host = host.empty() ? "127.0.0.1" : std::string(host);
  out.port = colon != std::string_view::npos ? std::string(authority.substr(colon + 1))
             : bare                          ? "8000"
             : out.tls                       ? "443"
                                             : "80";
  const bool digits = !out.port.empty() && out.port.find_first_not_of("0123456789") == std::string::npos;
  if (authority.empty() || !digits) {
    return absl::InvalidArgumentError(StrCat("\"", url, "\" is not an address such as http://127.0.0.1:8000"));
  }
  if (slash != std::string_view::npos) out.path = std::string(rest.substr(slash));
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
  return Exchange(url, std::move(request), &on_event, stop);
}

}  // namespace baton::cli
