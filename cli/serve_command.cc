// `baton serve`: router and workers as child processes on one machine.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>

#include "absl/strings/str_join.h"
#include "cli/command.h"
#include "cli/config_explain.h"
#include "cli/environment.h"
#include "cli/exit_code.h"
#include "cli/flag_set.h"
#include "cli/port_claim.h"
#include "cli/process_flags.h"
#include "cli/ready_file.h"
#include "cli/router_ports.h"
#include "cli/serve_check.h"
#include "cli/serve_config.h"
#include "cli/supervisor.h"
#include "common/errno_text.h"
#include "common/log.h"
#include "common/net/address.h"
#include "common/net/socket_address.h"
#include "common/open_to_read.h"
#include "common/prefix_hash.h"
#include "common/status.h"
#include "common/trust/cluster_secret.h"
#include "router/router_config.h"
#include "worker/worker_config.h"

namespace baton::cli {
namespace {

// Set here for every child, so not flags of `serve` (or flags with a meaning of serve's own).
const std::vector<std::string> kNotForRouter = {"model", "served-model-name", "worker"};
const std::vector<std::string> kNotForWorker = {"host", "port",      "model",      "served-model-name",
                                                "role", "worker-id", "status-port"};
constexpr int kFirstFd = 10;  // descriptors for children: below are those that a child finds set for it

struct ServeFlags {
  ServeConfig serve;
  ReadyConfig ready;
  std::string config_file;
  router::RouterConfig router_config;
  worker::WorkerConfig worker_config, prefill_config, decode_config;
  FlagSet set;
};

// Every port of the cluster, taken before a child starts and kept until all have ended: a child that is restarted finds
// its own again.
struct Ports {
  std::vector<PortClaim> claims;

