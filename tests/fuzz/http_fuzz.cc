// libFuzzer target of the HTTP server: any bytes on a connection end in answers and a close, and the server lives on.
// Every input is sent to a real server over loopback; its bodies go through the JSON reader.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "router/http/http_server.h"
#include "router/http/json_request.h"

namespace {

using namespace baton::router;

HttpResponse Answer(const HttpRequest& request) {
  const auto parsed = ParseTextRequest(request.body, {4096, 64});
  const auto* error = std::get_if<ApiError>(&parsed);
  return HttpResponse{
      error ? error->http_status : 200, {{"X-Path", std::to_string(request.path.size())}}, "text/plain", request.query};
}

struct Server {
  Server() {
    HttpServer::Options options;
    options.host = "127.0.0.1";
    options.max_header_bytes = 2048;
    options.max_body_bytes = 4096;
    options.keep_alive_ms = options.read_timeout_ms = 2000;
    auto started = HttpServer::Start(options, pool, [](std::shared_ptr<HttpExchange> exchange, HttpRequest request) {
      if (request.Header("X-Stream").empty()) return exchange->Respond(Answer(request));
      exchange->StartStream(200, {}, "text/event-stream");
      exchange->Write(request.body);
      exchange->End();
    });
    if (!started.ok()) std::abort();
    http = *std::move(started);
  }
  EventLoopPool pool{1};
  std::unique_ptr<HttpServer> http;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Server server;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const linger reset{1, 0};  // thousands of connections a second would run out of ports in TIME_WAIT
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(server.http->port());
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd < 0 || connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) std::abort();
  send(fd, data, size, MSG_NOSIGNAL);
  shutdown(fd, SHUT_WR);
  char buffer[4096];
  while (recv(fd, buffer, sizeof buffer, 0) > 0) continue;
  close(fd);
  return 0;
}
