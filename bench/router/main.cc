// What the router itself costs, on one core: CPU per streamed request and per relayed token by how many sequences share
// a step, beside a program that only sends as many bytes; the time it adds at half load; memory per connection; its
// prefix index; the choice of a pair. Workers (scripted) and clients run in processes of their own on the other core.
//   bench_router [--model PATH] [--only paced|unpaced|requests|large|latency|connections|index|choice] [--json FILE]
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <thread>

#include "bench/lib/flags.h"
#include "bench/lib/measure.h"
#include "bench/router/choice.h"
#include "bench/router/index.h"
#include "bench/router/processes.h"
#include "common/check.h"
#include "common/open_files.h"
#include "common/str_cat.h"
#include "router/server.h"

namespace baton::bench {
namespace {

using namespace baton::router;

/// CPU time of this process, all threads.
struct Cpu {
  double user_s = 0, system_s = 0;
  static Cpu Now() {
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    auto seconds = [](const timeval& t) {
      return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
    };
    return {seconds(used.ru_utime), seconds(used.ru_stime)};
  }
  Cpu operator-(const Cpu& o) const { return {user_s - o.user_s, system_s - o.system_s}; }
  Cpu operator/(double n) const { return {user_s / n, system_s / n}; }
  double us() const { return 1e6 * (user_s + system_s); }
  nlohmann::json Json() const { return {{"cpu_us", us()}, {"user_us", 1e6 * user_s}, {"system_us", 1e6 * system_s}}; }
};

/// What a router makes of its tokenizer behind its start, for grammars, is no request's.
void WaitUntilIdle() {
  constexpr auto kWhile = std::chrono::milliseconds(100);
  constexpr double kIdleUs = 2000;
  Cpu before;
  do {
    before = Cpu::Now();
    std::this_thread::sleep_for(kWhile);
  } while ((Cpu::Now() - before).us() > kIdleUs);
}

/// A router before one scripted worker, and the clients of it.
class Setup {
 public:
  static inline std::string model = "tests/data/tiny-llama";  ///< whose tokenizer and chat template are used

  explicit Setup(int step_us) : worker_("worker", std::to_string(step_us)), client_("client", "") {
    RouterConfig config;
    config.model = Setup::model;
    config.port = config.grpc_port = 0;
    config.admin_port = -1;
    config.http_threads = 1;
    config.tokenizer_threads = 1;
    config.log_requests = false;
    config.max_connections = 20000;
    config.worker = {StrCat("127.0.0.1:", worker_.Hear<int>())};
    auto server = RouterServer::Start(config, "bench");
    BATON_CHECK(server.ok(), server.status().message());
    server_ = *std::move(server);
    BATON_CHECK(server_->WaitReady(std::chrono::seconds(10)));
    WaitUntilIdle();
  }
  ~Setup() { server_->Stop(); }

  Seen Run(Load load) {
    load.port = server_->http_port();
    client_.Tell(load);
    return client_.Hear<Seen>();
  }
  /// The router's CPU time per request.
  Cpu PerRequest(const Load& load) {
    const Cpu before = Cpu::Now();
    const Seen seen = Run(load);
    return (Cpu::Now() - before) / seen.answered;
  }

