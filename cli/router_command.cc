// `baton router`: the OpenAI and gRPC front of workers that run elsewhere.
#include <memory>

#include "cli/command.h"
#include "cli/config_explain.h"
#include "cli/drain_loop.h"
#include "cli/exit_code.h"
#include "cli/process_flags.h"
#include "cli/ready_file.h"
#include "cli/router_ports.h"
#include "cli/signals.h"
#include "common/log.h"
#include "common/net/address.h"
#include "router/router_config.h"
#include "router/server.h"

namespace baton::cli {
namespace {

using RouterFlags = ProcessFlags<router::RouterConfig>;

int RunRouter(RouterFlags& flags) {
  if (flags.set.status().ok()) FollowPort(flags.set, flags.config);
  if (flags.set.explains()) return Explain(flags.set);
  if (!flags.set.status().ok()) return FailUsage(flags.set.status());
  if (absl::Status status = flags.config.Validate(); !status.ok()) return FailUsage(status);
  if (absl::Status status = PrepareReadyFile(flags.ready.ready_file); !status.ok()) return Fail(status);
  SetLogLevel(flags.config.log_level);
  SetLogFormat(flags.config.log_format);
  SetLogName("router");
  const SteadyClock clock;
  const TimePoint start = clock.Now();
  absl::StatusOr<std::unique_ptr<router::RouterServer>> server = router::RouterServer::Start(flags.config, kVersion);
  if (!server.ok()) return Fail(server.status());
  const std::string scheme = flags.config.http_tls() ? "https://" : "http://";
  const std::string http = StrCat(scheme, net::JoinHostPort(flags.config.host, (*server)->http_port()));
  const std::string grpc = net::JoinHostPort(flags.config.host, (*server)->grpc_port());
  LogInfo("router: OpenAI API at {}/v1, gRPC at {}", http, (*server)->grpc_port() == 0 ? "none" : grpc);

  const std::string admin =
      (*server)->admin_port() == 0 ? "" : StrCat(scheme, net::JoinHostPort(flags.config.host, (*server)->admin_port()));
  if (!admin.empty()) LogInfo("router: admin at {}", admin);

  auto on_ready = [&] {
    LogInfo("router: ready in {:.2f} s, serving {} at {}/v1", Seconds(clock.Now() - start), (*server)->model_name(),
            http);
    return WriteReadyFile(flags.ready.ready_file, {{"BATON_HTTP", http}, {"BATON_GRPC", grpc}, {"BATON_ADMIN", admin}});
  };
  return ServeUntilSignal(clock, **server, std::chrono::milliseconds(flags.config.shutdown_timeout_ms), on_ready);
}

}  // namespace

Runner AddRouter(CLI::App& app) {
  auto flags = std::make_shared<RouterFlags>();
  flags->AddTo(app, "router");
  return [flags] { return RunRouter(*flags); };
}

}  // namespace baton::cli
