// Whether connections between workers that come and go leave memory or descriptors behind, by kind of transport: a
// receiver with landing memory and a writer, both here; each cycle connects, greets, sends a message, closes and
// releases. Shown is what the process holds after each tenth, and what a cycle costs.
//   bench_kv_cycles [--kinds tcp,shm,ucx-tcp,ucx-shm] [--cycles 10000] [--json FILE]
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>

#include "absl/strings/str_split.h"
#include "bench/lib/flags.h"
#include "bench/lib/measure.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/str_cat.h"
#include "kvtransfer/transports/transports.h"

using namespace baton;

namespace {

struct Side final : TransportEvents {
  void OnConnected(PeerNumber peer) override { latest = peer; }
  void OnMessage(PeerNumber, std::string_view) override { ++messages; }
  void OnLost(PeerNumber peer, const absl::Status&) override { lost = peer; }
  bool MayLand(PeerNumber, const LandingPlace&) override { return true; }
  PeerNumber latest = 0, lost = 0;
  int64_t messages = 0;
};

struct Holds {
  int64_t resident_kib = 0, descriptors = 0;
};

Holds HeldNow() {
  Holds out;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) out.resident_kib = std::stoll(line.substr(6));
  }
  out.descriptors = std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}) - 1;  // less the folder
  return out;
}

nlohmann::json Cycles(const std::string& kind, int64_t cycles) {
  Side here, there;
  auto receiver = MakeTransport(kind, "127.0.0.1", 0, {16, 1 << 16}, here).value();
  auto writer = MakeTransport(kind, "127.0.0.1", 0, {}, there).value();
  const SteadyClock clock;
  const auto until = [&](const std::function<bool()>& enough, const char* what) {
    const TimePoint end = clock.Now() + std::chrono::seconds(30);
    while (!enough()) {
      writer->Progress(), receiver->Progress();
      BATON_CHECK(clock.Now() < end, kind, ": took too long: ", what);
    }
  };
  nlohmann::json rows = nlohmann::json::array();
  const TimePoint since = clock.Now();
  for (int64_t i = 1; i <= cycles; ++i) {
    const PeerNumber to = writer->Connect(receiver->address()).value();
    until([&] { return writer->landing_of(to).slots == 16; }, "the greeting");
    bool sent = false;
    writer->Send(to, "hello", [&](const absl::Status& status) { sent = status.ok(); });
    until([&] { return sent && here.messages == i; }, "the message");
    const PeerNumber from = here.latest;
    writer->Close(to, [] {});
    until([&] { return here.lost == from; }, "the end");
    receiver->Close(from, [] {});
    receiver->Release(from);  // as a worker does with one that holds nothing
    if (i % std::max<int64_t>(1, cycles / 10) != 0) continue;
    const Holds held = HeldNow();
    const double us = 1e6 * Seconds(clock.Now() - since) / static_cast<double>(i);
    std::printf("%-8s %7lld cycles  %7lld KiB  %4lld descriptors  %6.0f us each\n", kind.c_str(),
                static_cast<long long>(i), static_cast<long long>(held.resident_kib),
                static_cast<long long>(held.descriptors), us);
    std::fflush(stdout);
    rows.push_back({{"cycles", i}, {"KiB", held.resident_kib}, {"descriptors", held.descriptors}, {"us", us}});
  }
  return rows;
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Flags flags(argc, argv, {"kinds", "cycles", "json"});
  nlohmann::json rows;
  for (const auto kind : absl::StrSplit(flags("kinds", "tcp,shm,ucx-tcp,ucx-shm"), ','))
    rows[std::string(kind)] = Cycles(std::string(kind), flags.Count("cycles", 10000));
  bench::WriteJson(flags("json"), rows);
}
