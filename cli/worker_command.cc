// `baton worker`: loads the model and computes; routers dial it.
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "cli/allocator.h"
#include "cli/command.h"
#include "cli/config_explain.h"
#include "cli/drain_loop.h"
#include "cli/environment.h"
#include "cli/exit_code.h"
#include "cli/node_ranks.h"
#include "cli/process_flags.h"
#include "cli/rank_processes.h"
#include "cli/ready_file.h"
#include "cli/signals.h"
#include "cli/status_server.h"
#include "common/log.h"
#include "common/net/address.h"
#include "common/net/advertise.h"
#include "decode_worker/decode_role.h"
#include "prefill_worker/prefill_role.h"
#include "worker/process/reach.h"
#include "worker/process/worker_server.h"
#include "worker/worker_config.h"

namespace baton::cli {
namespace {

using WorkerFlags = ProcessFlags<worker::WorkerConfig>;

worker::RoleFactory RoleFor(const std::string& role) {
  if (role == "both") return {};
  return [](const worker::RoleContext& context) {
    const bool prefill = context.role == v1::WORKER_ROLE_PREFILL;
    return prefill ? prefill_worker::MakePrefillRole(context) : decode_worker::MakeDecodeRole(context);
  };
}

// A pod of a LeaderWorkerSet is told its place by the set; flags come first. `arguments`: what its rank processes are
// told of it.
absl::Status TakeLeaderWorkerSet(worker::WorkerConfig& config, std::vector<std::string>& arguments) {
  const std::string size = Environment("LWS_GROUP_SIZE").value_or("");
  const std::string index = Environment("LWS_WORKER_INDEX").value_or("");
  if (config.nnodes != 1 || !config.master_addr.empty() || (size.empty() && index.empty())) return absl::OkStatus();
  const std::string leader = Environment("LWS_LEADER_ADDRESS").value_or("");
  if (!absl::SimpleAtoi(size, &config.nnodes) || !absl::SimpleAtoi(index, &config.node_rank) || leader.empty())
    return absl::InvalidArgumentError(StrCat("LWS_GROUP_SIZE=\"", size, "\" LWS_WORKER_INDEX=\"", index,
                                             "\" LWS_LEADER_ADDRESS=\"", leader,
                                             "\": a number, a number and a host name are expected"));
  if (config.nnodes == 1) return absl::OkStatus();
  config.master_addr = leader;
  arguments = {StrCat("--nnodes=", config.nnodes), StrCat("--node-rank=", config.node_rank),
               StrCat("--master-addr=", leader)};
  return absl::OkStatus();
}

/// Of this machine, which serves for all of them.
MachineStatus StatusOf(const worker::WorkerConfig& config, const worker::WorkerServer* server) {
  MachineStatus status = MachineOf(config, config.Name(server == nullptr ? config.port : server->port()));
  status.ready = server != nullptr && server->Serving();
  if (status.ready) return status;
  status.phase = "waits for the other machines";
  if (server == nullptr) return status;
  const worker::StartUpProgress::View progress = server->Progress();
  status.phase = server->WaitReady(Duration::zero()) ? "drains" : progress.phase;
  status.progress = progress.fraction;
  return status;
}

int RunWorker(WorkerFlags& flags) {
  GiveBackWhatEndedThreadsFreed();
  if (flags.set.explains()) return Explain(flags.set);
  if (!flags.set.status().ok()) return FailUsage(flags.set.status());
  std::vector<std::string> arguments;
  if (absl::Status status = TakeLeaderWorkerSet(flags.config, arguments); !status.ok()) return FailUsage(status);
  if (absl::Status status = flags.config.Validate(); !status.ok()) return FailUsage(status);
  if (absl::Status status = PrepareReadyFile(flags.ready.ready_file); !status.ok()) return Fail(status);
  SetLogLevel(flags.config.log_level);
  SetLogFormat(flags.config.log_format);
  SetLogName(flags.config.Name(flags.config.port));
  if (absl::Status status = worker::CheckReach(flags.config); !status.ok()) return Fail(status);
  std::unique_ptr<worker::RankHost> ranks;
  const worker::WorkerConfig& config = flags.config;
  std::unique_ptr<worker::WorkerServer> server;
  std::atomic<const worker::WorkerServer*> shown = nullptr;
  std::unique_ptr<StatusServer> page;  // ends before the server that it shows
  if (config.node_rank == 0) {         // else RunNodeRanks has one
    auto opened = StatusServer::Start(config, [&] { return StatusOf(config, shown); });
    if (!opened.ok()) return Fail(opened.status());
    page = *std::move(opened);
  }
  if (config.ranks_are_processes()) {
    AppendGiven(flags.set, "worker", arguments);
    if (config.node_rank > 0) return RunNodeRanks(config, arguments, flags.ready.ready_file);
    auto started = StartRankProcesses(flags.config, arguments);
    if (!started.ok()) return Fail(started.status());
    ranks = *std::move(started);
  }
  const SteadyClock clock;
  const TimePoint start = clock.Now();
  auto started = worker::WorkerServer::Start(flags.config, kVersion, RoleFor(flags.config.role), std::move(ranks));
  if (!started.ok()) return Fail(started.status());
  server = *std::move(started);
  shown = server.get();
  const auto host = net::AdvertisedHost(flags.config.host, flags.config.advertise_host);
  if (!host.ok()) return Fail(host.status());
  const std::string address = net::JoinHostPort(*host, server->port());
  SetLogName(flags.config.Name(server->port()));
  LogInfo("worker: gRPC at {}", address);
  auto on_ready = [&]() -> absl::Status {
    if (absl::Status status = server->LoadStatus(); !status.ok()) return status;
    LogInfo("worker: ready in {:.2f} s", Seconds(clock.Now() - start));
    std::vector<std::pair<std::string, std::string>> told = {{"BATON_WORKER", address}};
    if (page) told.emplace_back("BATON_STATUS", page->UrlAt(*host));
    return WriteReadyFile(flags.ready.ready_file, told);
  };
  return ServeUntilSignal(clock, *server, std::chrono::milliseconds(flags.config.shutdown_timeout_ms), on_ready);
}

}  // namespace

Runner AddWorker(CLI::App& app) {
  auto flags = std::make_shared<WorkerFlags>();
  flags->AddTo(app, "worker");
  return [flags] { return RunWorker(*flags); };
}

}  // namespace baton::cli
