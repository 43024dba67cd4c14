// `baton serve`: router and workers as child processes on one machine.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "absl/strings/str_join.h"
#include "cli/command.h"
#include "cli/environment.h"
#include "cli/exit_code.h"
#include "cli/flag_set.h"
#include "cli/process_flags.h"
#include "cli/serve_config.h"
#include "cli/supervisor.h"
#include "common/errno_text.h"
#include "common/log.h"
#include "common/prefix_hash.h"
#include "common/status.h"
#include "router/router_config.h"
#include "worker/worker_config.h"

namespace baton::cli {
namespace {

// Set here for every child, so not flags of `serve` (or flags with a meaning of serve's own).
const std::vector<std::string> kNotForRouter = {"model", "served-model-name", "worker"};
const std::vector<std::string> kNotForWorker = {"host", "port", "model", "served-model-name", "role"};
constexpr int kFirstFd = 10;  // descriptors for children: below are those that a child finds set for it

struct ServeFlags {
  ServeConfig serve;
  ReadyConfig ready;
  std::string config_file;
  router::RouterConfig router_config;
  worker::WorkerConfig worker_config, prefill_config, decode_config;
  FlagSet set;
};

// A loopback port that is free now.
absl::StatusOr<int> FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const bool bound = fd >= 0 && bind(fd, generic, length) == 0 && getsockname(fd, generic, &length) == 0;
  if (fd >= 0) close(fd);
  if (!bound) return absl::PermissionDeniedError("no free port on 127.0.0.1");
  return static_cast<int>(ntohs(address.sin_port));
}

// A file that every child can read, also after a restart: it lives as long as this process does and has no name.
absl::StatusOr<std::string> NamelessFile(const std::string& text) {
  const int unplaced = memfd_create("baton", MFD_CLOEXEC);
  const int fd = fcntl(unplaced, F_DUPFD, kFirstFd);  // without CLOEXEC: children inherit it
  close(unplaced);
  if (fd < 0 || write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return absl::UnavailableError(StrCat("cannot keep a file in memory: ", ErrnoText()));
  }
  return StrCat("/proc/self/fd/", fd);
}

// Keys go to the router in a file: everybody on the machine can read a command line. The flags stay where a file cannot
// say the same.
absl::Status HideApiKeys(FlagSet& set, std::vector<std::string>& router_argv) {
  const auto keys = set.given().find("api-key");
  if (keys == set.given().end() || set.given().contains("api-key-file")) return absl::OkStatus();
  for (const std::string& key : keys->second) {
    const bool plain = !key.empty() && key.find_first_of(" \t\r\n") == std::string::npos && key[0] != '#';
    if (!plain) return absl::OkStatus();
  }
  BATON_ASSIGN_OR_RETURN(const std::string file, NamelessFile(absl::StrJoin(keys->second, "\n")));
  router_argv.push_back("--api-key-file=" + file);
  set.Forget("api-key");
  return absl::OkStatus();
}

ChildSpec WorkerSpec(const ServeFlags& flags, const std::string& role, int index, int port) {
  const ServeConfig& serve = flags.serve;
  const int local_workers = serve.prefill + serve.decode + serve.both;
  ChildSpec spec{.name = StrCat(role == "both" ? "worker" : role, "-", index), .restart = serve.restart};
  spec.argv = {"worker", "--role", role, "--host", "127.0.0.1", "--port", StrCat(port), "--model", serve.model};
  if (!flags.set.given().contains("local-workers")) spec.argv.push_back(StrCat("--local-workers=", local_workers));
  for (const std::string& name : flags.serve.served_model_name) spec.argv.push_back("--served-model-name=" + name);
  AppendGiven(flags.set, "worker", spec.argv);
  if (role != "both") AppendGiven(flags.set, StrCat("workers of --", role), spec.argv, role + ".");
  return spec;
}

ChildSpec RouterSpec(const ServeFlags& flags, const std::vector<int>& worker_ports) {
  ChildSpec spec{.name = "router"};
  spec.argv = {"router", "--model", flags.serve.model};
  for (int port : worker_ports) spec.argv.push_back(StrCat("--worker=127.0.0.1:", port));
  for (const std::string& name : flags.serve.served_model_name) spec.argv.push_back("--served-model-name=" + name);
  if (!flags.ready.ready_file.empty()) spec.argv.push_back("--ready-file=" + flags.ready.ready_file);
  AppendGiven(flags.set, "router", spec.argv);
  return spec;
}

absl::Status StartAll(ServeFlags& flags, Supervisor& supervisor) {
  std::string key_flag;
  if (!flags.set.given().contains("hash-key-file")) {
    BATON_ASSIGN_OR_RETURN(const HashKey key, HashKey::Random());
    BATON_ASSIGN_OR_RETURN(const std::string file, NamelessFile(key.Hex()));
    key_flag = "--hash-key-file=" + file;
  }
  auto start = [&](ChildSpec spec) {
    if (!key_flag.empty()) spec.argv.push_back(key_flag);
    return supervisor.Start(std::move(spec));
  };
  std::vector<int> ports;
  for (const auto& [role, count] : {std::pair{"decode", flags.serve.decode}, std::pair{"prefill", flags.serve.prefill},
                                    std::pair{"both", flags.serve.both}}) {
    for (int i = 0; i < count; ++i) {
      BATON_ASSIGN_OR_RETURN(int port, FreePort());
      ports.push_back(port);
      BATON_RETURN_IF_ERROR(start(WorkerSpec(flags, role, i, port)));
    }
  }
  std::vector<std::string> key_file;
  BATON_RETURN_IF_ERROR(HideApiKeys(flags.set, key_file));
  ChildSpec router = RouterSpec(flags, ports);
  router.argv.insert(router.argv.end(), key_file.begin(), key_file.end());
  return start(std::move(router));
}

absl::Status CheckServe(ServeConfig& serve) {
  if (serve.model.empty()) return absl::InvalidArgumentError("--model is required: an HF directory or a .gguf file");
  if (serve.prefill < 0 || serve.decode < 0 || serve.both < 0) {
    return absl::InvalidArgumentError(StrCat("--prefill ", serve.prefill, " --decode ", serve.decode, " --both ",
                                             serve.both, ": none may be negative"));
  }
  if (serve.prefill > 0 && serve.decode == 0) {
    return absl::InvalidArgumentError(
        StrCat("--prefill ", serve.prefill, " needs --decode: somebody must take the KV"));
  }
  if (serve.prefill + serve.decode + serve.both == 0) serve.both = 1;
  return absl::OkStatus();
}

int RunServe(ServeFlags& flags) {
  if (!flags.set.status().ok()) return FailUsage(flags.set.status());
  if (absl::Status status = CheckServe(flags.serve); !status.ok()) return FailUsage(status);
  // Children get what was read as arguments; the same variables would mean other things to them.
  for (const Flag& flag : flags.set.flags()) ForgetVariable(EnvironmentName(flag.name));
  ForgetVariable(EnvironmentName("config"));
  const SteadyClock clock;
  Supervisor supervisor(clock);
  if (absl::Status status = StartAll(flags, supervisor); !status.ok()) return Fail(status);
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