  absl::StatusOr<int> Take(const std::string& host, int port, const std::string& flag) {
    BATON_ASSIGN_OR_RETURN(PortClaim claim, PortClaim::Take(host, port, flag));
    claims.push_back(std::move(claim));
    return claims.back().port();
  }
};

// A file that every child can read, also after a restart: it lives as long as this process does and has no name.
absl::StatusOr<std::string> NamelessFile(const std::string& text) {
  const int unplaced = memfd_create("baton", MFD_CLOEXEC);
  const int fd = fcntl(unplaced, F_DUPFD, kFirstFd);  // without CLOEXEC: children inherit it
  close(unplaced);
  if (fd < 0 || fchmod(fd, S_IRUSR | S_IWUSR) != 0 ||
      write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return absl::UnavailableError(StrCat("cannot keep a file in memory: ", ErrnoText()));
  }
  return StrCat("/proc/self/fd/", fd);
}

// A line of a key file, which begins no comment and loses nothing at its end.
bool FitsKeyFile(std::string_view key) {
  const size_t space = key.find_last_of(" \t");  // with '=' behind it, it would be read as a limit of the key
  return !key.empty() && key.front() != '#' && key.find_first_of("\r\n") == std::string_view::npos &&
         key.back() != ' ' && key.back() != '\t' &&
         (space == std::string_view::npos || key.find('=', space) == std::string_view::npos);
}

// Keys go to the router in a file, with those of --api-key-file: everybody on the machine can read a command line.
absl::Status HideApiKeys(FlagSet& set, const std::string& key_file, std::vector<std::string>& router_argv) {
  const auto keys = set.given().find("api-key");
  if (keys == set.given().end()) return absl::OkStatus();
  for (const std::string& key : keys->second) {
    if (!FitsKeyFile(key))
      return absl::InvalidArgumentError(
          "--api-key: a key is one line that begins with no '#', ends with no space and has no '=' in a "
          "last word of several");
  }
  std::string text = absl::StrJoin(keys->second, "\n");
  if (!key_file.empty()) {
    BATON_ASSIGN_OR_RETURN(std::ifstream in, OpenToRead(key_file, "--api-key-file"));
    text += '\n';
    text.append(std::istreambuf_iterator<char>(in), {});
  }
  BATON_ASSIGN_OR_RETURN(const std::string file, NamelessFile(text));
  router_argv.push_back("--api-key-file=" + file);
  set.Forget("api-key");
  if (!key_file.empty()) set.Forget("api-key-file");
  return absl::OkStatus();
}

// Without an authority the workers, which are on loopback here, speak plain text: the certificate is for clients.
bool WorkersSpeakTls(const ServeFlags& flags) { return !flags.router_config.tls_files.ca.empty(); }

ChildSpec WorkerSpec(const ServeFlags& flags, const std::string& role, int index, const net::HostPort& at) {
  const ServeConfig& serve = flags.serve;
  const int local_workers = serve.prefill + serve.decode + serve.both;
  ChildSpec spec{.name = StrCat(role == "both" ? "worker" : role, "-", index), .restart = serve.restart};
  spec.argv = {"worker",        "--role",  role,        "--host",      at.host,  "--port",
               StrCat(at.port), "--model", serve.model, "--worker-id", spec.name};
  if (!flags.set.given().contains("local-workers")) spec.argv.push_back(StrCat("--local-workers=", local_workers));
  for (const std::string& name : flags.serve.served_model_name) spec.argv.push_back("--served-model-name=" + name);
  AppendGiven(flags.set, "worker", spec.argv);
  if (!WorkersSpeakTls(flags)) {
    std::erase_if(spec.argv, [](const std::string& arg) {
      return arg.starts_with("--tls-cert=") || arg.starts_with("--tls-key=");
    });
  }
  if (role != "both") AppendGiven(flags.set, StrCat("workers of --", role), spec.argv, role + ".");
  return spec;
}

// `router_flags`: what the router's flags are given beside those of the command line.
ChildSpec RouterSpec(const ServeFlags& flags, const std::vector<net::HostPort>& workers,
                     const std::vector<std::string>& router_flags) {
  ChildSpec spec{.name = "router", .restart = flags.serve.restart, .front = true};
  spec.argv = {"router", "--model", flags.serve.model};
  for (const net::HostPort& one : workers) spec.argv.push_back("--worker=" + net::JoinHostPort(one.host, one.port));
  for (const std::string& name : flags.serve.served_model_name) spec.argv.push_back("--served-model-name=" + name);
  if (!flags.ready.ready_file.empty()) spec.argv.push_back("--ready-file=" + flags.ready.ready_file);
  AppendGiven(flags.set, "router", spec.argv);
  spec.argv.insert(spec.argv.end(), router_flags.begin(), router_flags.end());
  return spec;
}

// Which flag moves a port that is taken: all three follow --port unless they were named.
std::string PortFlagHint(const ServeFlags& flags, const std::string& name) {
  const bool follows = name == "port" || !flags.set.given().contains(name);
  return follows ? StrCat("--", name, "; --port N moves all of a cluster's: N, N + 1 and N + 2") : StrCat("--", name);
}

// The router's ports as flags, with the numbers that were found where any free one was asked for.
absl::StatusOr<std::vector<std::string>> TakeRouterPorts(ServeFlags& flags, Ports& ports) {
  const router::RouterConfig& config = flags.router_config;
  std::vector<std::string> out;
  for (const auto& [name, port] : {std::pair{"port", config.port}, std::pair{"grpc-port", config.grpc_port},
                                   std::pair{"admin-port", config.admin_port}}) {
    int taken = port;
    if (port >= 0) {
      BATON_ASSIGN_OR_RETURN(taken, ports.Take(config.host, port, PortFlagHint(flags, name)));
    }
    out.push_back(StrCat("--", name, "=", taken));
    flags.set.Forget(name);
  }
  return out;
}

// What a worker of this role will read from its command line.
worker::WorkerConfig WorkerConfigOf(const ServeFlags& flags, const std::string& role) {
  worker::WorkerConfig config = flags.worker_config;
  config.model = flags.serve.model;
  config.role = role;
  if (!WorkersSpeakTls(flags)) config.tls_files = {};
  FlagSet set;
  set.Add(config, "worker");
  for (const Flag& flag : set.flags()) {
    const auto given = flags.set.given().find(StrCat(role, ".", flag.name));
    if (given != flags.set.given().end()) flag.set(given->second).IgnoreError();  // was read once, without a fault
  }
  return config;
}

absl::Status CheckStart(const ServeFlags& flags) {
  router::RouterConfig router = flags.router_config;
  router.model = flags.serve.model;
  BATON_RETURN_IF_ERROR(CheckRouterStart(router));
  for (const auto& [role, count] : {std::pair{"decode", flags.serve.decode}, std::pair{"prefill", flags.serve.prefill},
                                    std::pair{"both", flags.serve.both}}) {
    if (count == 0) continue;
    const worker::WorkerConfig worker = WorkerConfigOf(flags, role);
    BATON_RETURN_IF_ERROR(CheckTogether(router, worker));
    BATON_RETURN_IF_ERROR(CheckWorkerStart(worker));
  }
  return CheckReadyFile(flags.ready.ready_file);
}

// What every child is given in a file: the key of prefix hashes and the cluster's secret, unless there are files of
// them.
absl::StatusOr<std::vector<std::string>> SharedFiles(const ServeFlags& flags) {
  std::vector<std::string> out;
  if (!flags.set.given().contains("hash-key-file")) {
    BATON_ASSIGN_OR_RETURN(const HashKey key, HashKey::Random());
    BATON_ASSIGN_OR_RETURN(const std::string file, NamelessFile(key.Hex()));
    out.push_back("--hash-key-file=" + file);
  }
  if (!flags.set.given().contains("cluster-secret-file")) {
    BATON_ASSIGN_OR_RETURN(const std::string file, NamelessFile(trust::ClusterSecret::NewText()));
    out.push_back("--cluster-secret-file=" + file);
  }
  return out;
}

absl::Status StartAll(ServeFlags& flags, Ports& ports, Supervisor& supervisor) {
  BATON_ASSIGN_OR_RETURN(const std::vector<std::string> shared, SharedFiles(flags));
  auto start = [&](ChildSpec spec) {
    spec.argv.insert(spec.argv.end(), shared.begin(), shared.end());
    return supervisor.Start(std::move(spec));
  };
  BATON_ASSIGN_OR_RETURN(std::vector<std::string> router_flags, TakeRouterPorts(flags, ports));
  const std::string host = net::LoopbackHost();
  std::vector<net::HostPort> workers;
  for (const auto& [role, count] : {std::pair{"decode", flags.serve.decode}, std::pair{"prefill", flags.serve.prefill},
                                    std::pair{"both", flags.serve.both}}) {
    for (int i = 0; i < count; ++i) {
      BATON_ASSIGN_OR_RETURN(const int port, ports.Take(host, 0, "a worker's"));
      workers.push_back({host, static_cast<uint16_t>(port)});
      BATON_RETURN_IF_ERROR(start(WorkerSpec(flags, role, i, workers.back())));
    }
  }
  BATON_RETURN_IF_ERROR(HideApiKeys(flags.set, flags.router_config.api_key_file, router_flags));
  return start(RouterSpec(flags, workers, router_flags));
}

absl::Status CheckServe(ServeConfig& serve) {
  BATON_RETURN_IF_ERROR(CheckFields(serve));
  if (serve.prefill > 0 && serve.decode == 0) {
    return absl::InvalidArgumentError(
        StrCat("--prefill ", serve.prefill, " needs --decode: somebody must take the KV"));
  }
  if (serve.prefill + serve.decode + serve.both == 0) serve.both = 1;
  return absl::OkStatus();
}

int RunServe(ServeFlags& flags) {
  if (flags.set.explains()) {
    if (flags.set.status().ok()) FollowPort(flags.set, flags.router_config);
    return Explain(flags.set);
  }
  if (!flags.set.status().ok()) return FailUsage(flags.set.status());
  if (absl::Status status = CheckServe(flags.serve); !status.ok()) return FailUsage(status);
  FollowPort(flags.set, flags.router_config);
  if (absl::Status status = CheckStart(flags); !status.ok()) return Fail(status);
  SetLogLevel(flags.router_config.log_level);
  SetLogFormat(flags.router_config.log_format);
  SetLogName("serve");
  // Children get what was read as arguments; the same variables would mean other things to them.
  for (const Flag& flag : flags.set.flags()) ForgetVariable(EnvironmentName(flag.name));
  ForgetVariable(EnvironmentName("config"));
  const SteadyClock clock;
  Ports ports;  // outlives the children
  Supervisor supervisor(clock);
  if (absl::Status status = StartAll(flags, ports, supervisor); !status.ok()) return Fail(status);
  return supervisor.Run(std::chrono::milliseconds(flags.router_config.shutdown_timeout_ms) + std::chrono::seconds(2));
}

}  // namespace

Runner AddServe(CLI::App& app) {
  auto flags = std::make_shared<ServeFlags>();
  flags->set.Add(flags->serve, "serve");
  flags->set.Add(flags->ready, "process");
  flags->set.Add(flags->router_config, "router", kNotForRouter);
  flags->set.Add(flags->worker_config, "worker", kNotForWorker);
  flags->set.Add(flags->prefill_config, "workers of --prefill", kNotForWorker, "prefill.");
  flags->set.Add(flags->decode_config, "workers of --decode", kNotForWorker, "decode.");
  AddConfigFile(app, flags->set, flags->config_file);
  flags->set.Attach(app, "model");
  return [flags] { return RunServe(*flags); };
}

}  // namespace baton::cli
