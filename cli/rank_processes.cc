#include "cli/rank_processes.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <utility>

#include "cli/supervisor.h"
#include "common/errno_text.h"
#include "common/status.h"
#include "engine/parallel/tcp_communicator.h"
#include "engine/parallel/tcp_meeting.h"

extern char** environ;

namespace baton::cli {
namespace {

constexpr Duration kEndWithin = std::chrono::seconds(5);

// The worker's environment without what is the worker's own.
std::vector<std::string> EnvironmentOf(const std::string& secret) {
  std::vector<std::string> out = {StrCat(kRankSecretVariable, "=", secret), StrCat("BATON_PARENT_PID=", getpid())};
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string_view variable = *e;
    if (!variable.starts_with("BATON_PARENT_PID=") && !variable.starts_with("BATON_FAILURE_FD="))
      out.emplace_back(variable);
  }
  return out;
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

absl::StatusOr<pid_t> Spawn(std::vector<std::string> arguments, std::vector<std::string> environment, int kv) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, kv, kRankKvDescriptor);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);  // Ctrl-C reaches the worker, which ends them
  pid_t pid = -1;
  const int error = posix_spawn(&pid, "/proc/self/exe", &actions, &attributes, Pointers(arguments).data(),
                                Pointers(environment).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error == 0) return pid;
  return absl::UnavailableError(StrCat("cannot start a rank: ", ErrnoText(error)));
}

class RankProcesses final : public worker::RankHost {
 public:
  explicit RankProcesses(const worker::WorkerConfig& config) : config_(config) {}

  ~RankProcesses() override {
    if (mesh_) mesh_->Abort(absl::UnavailableError("the worker ends"));
    const SteadyClock clock;
    const TimePoint deadline = clock.Now() + (mesh_ ? kEndWithin : Duration::zero());
    while (!Reap() && clock.Now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    for (const Process& p : processes_) {
      if (!p.ended) kill(p.pid, SIGKILL);
    }
    for (const Process& p : processes_) {
      if (!p.ended) waitpid(p.pid, nullptr, 0);
    }
  }

  absl::Status Start(const std::vector<std::string>& arguments) {
    BATON_ASSIGN_OR_RETURN(const auto meeting, engine::TcpMeetingPoint::Listen("127.0.0.1"));
    const std::string text = trust::ClusterSecret::NewText();
    BATON_ASSIGN_OR_RETURN(const auto secret, trust::ClusterSecret::Of(text));
    for (int rank = 1; rank < config_.ranks(); ++rank) {
      BATON_ASSIGN_OR_RETURN(worker::SharedMemory memory, worker::SharedMemory::Create());
      std::vector<std::string> argv = {"baton", "rank", StrCat("--rank=", rank), StrCat("--meet=", meeting->address())};
      argv.insert(argv.end(), arguments.begin(), arguments.end());
      BATON_ASSIGN_OR_RETURN(const pid_t pid, Spawn(std::move(argv), EnvironmentOf(text), memory.descriptor()));
      processes_.push_back({.pid = pid});
      kv_.push_back(std::move(memory));
    }
    const engine::RankGroup group{.secret = secret, .size = config_.ranks()};
    BATON_ASSIGN_OR_RETURN(mesh_, meeting->Gather(group, [this] { return Health(); }));
    world_ = engine::MakeTcpGroup(mesh_, 0, config_.ranks());
    if (config_.tensor_parallel_size > 1) tensor_ = engine::MakeTcpGroup(mesh_, 0, config_.tensor_parallel_size);
    return absl::OkStatus();
  }

  engine::RankLinks links() override { return {.tensor = tensor_.get(), .world = world_.get()}; }
  std::vector<worker::SharedMemory>& kv() override { return kv_; }

  void Started() override { mesh_->SetPatience(std::chrono::milliseconds(config_.rank_timeout_ms)); }

  absl::Status Health() override {
    Reap();
    for (size_t i = 0; i < processes_.size(); ++i) {
      const Process& p = processes_[i];
      if (!p.ended) continue;
      const std::string how = WIFSIGNALED(p.status) ? StrCat("was ended by signal ", WTERMSIG(p.status))
                                                    : StrCat("ended with exit code ", WEXITSTATUS(p.status));
      return absl::UnavailableError(StrCat("rank ", i + 1, " of ", config_.ranks(), " (process ", p.pid, ") ", how));
    }
    return mesh_ ? mesh_->Lost() : absl::OkStatus();
  }

 private:
  struct Process {
    pid_t pid = -1;
    bool ended = false;
    int status = 0;
  };
  /// True: all have ended.
  bool Reap() {
    bool all = true;
    for (Process& p : processes_) {
      if (!p.ended) p.ended = waitpid(p.pid, &p.status, WNOHANG) == p.pid;
      all = all && p.ended;
    }
    return all;
  }

  const worker::WorkerConfig config_;
  std::vector<worker::SharedMemory> kv_;
  std::vector<Process> processes_;  ///< from rank 1
  std::shared_ptr<engine::TcpMesh> mesh_;
  std::unique_ptr<engine::Communicator> world_, tensor_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<worker::RankHost>> StartRankProcesses(const worker::WorkerConfig& config,
                                                                     const std::vector<std::string>& arguments) {
  auto ranks = std::make_unique<RankProcesses>(config);
  BATON_RETURN_IF_ERROR(ranks->Start(arguments));
  return std::unique_ptr<worker::RankHost>(std::move(ranks));
}

}  // namespace baton::cli
