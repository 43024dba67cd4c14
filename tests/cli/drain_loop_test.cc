// What a server process exits with when its drain runs out of time.
#include "cli/drain_loop.h"

#include <gtest/gtest.h>

namespace baton::cli {
namespace {

using std::chrono::milliseconds;

/// Is asked to drain at once, and never has.
struct StaysAWhile {
  bool WaitReady(Duration) const { return true; }
  void Drain() {}
  bool WaitDrained(Duration) const { return false; }
  void Stop() { stopped = true; }

  bool stopped = false;
};
struct TellsWhetherRequestsRun : StaysAWhile {
  bool Busy() const { return busy; }

  bool busy = false;
};

class DrainLoop : public testing::Test {
 protected:
  DrainLoop() { BlockSignals(); }
  ~DrainLoop() override { LetSignalsEnd(); }

  template <class Server>
  static int ExitCodeOf(Server& server, Duration grace) {
    const SteadyClock clock;
    const int code = ServeUntilSignal(clock, server, grace, [] {
      raise(SIGTERM);
      return absl::OkStatus();
    });
    EXPECT_TRUE(server.stopped);
    return code;
  }
};

TEST_F(DrainLoop, ThatRunsOutOfTimeWithoutARequestCutsNoneOff) {
  for (const int ms : {0, 1, 20}) {
    TellsWhetherRequestsRun idle, busy;
    busy.busy = true;
    EXPECT_EQ(ExitCodeOf(idle, milliseconds(ms)), kExitOk) << ms;
    EXPECT_EQ(ExitCodeOf(busy, milliseconds(ms)), kExitCutOff) << ms;
  }
  StaysAWhile unknown;
  EXPECT_EQ(ExitCodeOf(unknown, milliseconds(1)), kExitCutOff) << "what has not drained runs";
}

}  // namespace
}  // namespace baton::cli
