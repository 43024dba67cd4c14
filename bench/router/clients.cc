#include "bench/router/clients.h"

#include <arpa/inet.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/router/processes.h"
#include "common/check.h"
#include "common/str_cat.h"
#include "tests/router/http_client.h"

namespace baton::bench {
namespace {

using ClientClock = std::chrono::steady_clock;
using Connections = std::vector<std::unique_ptr<router::HttpConnection>>;

std::string RequestOf(const Load& load) {
  std::string text;
  while (static_cast<int>(text.size()) < load.prompt_bytes) text += "the quick relay passes its baton on and ";
  text.resize(static_cast<size_t>(load.prompt_bytes));
  return router::RequestText("POST", "/v1/chat/completions",
                             StrCat(R"({"stream":true,"max_tokens":)", load.tokens,
                                    R"(,"messages":[{"role":"user","content":")", text, R"("}]})"));
}

void Open(Connections& connections, const Load& load) {
  while (static_cast<int>(connections.size()) < load.parallel) {
    connections.push_back(std::make_unique<router::HttpConnection>(load.port));
  }
}

Seen Batches(Connections& connections, const Load& load) {
  const std::string request = RequestOf(load);
  Seen seen;
  while (seen.answered < load.requests) {
    for (int i = 0; i < load.parallel; ++i) connections[i]->Send(request);
    for (int i = 0; i < load.parallel; ++i, ++seen.answered) BATON_CHECK(connections[i]->Receive().status == 200);
  }
  return seen;
}

Seen Hold(Connections& connections, const Load& load) {
  const std::string request = RequestOf(load);
  for (auto& connection : connections) {
    connection->Send(request);
    BATON_CHECK(connection->Receive().status == 200);
  }
  return {static_cast<int>(connections.size())};
}

// How late every token comes after the worker's step that made it. Steps are at multiples of `step_us` on the clock
// that both processes have, and a sequence gets a token in each: a stream's first step is the last one that none of its
// tokens came before.
Seen Delays(Connections& connections, const Load& load) {
  const std::string request = RequestOf(load);
  const auto step = std::chrono::microseconds(load.step_us);
  std::vector<std::vector<ClientClock::duration>> streams(connections.size());  // when the role, then each token came
  const int poll = epoll_create1(0);
  for (size_t i = 0; i < connections.size(); ++i) {
    epoll_event event{.events = EPOLLIN, .data = {.u64 = i}};
    BATON_CHECK(epoll_ctl(poll, EPOLL_CTL_ADD, connections[i]->fd(), &event) == 0);
    connections[i]->Send(request);
  }
  std::vector<char> bytes(1 << 16);
  for (size_t left = streams.size(); left > 0;) {
    epoll_event events[64];
    const int ready = epoll_wait(poll, events, 64, -1);
    for (int e = 0; e < ready; ++e) {
      auto& arrivals = streams[events[e].data.u64];
      const ssize_t n = read(connections[events[e].data.u64]->fd(), bytes.data(), bytes.size());
      BATON_CHECK(n > 0);
      const ClientClock::duration now = ClientClock::now().time_since_epoch();
      const std::string_view text(bytes.data(), static_cast<size_t>(n));
      constexpr std::string_view kToken = "\"content\":", kEnd = "[DONE]";
      for (size_t at = text.find(kToken); at != text.npos; at = text.find(kToken, at + 1)) {
        arrivals.push_back(now);
      }
      if (text.find(kEnd) != text.npos) --left;
    }
  }
  close(poll);
  std::vector<double> delays;
  for (const auto& arrivals : streams) {
    ClientClock::duration least =
        ClientClock::duration::max();  // of a token's arrival, less the steps since the first one's
    for (size_t i = 1; i < arrivals.size(); ++i) least = std::min<ClientClock::duration>(least, arrivals[i] - i * step);
    const ClientClock::duration first = least - least % step;
    for (size_t i = 1; i < arrivals.size(); ++i)
      delays.push_back(std::chrono::duration<double, std::milli>(arrivals[i] - i * step - first).count());
  }
  std::sort(delays.begin(), delays.end());
  return {static_cast<int>(delays.size()), delays[delays.size() / 2], delays[delays.size() * 99 / 100]};
}

}  // namespace

void RunClient() {
  Connections connections;
  Load load;
  int port = 0;
  while (read(kOrders, &load, sizeof load) == sizeof load) {
    if (std::exchange(port, load.port) != load.port) connections.clear();
    Open(connections, load);
    const Seen seen = load.kind == Load::kDelays ? Delays(connections, load)
                      : load.kind == Load::kHold ? Hold(connections, load)
                                                 : Batches(connections, load);
    if (write(kAnswers, &seen, sizeof seen) != sizeof seen) break;
  }
  _exit(0);
}

void RunReader(int connections) {
  int port = 0;
  if (read(kOrders, &port, sizeof port) != sizeof port) _exit(0);
  const int poll = epoll_create1(0);
  for (int i = 0; i < connections; ++i) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    BATON_CHECK(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
    BATON_CHECK(epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event) == 0);
  }
  static char sink[65536];
  epoll_event events[64];
  while (true) {
    const int ready = epoll_wait(poll, events, 64, -1);
    for (int i = 0; i < ready; ++i) {
      if (read(events[i].data.fd, sink, sizeof sink) <= 0) _exit(0);
    }
  }
}

}  // namespace baton::bench
