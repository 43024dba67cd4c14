// How fast KV transports move slots between two processes of this machine, by message size, beside ucx_perftest where
// it is installed: the same verb over the same UCX transport, and the same memory, for perftest writes one buffer again
// and again; once as it comes, and once with endpoints that notice a peer that dies (-e), as ours have to. "ring" is
// how a landing ring is written: 16 slots in turn, which no cache of a core holds.
// "tcp+tls" is tcp as --kv-tls has it.
//   bench_kv_bandwidth [--kinds shm,tcp,tcp+tls,ucx-shm,ucx-tcp] [--sizes 4096,…] [--rounds 5] [--perftest
//   ucx_perftest]
//   [--json FILE]
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iostream>

#include "absl/strings/str_split.h"
#include "bench/lib/flags.h"
#include "bench/lib/measure.h"
#include "common/check.h"
#include "common/str_cat.h"
#include "common/tls/certs.h"
#include "common/tls/identity.h"
#include "common/tls/peer_tls.h"
#include "common/whole_file.h"
#include "kvtransfer/transports/transports.h"

using namespace baton;

namespace {

constexpr uint32_t kSlots = 16;
constexpr uint64_t kInFlight =
    64;  // writes of ours; perftest's 16 end when the socket has them, ours when they are stored
constexpr uint64_t kSlotBytes = 4 << 20;
constexpr uint64_t kBytesOfARun = 256 << 20;  // at the least, and 200 writes

struct Anybody final : TransportEvents {
  void OnConnected(PeerNumber) override {}
  void OnMessage(PeerNumber, std::string_view) override {}
  void OnLost(PeerNumber, const absl::Status&) override { lost = true; }
  bool MayLand(PeerNumber, const LandingPlace&) override { return true; }
  bool lost = false;
};

/// Made once; a receiver, which is a child, finds its files.
trust::PeerTrust InTls() {
  constexpr const char* kVariable = "BATON_BENCH_CERTS";
  if (getenv(kVariable) == nullptr) {
    char dir[] = "/tmp/baton-bench-XXXXXX";
    BATON_CHECK(mkdtemp(dir) != nullptr);
    const int64_t now = tls::WallSeconds(), day = 24 * 3600, until = now + 30 * day;  // later than is warned of
    const tls::CertAndKey authority = tls::MakeAuthority({"bench", {}, now - day, until});
    const auto peer = tls::MakeCertificate(authority, {"bench", {"baton-worker"}, now - day, until});
    BATON_CHECK(WriteWhole({{StrCat(dir, "/peer.crt"), peer->CertificatePem(), 0600},
                            {StrCat(dir, "/peer.key"), peer->KeyPem(), 0600},
                            {StrCat(dir, "/ca.crt"), authority.CertificatePem(), 0600}})
                    .ok());
    setenv(kVariable, dir, 1);  // NOLINT(concurrency-mt-unsafe): one thread
  }
  const std::string dir = getenv(kVariable);
  const auto peer = tls::PeerTls::Open({dir + "/peer.crt", dir + "/peer.key", dir + "/ca.crt"}, "baton-worker");
  BATON_CHECK(peer.ok(), peer.status().ToString());
  return {.tls = *peer};
}

absl::StatusOr<std::unique_ptr<Transport>> Make(const std::string& kind, const LandingShape& landing,
                                                TransportEvents& events) {
  const size_t plus = kind.find("+tls");
  return MakeTransport(kind.substr(0, plus), "127.0.0.1", 0, landing, events,
                       plus == kind.npos ? trust::PeerTrust() : InTls());
}

// As the transfer thread of a worker does.
void Turn(Transport& transport) {
  if (transport.Progress()) return;
  pollfd fd{transport.wait_fd(), POLLIN, 0};
  poll(&fd, 1, 100);
}

int Receive(const std::string& kind) {
  Anybody events;
  auto transport = Make(kind, {kSlots, kSlotBytes}, events);
  if (!transport.ok()) return std::cerr << transport.status() << "\n", 1;
  std::cout << (*transport)->address() << std::endl;
  while (getppid() != 1 && !events.lost) Turn(**transport);
  return 0;
}

/// A child with its stdout on a pipe.
struct Child {
  pid_t pid = 0;
  FILE* out = nullptr;
};

Child Start(const std::vector<std::string>& command, const std::vector<std::string>& extra_environment) {
  int ends[2];
  BATON_CHECK(pipe(ends) == 0);
  Child child;
  child.pid = fork();
  if (child.pid == 0) {
    dup2(ends[1], 1);
    dup2(ends[1], 2);
    close(ends[0]), close(ends[1]);
    for (const std::string& entry : extra_environment)
      putenv(strdup(entry.c_str()));  // NOLINT(concurrency-mt-unsafe): a child with one thread
    std::vector<char*> argv;
    for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  close(ends[1]);
  child.out = fdopen(ends[0], "r");
  return child;
}

std::string ReadAll(FILE* from) {
  std::string text;
  char buffer[4096];
  for (size_t got = 0; (got = fread(buffer, 1, sizeof(buffer), from)) > 0;) text.append(buffer, got);
  return text;
}

/// GB/s of one run of writes to a fresh receiver; NaN when the transport is not there.
class Pair {
 public:
  explicit Pair(const std::string& kind) {
    child_ = Start({"/proc/self/exe", "--receive", kind}, {});
    char line[1 << 16];
    if (fgets(line, sizeof(line), child_.out) == nullptr) return;
    auto transport = Make(kind, {}, events_);
    if (!transport.ok()) return;
    transport_ = *std::move(transport);
    const auto peer = transport_->Connect(std::string_view(line, strcspn(line, "\n")));
    if (!peer.ok()) return;
    peer_ = *peer;
    for (int i = 0; i < 100000 && transport_->landing_of(peer_).slots == 0 && !events_.lost; ++i) Turn(*transport_);
    path_ = transport_->path(peer_);
  }
  ~Pair() {
    transport_.reset();
    kill(child_.pid, SIGKILL);
    waitpid(child_.pid, nullptr, 0);
    fclose(child_.out);
  }
  bool ok() const { return peer_ != 0 && !events_.lost && transport_->landing_of(peer_).slots > 0; }
  const std::string& path() const { return path_; }

  /// `slots`: that are written in turn.
  double Run(uint64_t size, uint32_t slots) {
    std::vector<std::byte> bytes(size, std::byte{1});
    const uint64_t writes = std::max<uint64_t>(200, kBytesOfARun / size);
    uint64_t begun = 0, ended = 0;
    bool flushed = false;
    const double seconds = bench::SecondsOf([&] {
      while (!flushed && !events_.lost) {
        for (; begun < writes && begun - ended < kInFlight; ++begun) {
          const auto slot = static_cast<uint32_t>(begun % slots);
          transport_->Write(peer_, {{1, 1, 0}, {slot, 1}}, bytes, [&ended](const absl::Status&) { ++ended; });
          if (begun + 1 == writes) transport_->Flush(peer_, [&flushed](const absl::Status&) { flushed = true; });
        }
        Turn(*transport_);
      }
    });
    return static_cast<double>(writes * size) / seconds / 1e9;
  }

 private:
  Anybody events_;
  Child child_;
  std::unique_ptr<Transport> transport_;
  PeerNumber peer_ = 0;
  std::string path_;
};

/// ucx_perftest's own figure for the same verb, GB/s; 0: it cannot. `lives`: its endpoints notice a peer that dies
/// (-e), as ours have to; UCX takes other ways then.
double Perftest(const std::string& program, const std::string& kind, uint64_t size, bool lives) {
  const bool shm = kind == "ucx-shm";
  const std::vector<std::string> environment = {shm ? "UCX_TLS=posix,cma,self" : "UCX_TLS=tcp",
                                                shm ? "UCX_NET_DEVICES=all" : "UCX_NET_DEVICES=lo",
                                                "UCX_MM_ERROR_HANDLING=y", "UCX_WARN_UNUSED_ENV_VARS=n"};
  static int port = 20000 + getpid() % 10000;
  ++port;
  std::vector<std::string> common = {"timeout",
                                     "60",
                                     program,
                                     "-p",
                                     StrCat(port),
                                     "-t",
                                     shm ? "ucp_put_bw" : "ucp_am_bw",
                                     "-s",
                                     StrCat(size),
                                     "-n",
                                     StrCat(std::max<uint64_t>(200, kBytesOfARun / size)),
                                     "-w",
                                     "20",
                                     "-O",
                                     StrCat(kSlots),
                                     "-f"};
  if (lives) common.emplace_back("-e");
  Child server = Start(common, environment);
  std::vector<std::string> client = common;
  client.insert(client.begin() + 3, "127.0.0.1");
  std::string text;
  for (int tries = 0; tries < 50 && text.find('\n') == text.npos; ++tries) {
    usleep(100000);  // until it listens
    Child run = Start(client, environment);
    text = ReadAll(run.out);
    fclose(run.out);
    int status = 0;
    waitpid(run.pid, &status, 0);
    if (status == 0) break;
    text.clear();
  }
  kill(server.pid, SIGTERM);
  waitpid(server.pid, nullptr, 0);
  fclose(server.out);
  // the last line that is numbers: iterations, 50 %, average, overall usec, average and overall MB/s, rates
  double mib_per_s = 0;
  for (const auto line : absl::StrSplit(text, '\n')) {
    double iterations, a, b, c, average, overall;
    const std::string copy(line);
    const char* numbers = copy.c_str() + (copy.rfind("Final:", 0) == 0 ? 6 : 0);
    if (sscanf(numbers, "%lf %lf %lf %lf %lf %lf", &iterations, &a, &b, &c, &average, &overall) == 6)
      mib_per_s = overall;
  }
  return mib_per_s * (1 << 20) / 1e9;
}

nlohmann::json Summarize(std::vector<double> rates) {
  std::sort(rates.begin(), rates.end());
  return {{"gigabytes_per_second", rates[rates.size() / 2]}, {"low", rates.front()}, {"high", rates.back()}};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == "--receive") return Receive(argv[2]);
  signal(SIGPIPE, SIG_IGN);
  const bench::Flags flags(argc, argv, {"kinds", "perftest", "sizes", "rounds", "json"});
  const std::string kinds = flags("kinds", "shm,tcp,tcp+tls,ucx-shm,ucx-tcp");
  const std::string perftest = flags("perftest", "ucx_perftest");
  const std::string sizes = flags("sizes", "4096,65536,262144,1048576,4194304");
  const int rounds = flags.Count("rounds", 5);
  if (kinds.find("+tls") != kinds.npos) InTls();  // before there are receivers
  nlohmann::json rows = nlohmann::json::array();
  std::printf("%-8s %-24s %10s %8s %8s %15s %14s %6s %8s %6s\n", "kind", "path", "bytes", "ring", "GB/s", "low … high",
              "ucx_perftest", "ratio", "with -e", "ratio");
  for (const auto kind_view : absl::StrSplit(kinds, ',')) {
    const std::string kind(kind_view);
    for (const auto size_view : absl::StrSplit(sizes, ',')) {
      const uint64_t size = std::stoull(std::string(size_view));
      std::vector<double> ours, ring, theirs, living;
      std::string path;
      for (int round = 0; round < rounds; ++round) {
        {
          Pair pair(kind);
          if (!pair.ok()) break;
          path = pair.path();
          pair.Run(size / 4 + 64, kSlots);  // warms up
          ours.push_back(pair.Run(size, 1));
          ring.push_back(pair.Run(size, kSlots));
        }
        if (!kind.starts_with("ucx-")) continue;
        if (const double rate = Perftest(perftest, kind, size, false); rate > 0) theirs.push_back(rate);
        if (const double rate = Perftest(perftest, kind, size, true); rate > 0) living.push_back(rate);
      }
      if (ours.empty()) {
        std::printf("%-8s is not to be had here\n", kind.c_str());
        break;
      }
      nlohmann::json row = Summarize(ours);
      const double rate = row["gigabytes_per_second"];
      row["ring"] = Summarize(ring);
      std::printf("%-8s %-24s %10lu %8.2f %8.2f %7.2f…%7.2f", kind.c_str(), path.c_str(),
                  static_cast<unsigned long>(size), row["ring"]["gigabytes_per_second"].get<double>(), rate,
                  row["low"].get<double>(), row["high"].get<double>());
      row["kind"] = kind, row["path"] = path, row["bytes"] = size;
      const auto beside = [&](const char* name, const char* ratio, std::vector<double> peer, int width) {
        if (peer.empty()) return;
        row[name] = Summarize(std::move(peer));
        const double its = row[name]["gigabytes_per_second"];
        row[ratio] = rate / its;
        std::printf(" %*.2f %6.2f", width, its, rate / its);
      };
      beside("ucx_perftest", "ratio", std::move(theirs), 14);
      beside("ucx_perftest_error_handling", "ratio_error_handling", std::move(living), 8);
      std::printf("\n");
      std::fflush(stdout);
      rows.push_back(row);
    }
  }
  double load = 0;
  getloadavg(&load, 1);
  if (const char* const dir = getenv("BATON_BENCH_CERTS")) std::filesystem::remove_all(dir);
  bench::WriteJson(flags("json"),
                   {{"cores", sysconf(_SC_NPROCESSORS_ONLN)}, {"rounds", rounds}, {"load", load}, {"rows", rows}});
}