 private:
  const Child worker_, client_;
  std::unique_ptr<RouterServer> server_;
};

/// CPU per token of a program that does nothing but send one event's bytes to every connection, once a step.
Cpu BareSend(int connections, int steps, Duration step) {
  constexpr int kEventBytes = 250;
  const int door = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  BATON_CHECK(bind(door, reinterpret_cast<sockaddr*>(&address), length) == 0 && listen(door, connections) == 0);
  getsockname(door, reinterpret_cast<sockaddr*>(&address), &length);
  const Child reader("reader", std::to_string(connections));
  reader.Tell(int{ntohs(address.sin_port)});
  std::vector<int> sockets;
  for (int i = 0; i < connections; ++i) {
    sockets.push_back(accept4(door, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    const int on = 1;
    setsockopt(sockets.back(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  const std::string event(kEventBytes, 'x');
  const Cpu before = Cpu::Now();
  for (int i = 0; i < steps; ++i) {
    for (const int fd : sockets) BATON_CHECK(send(fd, event.data(), event.size(), MSG_NOSIGNAL) == kEventBytes);
    std::this_thread::sleep_for(step);
  }
  const Cpu used = (Cpu::Now() - before) / (double{1} * steps * connections);
  for (const int fd : sockets) close(fd);
  close(door);
  return used;
}

nlohmann::json Figures(const std::string& what, const Cpu& cpu) {
  std::printf("%-58s %8.2f µs CPU (user %.2f, system %.2f)\n", what.c_str(), cpu.us(), 1e6 * cpu.user_s,
              1e6 * cpu.system_s);
  std::fflush(stdout);
  return cpu.Json();
}

/// Tokens and 1 KB requests, by sequences per step.
nlohmann::json Tokens(int step_us, const std::vector<int>& widths) {
  constexpr int kTokens = 257;
  nlohmann::json out;
  Setup setup(step_us);
  setup.Run({.requests = 512, .tokens = 16});
  for (const int width : widths) {
    const Cpu one = setup.PerRequest({.requests = std::max(width * 4, 256), .tokens = 1, .parallel = width});
    const Cpu many = setup.PerRequest({.requests = width * 3, .tokens = kTokens, .parallel = width});
    const std::string step = step_us > 1 ? StrCat(step_us / 1000, " ms steps") : "steps without a pause";
    nlohmann::json& row = out[StrCat(width, " sequences, ", step)];
    row["request"] = Figures(StrCat("1 KB request, 1 token; ", width, " sequences, ", step), one);
    row["token"] = Figures(StrCat("a token; ", width, " sequences, ", step), (many - one) / (kTokens - 1));
    if (step_us > 1) {
      row["bare_send"] = Figures(StrCat("  only sent; ", width, " connections, ", step),
                                 BareSend(width, 400, std::chrono::microseconds(step_us)));
    }
  }
  return out;
}

/// Many short answers: what a request costs beside its tokens.
nlohmann::json Requests() {
  Setup setup(0);
  setup.Run({.requests = 512});
  return Figures("1 KB request, 1 token; 32 connections, 8,000 requests",
                 setup.PerRequest({.requests = 8000, .parallel = 32}));
}

nlohmann::json LargePrompt() {
  Setup setup(0);
  setup.Run({.requests = 256});
  Load load{.requests = 1, .prompt_bytes = 220 << 10, .parallel = 1};
  nlohmann::json out;
  out["first"] = Figures("220 KB prompt, never seen (tokenized)", setup.PerRequest(load));
  load.requests = 1000;
  out["again"] = Figures("220 KB prompt, seen before", setup.PerRequest(load));
  return out;
}

/// As many streams as keep the router about half busy.
nlohmann::json Latency() {
  constexpr int kStepUs = 1000, kStreams = 64;
  Setup setup(kStepUs);
  setup.Run({.requests = 512, .tokens = 16});
  const Cpu before = Cpu::Now();
  Seen seen;
  const double wall_s = SecondsOf(
      [&] { seen = setup.Run({.kind = Load::kDelays, .tokens = 4000, .parallel = kStreams, .step_us = kStepUs}); });
  const double busy = 1e-6 * (Cpu::Now() - before).us() / wall_s;
  std::printf(
      "%d streams in 1 ms steps, router %.0f %% busy: a token comes %.2f ms (p50), %.2f ms (p99) after its step\n",
      kStreams, 100 * busy, seen.p50_ms, seen.p99_ms);
  return {{"streams", kStreams}, {"busy", busy}, {"p50_ms", seen.p50_ms}, {"p99_ms", seen.p99_ms}};
}

int64_t ResidentBytes() {
  int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

nlohmann::json ManyConnections() {
  constexpr int kWanted = 20000, kOthers = 256;
  const int connections = std::min(kWanted, static_cast<int>(AllowOpenFiles(kWanted + kOthers)) - kOthers);
  Setup setup(0);
  setup.Run({.requests = 512});
  const int64_t before = ResidentBytes();
  const Seen seen = setup.Run({.kind = Load::kHold, .parallel = connections});
  const double bytes = static_cast<double>(ResidentBytes() - before) / connections;
  std::printf("%d connections, each answered once and open: %.0f bytes of the router's memory each\n", seen.answered,
              bytes);
  return {{"connections", seen.answered}, {"bytes_per_connection", bytes}};
}

int Main(int argc, char** argv) {
  const Flags flags(argc, argv, {"model", "only", "json"});
  const std::string only =
      flags.OneOf("only", {"paced", "unpaced", "requests", "large", "latency", "connections", "index", "choice"});
  const auto wanted = [&only](const char* part) { return only.empty() || only == part; };
  Setup::model = flags("model", Setup::model);
  PinTo(0);
  nlohmann::json out;
  if (wanted("paced")) out["paced"] = Tokens(5000, {1, 8, 32, 256});
  if (wanted("unpaced")) out["unpaced"] = Tokens(1, {32, 256});
  if (wanted("requests")) out["requests"] = Requests();
  if (wanted("large")) out["large_prompt"] = LargePrompt();
  if (wanted("latency")) out["half_load"] = Latency();
  if (wanted("connections")) out["connections"] = ManyConnections();
  if (wanted("index")) out["index"] = BenchIndex();
  if (wanted("choice")) out["choice"] = BenchChoice();
  WriteJson(flags("json"), out);
  return 0;
}

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) {
  baton::bench::RunRole(argc, argv);
  return baton::bench::Main(argc, argv);
}
