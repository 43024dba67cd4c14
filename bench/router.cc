// What the router itself costs, on one io thread: CPU per streamed request and per relayed token, and its prefix index.
// Workers (scripted) and clients run in processes of their own, so that the CPU time of this one is the router's.
//   bench_router [--requests N] [--json FILE]
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>

#include "bench/lib/measure.h"
#include "common/check.h"
#include "common/prefix_hash.h"
#include "common/str_cat.h"
#include "router/index/prefix_index.h"
#include "router/server.h"
#include "tests/router/fake_worker.h"
#include "tests/router/http_client.h"

namespace baton::bench {
namespace {

using namespace baton::router;

double CpuSeconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

/// A process that is forked before any thread exists. `body` gets a pipe to read its orders from and one to answer on.
struct Child {
  template <class Body>
  explicit Child(Body body) {
    int down[2], up[2];
    BATON_CHECK(pipe(down) == 0 && pipe(up) == 0);
    pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      close(down[1]);
      close(up[0]);
      body(down[0], up[1]);
      _exit(0);
    }
    close(down[0]);
    close(up[1]);
    to = down[1];
    from = up[0];
  }
  ~Child() {
    close(to);
    close(from);
    waitpid(pid, nullptr, 0);
  }
  int Ask(int order) const {
    int answer = -1;
    if (order >= 0) BATON_CHECK(write(to, &order, sizeof order) == sizeof order);
    BATON_CHECK(read(from, &answer, sizeof answer) == sizeof answer);
    return answer;
  }
  pid_t pid;
  int to, from;
};

constexpr Duration kStep = std::chrono::milliseconds(5);  // a decode step of 32 sequences on a GPU

void RunWorker(int orders, int answers) {
  FakeWorker worker({.max_model_len = 1 << 20, .step_every = kStep});
  const int port = worker.port();
  BATON_CHECK(write(answers, &port, sizeof port) == sizeof port);
  int end;
  [[maybe_unused]] const ssize_t closed = read(orders, &end, sizeof end);
  _exit(0);
}

struct Load {
  const char* name;
  int requests, prompt_bytes, tokens;
  int parallel;  ///< requests at once, each on a connection of its own
};

std::string Body(const Load& load) {
  std::string text;
  while (static_cast<int>(text.size()) < load.prompt_bytes) text += "the quick relay passes its baton on and ";
  text.resize(static_cast<size_t>(load.prompt_bytes));
  return StrCat(R"({"stream":true,"max_tokens":)", load.tokens, R"(,"messages":[{"role":"user","content":")", text,
                R"("}]})");
}

void RunClient(const std::vector<Load>& loads, int orders, int answers) {
  int port = 0, which = 0;
  if (read(orders, &port, sizeof port) != sizeof port) _exit(0);
  std::vector<std::unique_ptr<HttpConnection>> connections;
  while (write(answers, &which, sizeof which) == sizeof which && read(orders, &which, sizeof which) == sizeof which) {
    const Load& load = loads[static_cast<size_t>(which)];
    const std::string request = RequestText("POST", "/v1/chat/completions", Body(load));
    while (static_cast<int>(connections.size()) < load.parallel) {
      connections.push_back(std::make_unique<HttpConnection>(port));
    }
    for (int done = 0; done < load.requests; done += load.parallel) {
      for (int i = 0; i < load.parallel; ++i) connections[static_cast<size_t>(i)]->Send(request);
      for (int i = 0; i < load.parallel; ++i) BATON_CHECK(connections[static_cast<size_t>(i)]->Receive().status == 200);
    }
  }
  _exit(0);
}

