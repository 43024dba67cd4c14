// What the router asks of other servers over HTTP, with TLS or without, a connection each: an answer as a whole, or
// line by line as it comes. Each call blocks its thread, at most for the patience it is given; Asio, Beast and OpenSSL
// stay inside.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/clock.h"

namespace boost::asio {
class io_context;
}

namespace baton::router {

/// Where an http:// or https:// URL points. A port that is not named is 80 or 443; the path begins with '/' or is
/// empty.
struct HttpPlace {
  bool tls = true;
  std::string host, port;   ///< dialled; with TLS the certificate is for `host`
  std::string host_header;  ///< "host:port"
  std::string path;
};
/// InvalidArgument: what is wrong with it, without the URL.
absl::StatusOr<HttpPlace> ParseHttpPlace(std::string_view url);

struct HttpCall {
  HttpPlace place;
  std::string who;      ///< in messages: "API server"
  std::string target;   ///< path and query
  std::string token;    ///< of the Authorization header; empty: none
  std::string ca_file;  ///< empty: the system's
  std::string body{};   ///< JSON, posted; empty: a GET
};

struct CallPatience {
  Duration answer;   ///< to connect, and for the answer's head
  Duration silence;  ///< between two pieces of its body; zero: all of it has the time of its head
};

/// Ends the call that runs, and every later one at once. Stop() may come from any thread.
class CallStop {
 public:
  void Stop();
  /// False: stopped before.
  bool Enter(boost::asio::io_context& context);
  /// True: stopped meanwhile.
  bool Leave();

 private:
  std::mutex mutex_;
  bool stopped_ = false;
  boost::asio::io_context* running_ = nullptr;
};

/// OutOfRange: the server answers 410. FailedPrecondition: another code than 2xx which the same request would get again
/// (not 429, 502, 503, 504). Unavailable: anything else that went wrong, for people. Cancelled: stopped.
absl::StatusOr<std::string> FetchWhole(const HttpCall& request, Duration patience, CallStop& stop);

/// OK: the server has ended the answer. Otherwise as FetchWhole, or what `on_line` returned, which ends it.
/// `on_open`: the answer has begun, with 200.
absl::Status FetchLines(const HttpCall& request, const CallPatience& patience, CallStop& stop,
                        const std::function<void()>& on_open,
                        const std::function<absl::Status(std::string_view line)>& on_line);

}  // namespace baton::router
