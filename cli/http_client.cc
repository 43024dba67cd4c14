#include "cli/http_client.h"

#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include "common/str_cat.h"

namespace baton::cli {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;

// Splits a growing text into events at blank lines and hands out their data.
class EventSplitter {
 public:
  explicit EventSplitter(const std::function<void(std::string_view)>& on_event) : on_event_(on_event) {}

  void Feed(std::string_view bytes) {
    pending_.append(bytes);
    for (size_t end; (end = pending_.find("\n\n")) != std::string::npos; pending_.erase(0, end + 2)) {
      const std::string_view event(pending_.data(), end);
      if (event.starts_with(kPrefix)) on_event_(event.substr(kPrefix.size()));
    }
  }

 private:
  static constexpr std::string_view kPrefix = "data: ";
  const std::function<void(std::string_view)>& on_event_;
  std::string pending_;
};

absl::Status Unreachable(const HttpUrl& url, const beast::error_code& error) {
  return absl::UnavailableError(StrCat("http://", url.host, ":", url.port, ": ", error.message(),
                                       " (`baton serve MODEL` starts a cluster, --url names another)"));
}

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

absl::StatusOr<HttpResponse> ReadResponse(const HttpUrl& url, asio::ip::tcp::socket& socket,
                                          const std::function<void(std::string_view)>* on_event) {
  beast::error_code error;
  beast::flat_buffer buffer;
  http::response_parser<http::buffer_body> parser;
  parser.body_limit(boost::none);
  http::read_header(socket, buffer, parser, error);
  if (error) return Unreachable(url, error);
  HttpResponse response{.status = static_cast<int>(parser.get().result_int())};
  const bool stream = on_event != nullptr && parser.get()[http::field::content_type].starts_with("text/event-stream");
  static const std::function<void(std::string_view)> kIgnore = [](std::string_view) {};
  EventSplitter events(on_event != nullptr ? *on_event : kIgnore);
  std::string chunk(16384, '\0');
  while (!parser.is_done()) {
    parser.get().body().data = chunk.data();
    parser.get().body().size = chunk.size();
    http::read_some(socket, buffer, parser, error);
    if (error == http::error::need_buffer) error = {};
    const std::string_view got(chunk.data(), chunk.size() - parser.get().body().size);
    if (stream) {
      events.Feed(got);
    } else {
      response.body.append(got);
    }
    if (error)
      return absl::UnavailableError(StrCat("the connection broke in the middle of the answer: ", error.message()));
  }
  return response;
}

absl::StatusOr<HttpResponse> Exchange(const HttpUrl& url, http::request<http::string_body> request,
                                      const std::function<void(std::string_view)>* on_event, Cancellation* stop) {
  asio::io_context context;
  asio::ip::tcp::resolver resolver(context);
  asio::ip::tcp::socket socket(context);
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
  http::write(socket, request, error);
  absl::StatusOr<HttpResponse> response =
      error ? absl::StatusOr<HttpResponse>(Unreachable(url, error)) : ReadResponse(url, socket, on_event);
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
  constexpr std::string_view kScheme = "http://";
  const size_t scheme = url.find("://");
  const bool bare = scheme == std::string_view::npos;
  const std::string_view rest = bare ? url : url.substr(scheme + 3);
  if ((!bare && !url.starts_with(kScheme)) || rest.empty()) {
    return absl::InvalidArgumentError(StrCat("\"", url, "\" is not an address such as http://127.0.0.1:8000"));
  }
  const size_t slash = rest.find('/');
  const std::string_view authority = rest.substr(0, slash);
  const size_t colon = authority.ends_with(']') ? std::string_view::npos : authority.rfind(':');
  std::string_view host = authority.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  HttpUrl out;
  out.host = host.empty() ? "127.0.0.1" : std::string(host);
  out.port = colon != std::string_view::npos ? std::string(authority.substr(colon + 1)) : bare ? "8000" : "80";
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

absl::StatusOr<HttpResponse> HttpPost(const HttpUrl& url, std::string_view path, const std::string& api_key,
                                      const std::string& json, const std::function<void(std::string_view)>& on_event,
                                      Cancellation* stop) {
  http::request<http::string_body> request = MakeRequest(http::verb::post, url, path, api_key);
  request.set(http::field::content_type, "application/json");
  request.body() = json;
  return Exchange(url, std::move(request), &on_event, stop);
}

}  // namespace baton::cli
