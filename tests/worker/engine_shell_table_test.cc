// Every call in every phase of an engine shell, as one table: what relay stream, watcher, role and caller hear of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>

#include "common/check.h"
#include "tests/state_table.h"
#include "tests/worker/relay_fixture.h"
#include "worker/process/engine_shell.h"

namespace baton::worker {
namespace {

using std::chrono::seconds;

/// Words in the order they were said; from any thread.
class Log {
 public:
  void Say(const std::string& word) {
    std::lock_guard lock(mutex_);
    words_ += word + " ";
    said_.notify_all();
  }
  std::string Take() {
    std::lock_guard lock(mutex_);
    return std::exchange(words_, {});
  }
  bool WaitFor(const std::string& word) {
    std::unique_lock lock(mutex_);
    return said_.wait_for(lock, seconds(20), [&] { return words_.find(word) != std::string::npos; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable said_;
  std::string words_;
};

class LoggingRole final : public Role {
 public:
  LoggingRole(Log& log, const std::atomic<bool>& idle) : log_(log), idle_(idle) {}
  v1::WorkerRole wire_role() const override { return v1::WORKER_ROLE_DECODE; }
  void Start(PostTask, RelayBook*) override {}
  void Drain() override { log_.Say("RoleDrains"); }
  void Resume() override { log_.Say("RoleResumes"); }
  bool Idle() const override {
    const bool idle = idle_;  // whoever hears "Busy" may change it
    if (!idle) log_.Say("Busy");
    return idle;
  }
  void StopThreads() override { log_.Say("RoleStops"); }
  void LetGo() override { log_.Say("RoleLetsGo"); }
  void OnTick(engine::Scheduler&) override { log_.Say("Tick"); }
  int64_t OwnedBlocks(int32_t) const override { return 0; }
  void FillLoad(v1::HandoffLoad&) const override { log_.Say("Load"); }
  void Cancel(const v1::CancelRequest&, const std::string&, std::function<void(v1::CancelReply)> answer) override {
    answer({});
  }

 private:
  Log& log_;
  const std::atomic<bool>& idle_;
};

class LoggingStream final : public RelayWriter {
 public:
  explicit LoggingStream(Log& log) : log_(log) {}
  void Send(v1::RelayDown message) override {
    for (const v1::RelayEntry& e : message.entries()) {
      if (e.finish_reason() == v1::FINISH_REASON_UNSPECIFIED) continue;
      log_.Say(e.has_error()
                   ? "Error(" + std::string(absl::StatusCodeToString(static_cast<absl::StatusCode>(e.error().code()))) +
                         ")"
                   : v1::FinishReason_Name(e.finish_reason()).substr(14));
    }
  }

 private:
  Log& log_;
};

class LoggingWatcher final : public WatchSink {
 public:
  explicit LoggingWatcher(Log& log) : log_(log) {}
  void Send(v1::WorkerEvent event) override {
    if (event.has_snapshot()) log_.Say("Snapshot");
    if (event.has_load()) log_.Say("LoadEvent");
    if (event.has_state()) log_.Say(v1::WorkerState::State_Name(event.state().state()).substr(6));
  }
  void End(const absl::Status&) override { log_.Say("WatchEnds"); }

 private:
  Log& log_;
};

class ShellWorld {
 public:
  ShellWorld() {
    WorkerConfig config;
    config.model = "tests/data/tiny-llama", config.load_format = "dummy", config.dtype = "float32";
    config.threads = 1, config.max_num_seqs = 4, config.max_model_len = 256, config.kv_cache_memory = 4 << 20;
    StartUpProgress progress;
    shell = std::make_unique<EngineShell>(config, StartUp(config, progress).value(), HashKey{}, "life", clock,
                                          std::make_unique<LoggingRole>(log, idle));
  }
  void Relay(const std::string& id, int32_t tokens) {
    auto up = std::make_shared<v1::RelayUp>();
    *up->add_attach() = MakeAttach(id, 1, 20, tokens);
    shell->OnRelay(stream, up, [this] { log.Say("Handled"); });
  }
  SteadyClock clock;
  Log log;
  std::atomic<bool> idle = true;
  bool alive = true;
  std::shared_ptr<LoggingStream> stream = std::make_shared<LoggingStream>(log);
  std::shared_ptr<LoggingWatcher> watcher = std::make_shared<LoggingWatcher>(log);
  std::unique_ptr<EngineShell> shell;
};

constexpr std::array kPhases = {"running", "draining", "down"};

void EnterPhase(ShellWorld& w, const std::string& phase) {
  if (phase == "draining") {
    w.shell->Drain([&w] { w.log.Say("drained"); });
    ASSERT_TRUE(w.log.WaitFor("drained"));
  }
  if (phase == "down") w.shell->Shutdown(), w.alive = false;
}

struct Call {
  std::function<void(ShellWorld&)> say;
  std::string until;            ///< the last word it causes while there is an engine
  std::string when_draining{};  ///< if that is another one then
};

const std::vector<std::pair<std::string, Call>>& Calls() {
  static const std::vector<std::pair<std::string, Call>> calls = {
      {"Relay a prompt", {[](ShellWorld& w) { w.Relay("a", 3); }, "LENGTH", "Handled"}},
      {"Watch", {[](ShellWorld& w) { w.shell->AddWatcher(w.watcher, {}), w.shell->ReportLoad(); }, "LoadEvent"}},
      {"Tick", {[](ShellWorld& w) { w.shell->Tick(); }, "Tick"}},
      {"Report the load", {[](ShellWorld& w) { w.shell->ReportLoad(); }, "Load"}},
      {"Stream ends", {[](ShellWorld& w) { w.shell->OnRelayEnd(w.stream), w.shell->ReportLoad(); }, "Load"}},
      {"Drain", {[](ShellWorld& w) { w.shell->Drain([&w] { w.log.Say("drained"); }); }, "drained"}},
      {"Drain, role busy",
       {[](ShellWorld& w) {
          w.idle = false;
          w.shell->Drain([&w] { w.log.Say("drained"); });
          if (w.alive) w.log.WaitFor("Busy");
          w.log.Say("waits");
          w.idle = true;
          w.shell->Tick();
        },
        "drained"}},
      {"Drain, role busy, shutdown",
       {[](ShellWorld& w) {
          w.idle = false;
          w.shell->Drain([&w] { w.log.Say("drained"); });
          if (w.alive) w.log.WaitFor("Busy");
          w.shell->Shutdown();
        },
        "drained"}},
      {"Shutdown", {[](ShellWorld& w) { w.shell->Shutdown(); }, ""}},
  };
  return calls;
}

// call | one cell per phase: words in the order they were said
constexpr const char* kShellTable = R"(
Relay a prompt   | Handled LENGTH | Error(UNAVAILABLE) Handled | =
Watch            | Snapshot READY Load LoadEvent | Snapshot DRAINING Load LoadEvent | =
Tick             | Tick | Tick | =
Report the load  | Load | Load | =
Stream ends      | Load | Load | =
Drain            | RoleDrains drained | RoleDrains drained | drained
Drain, role busy | RoleDrains Busy waits Tick drained | RoleDrains Busy waits Tick drained | drained waits
Drain, role busy, shutdown | RoleDrains Busy RoleStops RoleLetsGo drained | RoleDrains Busy RoleStops RoleLetsGo drained | drained RoleStops RoleLetsGo
Shutdown         | RoleStops RoleLetsGo | RoleStops RoleLetsGo | RoleStops RoleLetsGo
)";

TEST(EngineShellTable, EveryCallInEveryPhaseIsAnswered) {
  ExpectEveryCell(kShellTable, kPhases, Calls(), [](const auto&, const std::string& phase, const Call& call) {
    ShellWorld w;
    EnterPhase(w, phase);
    w.log.Take();
    call.say(w);
    const std::string& last = phase == "draining" && !call.when_draining.empty() ? call.when_draining : call.until;
    if (phase != "down" && !last.empty()) {
      EXPECT_TRUE(w.log.WaitFor(last)) << last;
    }
    std::string words = w.log.Take();
    if (!words.empty()) words.pop_back();
    return CellOf("", "", words);
  });
}

}  // namespace
}  // namespace baton::worker
