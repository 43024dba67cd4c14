// What UCX does to the process that uses it: nothing to its memory calls; and many may start, and connect, at once.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucm/api/ucm.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "absl/strings/str_join.h"
#include "kvtransfer/ucx/ucx_transport.h"
#include "tests/kvtransfer/liar.h"

namespace baton {
namespace {

constexpr int kAgents = 16;
const UcxOptions kTcp{.name = "ucx-tcp", .transports = "tcp", .devices = "lo"};

/// What processes show each other. Zeros at first.
struct Shown {
  std::atomic<int> listening, met, leaving;
  struct {
    size_t bytes;
    char text[4096];
  } addresses[kAgents];
};

/// One of `kAgents`: starts, waits until all listen, and then connects to all others at once with a word for each.
/// True: it has heard all others' words, and all of its own were taken. Nobody leaves before: UCX 1.13 ends a process
/// (an assertion of its ucp_request.c) whose peer leaves while a connection of his is being answered.
bool MeetsAllOthers(Shown& shown, Transport& transport, const Side& side, int self) {
  const auto end = std::chrono::steady_clock::now() + kLimit;
  const auto until = [&](const auto& condition, bool progress = true) {
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      pollfd wait{transport.wait_fd(), POLLIN, 0};
      if (!progress || !transport.Progress()) poll(&wait, 1, 1);
    }
    return true;
  };
  const std::string address = transport.address();
  auto& mine = shown.addresses[self];
  if (address.size() > sizeof mine.text) return false;
  std::memcpy(mine.text, address.data(), mine.bytes = address.size());
  ++shown.listening;
  if (!until([&] { return shown.listening == kAgents; })) return false;
  int taken = 0;
  for (int other = 0; other < kAgents; ++other) {
    if (other == self) continue;
    const auto peer = transport.Connect({shown.addresses[other].text, shown.addresses[other].bytes});
    if (!peer.ok()) return false;
    transport.Send(*peer, "a word", [&](const absl::Status& status) { taken += status.ok() ? 1 : 0; });
  }
  const bool met = until([&] { return taken == kAgents - 1 && side.messages == kAgents - 1; });
  ++shown.met;
  const bool all_met = until([&] { return shown.met == kAgents; }) && side.lost.empty();
  ++shown.leaving;
  return until([&] { return shown.leaving == kAgents; }, /*progress=*/false) && met && all_met;
}

// First of all: its children have not used UCX before.
TEST(UcxHygiene, ManyAgentsStartAtOnceAndMeetAllOthers) {
  void* const memory = mmap(nullptr, sizeof(Shown), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto& shown = *new (memory) Shown{};
  std::vector<pid_t> children;
  int go[2];
  ASSERT_EQ(pipe(go), 0);
  for (int i = 0; i < kAgents; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      char byte = 0;
      close(go[1]);
      read(go[0], &byte, 1);  // until all are there
      Side side;
      auto transport = MakeUcxTransport(kTcp, side);
      _exit(transport.ok() && MeetsAllOthers(shown, **transport, side, i) ? 0 : 1);
    }
    children.push_back(child);
  }
  close(go[0]), close(go[1]);
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  munmap(memory, sizeof(Shown));
}

TEST(UcxHygiene, ItPatchesNoMemoryCall) {
  Side side;
  const auto transport = MakeUcxTransport(kTcp, side).value();
  const auto told = [](ucm_event_type_t, ucm_event_t*, void*) {};
  EXPECT_EQ(ucm_set_event_handler(UCM_EVENT_VM_UNMAPPED, 0, told, nullptr), UCS_ERR_UNSUPPORTED)
      << "a cache of registrations asks for this";
}

TEST(UcxHygiene, EachDeviceThatRegistersMemoryRegistersAPage) {
  const std::vector<UcxRegistration> found = RegisterPages();
  std::vector<std::string> names;
  for (const UcxRegistration& one : found) {
    EXPECT_TRUE(one.page.ok()) << one.page;
    names.push_back(one.device);
  }
  EXPECT_FALSE(found.empty());
  const std::vector<std::string> ways = UcxTransportsHere();
  EXPECT_EQ(std::ranges::count(names, "cma"), std::ranges::count(ways, "cma/memory"))
      << "the kernel's copies between processes: " << absl::StrJoin(names, " ");
}

}  // namespace
}  // namespace baton
