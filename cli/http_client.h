// A small synchronous HTTP/1.1 client for the commands that ask a router: `baton chat`, `doctor`, `drain`, `flip`,
// `top`. One request per connection.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "cli/cancellation.h"
#include "common/clock.h"
#include "common/tls/tls_files.h"

namespace baton::cli {

/// For an answer, where nobody says another.
inline constexpr Duration kRequestPatience = std::chrono::seconds(10);

struct HttpUrl {
  std::string host;
  std::string port;
  std::string path;  ///< begins with "/" or is empty
  bool tls = false;
  tls::TlsFiles files = {};      ///< with TLS: whom the server's certificate is from (empty: the system's), and our own
  std::string server_name = {};  ///< whom its certificate must name; empty: host
  Duration patience = kRequestPatience;  ///< for an answer, of an event stream for its head, from the name's
                                         ///< resolution on; zero: as long as it takes
};

/// A server's address as people write it → its parts: "http://127.0.0.1:8000", "https://gpu7", "127.0.0.1:8000",
/// ":8000", each with or without "/v1", which is left out: paths are given with it. Without scheme and port: 8000.
/// InvalidArgument says what is wrong: another scheme, no port from 1 to 65535, no host.
absl::StatusOr<HttpUrl> ParseHttpUrl(std::string_view url);

/// "http://127.0.0.1:8000", "https://[::1]:8443": for people.
std::string AuthorityOf(const HttpUrl& url);

struct HttpResponse {
  int status = 0;
  std::string body;  ///< empty when the body was streamed
};

/// GET. Unavailable when the peer cannot be reached or does not answer in time, Cancelled after `stop`.
absl::StatusOr<HttpResponse> HttpGet(const HttpUrl& url, std::string_view path, const std::string& api_key,
                                     Cancellation* stop = nullptr);

/// GET of an event stream: `on_event` gets each event's data as it arrives, until the stream ends. An answer that is no
/// event stream is in the response.
absl::StatusOr<HttpResponse> HttpEvents(const HttpUrl& url, std::string_view path, const std::string& api_key,
                                        const std::function<void(std::string_view)>& on_event,
                                        Cancellation* stop = nullptr);

/// POST of JSON. When the answer is an event stream, `on_event` gets each event's data as it arrives; otherwise the
/// body is in the response.
absl::StatusOr<HttpResponse> HttpPost(const HttpUrl& url, std::string_view path, const std::string& api_key,
                                      const std::string& json, const std::function<void(std::string_view)>& on_event,
                                      Cancellation* stop = nullptr);

}  // namespace baton::cli
