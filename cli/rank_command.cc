// `baton rank`: one rank of a worker. Workers start it; people do not.
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>

#include "cli/command.h"
#include "cli/environment.h"
#include "cli/exit_code.h"
#include "cli/flag_set.h"
#include "cli/rank_processes.h"
#include "common/log.h"
#include "engine/parallel/tcp_communicator.h"
#include "engine/parallel/tcp_meeting.h"
#include "worker/ranks/rank.h"
#include "worker/worker_config.h"

namespace baton::cli {
namespace {

struct RankFlags {
  worker::WorkerConfig config;
  FlagSet set;
  int rank = 0;
  std::string meet;
};

// The kernel ends this process with the worker: nothing here waits for a signal.
void DieWithWorker() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != ParentPid()) std::_Exit(kExitUnreachable);
}

int RunRankCommand(RankFlags& flags) {
  DieWithWorker();
  if (!flags.set.status().ok()) return FailUsage(flags.set.status());
  const worker::WorkerConfig& config = flags.config;
  if (absl::Status status = config.Validate(); !status.ok()) return Fail(status);
  SetLogLevel(config.log_level);
  SetLogFormat(config.log_format);
  SetLogName(StrCat(config.Name(config.port), "/rank-", flags.rank));
  const auto secret = trust::ClusterSecret::Of(Environment(kRankSecretVariable).value_or(""));
  if (!secret.ok()) return Fail(secret.status());
  absl::StatusOr<std::shared_ptr<engine::TcpMesh>> mesh =
      engine::JoinTcpMesh(flags.meet, {.secret = *secret, .rank = flags.rank, .size = config.ranks()});
  if (!mesh.ok()) return Fail(mesh.status());
  const int tensor = config.tensor_parallel_size;
  const auto world = engine::MakeTcpGroup(*mesh, 0, config.ranks());
  const auto group = tensor > 1 ? engine::MakeTcpGroup(*mesh, flags.rank / tensor * tensor, tensor) : nullptr;
  const absl::Status status = worker::RunRank(config, flags.rank, {.tensor = group.get(), .world = world.get()},
                                              worker::SharedMemory::Of(kRankKvDescriptor));
  return status.ok() ? kExitOk
                     : Fail(absl::Status(status.code(), StrCat("rank ", flags.rank, ": ", View(status.message()))));
}

}  // namespace

Runner AddRank(CLI::App& app) {
  auto flags = std::make_shared<RankFlags>();
  app.add_option("--rank", flags->rank, "number of this rank")->required();
  app.add_option("--meet", flags->meet, "address of rank 0")->required();
  flags->set.Add(flags->config, "worker");
  flags->set.Attach(app);
  return [flags] { return RunRankCommand(*flags); };
}

}  // namespace baton::cli
