#include "bench/router/clients.h"

#include <arpa/inet.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <random>
#include <thread>

#include "bench/router/processes.h"
#include "common/check.h"
#include "common/str_cat.h"
#include "tests/router/http_client.h"

namespace baton::bench {
namespace {

using Clock = std::chrono::steady_clock;
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

// A thread per connection: each begins requests at its own random times. One that is late begins at once, and its wait
// counts from when it should have begun.
Seen OpenLoop(Connections& connections, const Load& load) {
  const std::string request = RequestOf(load);
  const int each = load.requests / load.parallel;
  std::vector<std::vector<double>> waits(connections.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < connections.size(); ++i) {
    threads.emplace_back([&, i] {
      std::mt19937_64 random(i);
      std::exponential_distribution<double> gap(load.per_second / load.parallel);
      auto due = Clock::now();
      for (int n = 0; n < each; ++n) {
        due += std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(gap(random)));
        std::this_thread::sleep_until(due);
        connections[i]->Send(request);
        BATON_CHECK(connections[i]->Receive().status == 200);
        waits[i].push_back(std::chrono::duration<double, std::milli>(Clock::now() - due).count());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<double> all;
  for (const auto& some : waits) all.insert(all.end(), some.begin(), some.end());
  std::sort(all.begin(), all.end());
  return {static_cast<int>(all.size()), all[all.size() / 2], all[all.size() * 99 / 100]};
}

}  // namespace

void RunClient() {
  Connections connections;
  Load load;
  int port = 0;
  while (read(kOrders, &load, sizeof load) == sizeof load) {
    if (std::exchange(port, load.port) != load.port) connections.clear();
    Open(connections, load);
    const Seen seen = load.kind == Load::kOpenLoop ? OpenLoop(connections, load)
                      : load.kind == Load::kHold   ? Hold(connections, load)
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
