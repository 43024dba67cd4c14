// `baton serve`: router and workers as child processes on one machine.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "cli/command.h"
#include "cli/exit_code.h"
#include "cli/flag_set.h"
#include "cli/supervisor.h"
#include "common/prefix_hash.h"
#include "common/status.h"
#include "router/router_config.h"
#include "spdlog/spdlog.h"
#include "worker/worker_config.h"

namespace baton::cli {
namespace {

// Set here for every child, so not flags of `serve` (or flags with a meaning of serve's own).
const std::vector<std::string> kNotForRouter = {"model", "served-model-name", "worker"};
const std::vector<std::string> kNotForWorker = {"host", "port", "model", "served-model-name", "role"};

struct ServeFlags {
  std::string model;
  std::vector<std::string> served_model_name;
  int prefill = 0, decode = 0, both = 0;
  bool restart = true;
  std::string ready_file;
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

// A hash key that every child reads, also after a restart: a file that lives as long as
// this process does and has no name.
absl::StatusOr<std::string> SharedHashKeyFile() {
  BATON_ASSIGN_OR_RETURN(const HashKey key, HashKey::Random());
  constexpr int kFirstFd = 10;  // below are the descriptors that a child finds set for it
  const int unplaced = memfd_create("baton-hash-key", MFD_CLOEXEC);
  const int fd = fcntl(unplaced, F_DUPFD, kFirstFd);  // without CLOEXEC: children inherit it
  close(unplaced);
  const std::string hex = key.Hex();
  if (fd < 0 || write(fd, hex.data(), hex.size()) != static_cast<ssize_t>(hex.size())) {
    return absl::UnavailableError(StrCat("cannot keep a hash key in memory: ", std::strerror(errno)));
  }
  return StrCat("/proc/self/fd/", fd);
}

ChildSpec WorkerSpec(const ServeFlags& flags, const std::string& role, int index, int port) {
  const int local_workers = flags.prefill + flags.decode + flags.both;
  ChildSpec spec{.name = StrCat(role == "both" ? "worker" : role, "-", index), .restart = flags.restart};
  spec.argv = {"worker", "--role", role, "--host", "127.0.0.1", "--port", StrCat(port), "--model", flags.model};
  if (!flags.set.given().contains("local-workers")) spec.argv.push_back(StrCat("--local-workers=", local_workers));
  for (const std::string& name : flags.served_model_name) spec.argv.push_back("--served-model-name=" + name);
  AppendGiven(flags.set, "worker", spec.argv);
  if (role != "both") AppendGiven(flags.set, StrCat("workers of --", role), spec.argv, role + ".");
  return spec;
}

ChildSpec RouterSpec(const ServeFlags& flags, const std::vector<int>& worker_ports) {
  ChildSpec spec{.name = "router"};
  spec.argv = {"router", "--model", flags.model};
  for (int port : worker_ports) spec.argv.push_back(StrCat("--worker=127.0.0.1:", port));
  for (const std::string& name : flags.served_model_name) spec.argv.push_back("--served-model-name=" + name);
  if (!flags.ready_file.empty()) spec.argv.push_back("--ready-file=" + flags.ready_file);
  AppendGiven(flags.set, "router", spec.argv);
  return spec;
}

absl::Status StartAll(const ServeFlags& flags, Supervisor& supervisor) {
  std::string key_flag;
  if (!flags.set.given().contains("hash-key-file")) {
    BATON_ASSIGN_OR_RETURN(const std::string file, SharedHashKeyFile());
    key_flag = "--hash-key-file=" + file;
  }
  auto start = [&](ChildSpec spec) {
    if (!key_flag.empty()) spec.argv.push_back(key_flag);
    return supervisor.Start(std::move(spec));
  };
  std::vector<int> ports;
  for (const auto& [role, count] :
       {std::pair{"decode", flags.decode}, std::pair{"prefill", flags.prefill}, std::pair{"both", flags.both}}) {
    for (int i = 0; i < count; ++i) {
      BATON_ASSIGN_OR_RETURN(int port, FreePort());
      ports.push_back(port);
      BATON_RETURN_IF_ERROR(start(WorkerSpec(flags, role, i, port)));
    }
  }
  return start(RouterSpec(flags, ports));
}

int RunServe(ServeFlags& flags) {
  if (!flags.set.status().ok()) return FailUsage(flags.set.status());
  if (flags.prefill < 0 || flags.decode < 0 || flags.both < 0) {
    return FailUsage(absl::InvalidArgumentError(StrCat("--prefill ", flags.prefill, " --decode ", flags.decode,
                                                       " --both ", flags.both, ": none may be negative")));
  }
  if (flags.prefill > 0 && flags.decode == 0) {
    return FailUsage(
        absl::InvalidArgumentError(StrCat("--prefill ", flags.prefill, " needs --decode: somebody must take the KV")));
  }
  if (flags.prefill + flags.decode + flags.both == 0) flags.both = 1;
  const SteadyClock clock;
  Supervisor supervisor(clock);
  if (absl::Status status = StartAll(flags, supervisor); !status.ok()) return Fail(status);
  return supervisor.Run(std::chrono::milliseconds(flags.router_config.shutdown_timeout_ms) + std::chrono::seconds(2));
}

}  // namespace

Runner AddServe(CLI::App& app) {
  auto flags = std::make_shared<ServeFlags>();
  app.add_option("model,--model", flags->model, "HF directory or .gguf file")->required()->envname("BATON_MODEL");
  app.add_option("--served-model-name", flags->served_model_name, "names clients use (default: the model's base name)");
  app.add_option("--prefill", flags->prefill, "workers that compute prompts and hand their KV over");
  app.add_option("--decode", flags->decode, "workers that take KV and decode");
  app.add_option("--both", flags->both, "workers that do everything (default: 1, unless there are others)");
  app.add_flag("--restart,!--no-restart", flags->restart,
               "restart a worker that dies, after 0.2 s doubling to 5 s (default)");
  app.add_option("--ready-file", flags->ready_file, "written with the addresses once a worker is ready");
  flags->set.Add(flags->router_config, "router", kNotForRouter);
  flags->set.Add(flags->worker_config, "worker", kNotForWorker);
  flags->set.Add(flags->prefill_config, "workers of --prefill", kNotForWorker, "prefill.");
  flags->set.Add(flags->decode_config, "workers of --decode", kNotForWorker, "decode.");
  AddConfigFile(app, flags->set, flags->config_file);
  flags->set.Attach(app);
  return [flags] { return RunServe(*flags); };
}

}  // namespace baton::cli
