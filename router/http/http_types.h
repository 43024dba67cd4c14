// HTTP as handlers see it. No Beast here: http_server.cc keeps that to itself.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "router/event_loop.h"

namespace baton::router {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;  ///< "GET"
  std::string path;    ///< without the query
  std::string query;   ///< after '?', or empty
  HttpHeaders headers;
  std::string body;
  TimePoint connected = TimePoint::max();  ///< since when there is the connection that brings it

  /// The value of a header, case-insensitive; empty if absent.
  std::string_view Header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  HttpHeaders headers;
  std::string content_type = "application/json";
  std::string body;
};

/// The answer to one request. Every method belongs to the thread of loop(). Either Respond, or StartStream, Write
/// …, End. After the client is gone all of them do nothing.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  virtual EventLoop& loop() = 0;
  virtual void Respond(HttpResponse response) = 0;
  /// Sends nothing by itself: the head goes out with the first Write.
  virtual void StartStream(int status, HttpHeaders headers, std::string content_type) = 0;
  virtual void Write(std::string_view bytes) = 0;
  virtual void End() = 0;
  /// Bytes given to Write that the client has not taken.
  virtual size_t UnsentBytes() const = 0;
  /// Those that it has, with what frames them.
  virtual uint64_t TakenBytes() const = 0;
  /// `gone`: the client closed or broke the connection before the end. `drained`: everything written was taken, after
  /// more than `over_bytes` had waited. A client that has left already is `gone` at once, inside this call.
  virtual void Watch(std::function<void()> gone, size_t over_bytes, std::function<void()> drained) = 0;
};

using HttpHandler = std::function<void(std::shared_ptr<HttpExchange>, HttpRequest)>;

const char* HttpReason(int status);

}  // namespace baton::router
