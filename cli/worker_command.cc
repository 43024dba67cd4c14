// `baton worker`: loads the model and computes; routers dial it.
#include <memory>

#include "cli/command.h"
#include "cli/drain_loop.h"
#include "cli/exit_code.h"
#include "cli/process_flags.h"
#include "cli/rank_processes.h"
#include "cli/ready_file.h"
#include "cli/signals.h"
#include "common/log.h"
#include "common/net/address.h"
#include "common/net/advertise.h"
#include "decode_worker/decode_role.h"
#include "prefill_worker/prefill_role.h"
#include "worker/process/worker_server.h"
#include "worker/worker_config.h"

namespace baton::cli {
namespace {

using WorkerFlags = ProcessFlags<worker::WorkerConfig>;

worker::RoleFactory RoleFor(const std::string& role) {
  if (role == "prefill") return prefill_worker::MakePrefillRole;
  if (role == "decode") return decode_worker::MakeDecodeRole;
  return {};
}

int RunWorker(WorkerFlags& flags) {
  if (!flags.set.status().ok()) return FailUsage(flags.set.status());
  if (absl::Status status = flags.config.Validate(); !status.ok()) return FailUsage(status);
  if (absl::Status status = PrepareReadyFile(flags.ready.ready_file); !status.ok()) return Fail(status);
  SetLogLevel(flags.config.log_level);
  SetLogFormat(flags.config.log_format);
  SetLogName(flags.config.Name(flags.config.port));
  std::unique_ptr<worker::RankHost> ranks;
  if (flags.config.ranks() > 1 && flags.config.distributed_executor_backend == "mp") {
    std::vector<std::string> arguments;
    AppendGiven(flags.set, "worker", arguments);
    auto started = StartRankProcesses(flags.config, arguments);
    if (!started.ok()) return Fail(started.status());
    ranks = *std::move(started);
  }
  const SteadyClock clock;
  const TimePoint start = clock.Now();
  absl::StatusOr<std::unique_ptr<worker::WorkerServer>> server =
      worker::WorkerServer::Start(flags.config, kVersion, RoleFor(flags.config.role), std::move(ranks));
  if (!server.ok()) return Fail(server.status());
  const auto host = net::AdvertisedHost(flags.config.host, flags.config.advertise_host);
  if (!host.ok()) return Fail(host.status());
  const std::string address = net::JoinHostPort(*host, (*server)->port());
  SetLogName(flags.config.Name((*server)->port()));
  LogInfo("worker: gRPC at {}", address);
  auto on_ready = [&]() -> absl::Status {
    if (absl::Status status = (*server)->LoadStatus(); !status.ok()) return status;
    LogInfo("worker: ready in {:.2f} s", Seconds(clock.Now() - start));
    return WriteReadyFile(flags.ready.ready_file, {{"BATON_WORKER", address}});
  };
  return ServeUntilSignal(clock, **server, std::chrono::milliseconds(flags.config.shutdown_timeout_ms), on_ready);
}

}  // namespace

Runner AddWorker(CLI::App& app) {
  auto flags = std::make_shared<WorkerFlags>();
  flags->AddTo(app, "worker");
  return [flags] { return RunWorker(*flags); };
}

}  // namespace baton::cli
