// `baton rank`: one rank of a worker. Workers start it; people do not.
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

#include "cli/command.h"
#include "cli/environment.h"
#include "cli/exit_code.h"
#include "cli/flag_set.h"
#include "cli/group_member.h"
#include "cli/rank_children.h"
#include "common/log.h"
#include "common/status.h"
#include "common/trust/cluster_secret.h"
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

// Ranks of one machine: a secret of this worker's own.
absl::StatusOr<trust::PeerTrust> TrustOfChild() {
  BATON_ASSIGN_OR_RETURN(auto secret, trust::ClusterSecret::Of(Environment(kRankSecretVariable).value_or("")));
  return trust::PeerTrust{.secret = std::move(secret)};
}

int RunRankCommand(RankFlags& flags) {
  DieWithWorker();
  if (!flags.set.status().ok()) return FailUsage(flags.set.status());
  const worker::WorkerConfig& config = flags.config;
  if (absl::Status status = config.Validate(); !status.ok()) return Fail(status);
  SetLogLevel(config.log_level);
  SetLogFormat(config.log_format);
  SetLogName(StrCat(config.Name(config.port), "/rank-", flags.rank));
  const auto trust = config.nnodes > 1 ? TrustOfNodes(config) : TrustOfChild();
  if (!trust.ok()) return Fail(trust.status());
  const auto member = GroupMember::Join(config, flags.rank, flags.meet, *trust);
  if (!member.ok()) return Fail(member.status());
  const absl::Status status = (*member)->Run([] {});
  return status.ok() ? kExitOk : Fail(status);
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