void BenchIndex(nlohmann::json& out) {
  constexpr size_t kBlocks = 1 << 20, kChain = 256;
  PrefixIndex index(int64_t{64} << 20);
  std::mt19937_64 random(1);
  std::vector<std::vector<uint64_t>> chains(kBlocks / kChain, std::vector<uint64_t>(kChain));
  for (auto& chain : chains) {
    for (uint64_t& key : chain) key = random();
  }
  const double store_s = SecondsOf([&] {
    for (size_t i = 0; i < chains.size(); ++i) index.Store(static_cast<int>(i % 8), chains[i]);
  });
  size_t found = 0;
  const double find_s = SecondsOf([&] {
    for (int round = 0; round < 10; ++round) {
      for (const auto& chain : chains) found += index.Match(chain, ~uint64_t{0})[0];
    }
  });
  std::vector<int32_t> tokens(1 << 20);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 50000);
  const PrefixHasher hasher(HashKey::Random().value());
  size_t units = 0;
  const Timing hash = Alternate({[&] { units += hasher.Chain(hasher.Root({}), tokens).size(); }})[0];
  out["index"] = {
      {"store_ns_per_block", 1e9 * store_s / kBlocks},
      {"find_us", 1e6 * find_s / (10.0 * static_cast<double>(chains.size()))},
      {"bytes_per_block", static_cast<double>(index.size_bytes()) / static_cast<double>(index.size_units())},
      {"hash_ns_per_token", 1e9 * hash.median / static_cast<double>(tokens.size())}};
  std::printf(
      "index, %zu blocks: store %.0f ns per block, find %.2f µs (chains of %zu), %.1f bytes per block, hash %.2f ns "
      "per "
      "token (found %zu)\n",
      kBlocks, 1e9 * store_s / kBlocks, 1e6 * find_s / (10.0 * static_cast<double>(chains.size())), kChain,
      static_cast<double>(index.size_bytes()) / static_cast<double>(index.size_units()),
      1e9 * hash.median / static_cast<double>(tokens.size()), found + units);
}

int Main(int argc, char** argv) {
  int requests = 2000;
  std::string json_file;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--requests") == 0) requests = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--json") == 0) json_file = argv[i + 1];
  }
  const std::vector<Load> loads = {{"warm-up", 256, 1024, 16, 32},
                                   {"1 KB prompt, 1 token", requests / 32 * 32, 1024, 1, 32},
                                   {"1 KB prompt, 257 tokens", requests / 128 * 32, 1024, 257, 32},
                                   {"220 KB prompt, 1 token", requests / 50 + 1, 220 << 10, 1, 1}};
  const Child worker(RunWorker);
  const Child client([&](int orders, int answers) { RunClient(loads, orders, answers); });
  RouterConfig config;
  config.model = "tests/data/tiny-llama";
  config.port = config.grpc_port = 0;
  config.admin_port = -1;
  config.http_threads = 1;
  config.tokenizer_threads = 1;
  config.log_requests = false;
  config.worker = {StrCat("127.0.0.1:", worker.Ask(-1))};
  auto server = RouterServer::Start(config, "bench");
  BATON_CHECK(server.ok());
  BATON_CHECK((*server)->WaitReady(std::chrono::seconds(10)));
  client.Ask((*server)->http_port());

  nlohmann::json out;
  std::vector<double> cpu_us;
  for (size_t i = 0; i < loads.size(); ++i) {
    const double cpu = CpuSeconds();
    const double wall = SecondsOf([&] { client.Ask(static_cast<int>(i)); });
    cpu_us.push_back(1e6 * (CpuSeconds() - cpu) / loads[i].requests);
    std::printf("%-26s %5d requests: %8.1f µs CPU and %8.1f µs wall per request\n", loads[i].name, loads[i].requests,
                cpu_us.back(), 1e6 * wall / loads[i].requests);
    out[loads[i].name] = {{"cpu_us", cpu_us.back()}, {"wall_us", 1e6 * wall / loads[i].requests}};
  }
  out["cpu_us_per_token"] = (cpu_us[2] - cpu_us[1]) / 256;
  std::printf("%-26s %8.2f µs CPU, 32 streams\n", "a relayed token", (cpu_us[2] - cpu_us[1]) / 256);
  BenchIndex(out);
  if (!json_file.empty()) std::ofstream(json_file) << out.dump(1) << "\n";
  (*server)->Stop();
  return 0;
}

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) { return baton::bench::Main(argc, argv); }
