// What UCX does to the process that uses it: nothing to its memory calls; and many may start at once.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <ucm/api/ucm.h>
#include <unistd.h>

#include "kvtransfer/ucx/ucx_transport.h"
#include "tests/kvtransfer/liar.h"

namespace baton {
namespace {

constexpr int kAgents = 12;
const UcxOptions kTcp{.name = "ucx-tcp", .transports = "tcp", .devices = "lo"};

// First of all: its children have not used UCX before.
TEST(UcxHygiene, ManyAgentsStartAtOnce) {
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
      _exit(MakeUcxTransport(kTcp, side).ok() ? 0 : 1);
    }
    children.push_back(child);
  }
  close(go[0]), close(go[1]);
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
}

TEST(UcxHygiene, ItPatchesNoMemoryCall) {
  Side side;
  const auto transport = MakeUcxTransport(kTcp, side).value();
  const auto told = [](ucm_event_type_t, ucm_event_t*, void*) {};
  EXPECT_EQ(ucm_set_event_handler(UCM_EVENT_VM_UNMAPPED, 0, told, nullptr), UCS_ERR_UNSUPPORTED)
      << "a cache of registrations asks for this";
}

}  // namespace
}  // namespace baton
