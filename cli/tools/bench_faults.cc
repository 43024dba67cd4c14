#include "cli/tools/bench_faults.h"

#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "cli/foreign_json.h"
#include "cli/tools/listener_process.h"
#include "common/json.h"
#include "common/shallow_json.h"
#include "common/status.h"
#include "common/str_cat.h"

namespace baton::cli {
namespace {

using nlohmann::json;

constexpr auto kMostWait = std::chrono::seconds(30);

/// A process that is told from a later one with its number.
class ProcessHandle {
 public:
  explicit ProcessHandle(int fd) : fd_(fd) {}
  ProcessHandle(const ProcessHandle&) = delete;
  ProcessHandle& operator=(const ProcessHandle&) = delete;
  ~ProcessHandle() { close(fd_); }

  absl::Status Kill() const {
    if (syscall(SYS_pidfd_send_signal, fd_, SIGKILL, nullptr, 0) == 0) return absl::OkStatus();
    return absl::FailedPreconditionError(StrCat("SIGKILL: ", std::strerror(errno)));
  }

 private:
  const int fd_;
};

absl::StatusOr<HttpUrl> AdminOf(const load::BenchOptions& o, const HttpUrl& server) {
  if (!o.admin_url.empty()) {
    absl::StatusOr<HttpUrl> named = ParseHttpUrl(o.admin_url);
    if (!named.ok()) return absl::InvalidArgumentError(StrCat("--admin-url: ", View(named.status().message())));
    HttpUrl url = *std::move(named);
    url.files = {o.tls_cert, o.tls_key, o.tls_ca};
    return url;
  }
  HttpUrl url = server;
  int port = 0;
  if (!absl::SimpleAtoi(server.port, &port) || port + 2 > 65535)
    return absl::InvalidArgumentError(StrCat("--kill: the router's admin port would be port ", server.port,
                                             " + 2, of 65535: name it with --admin-url"));
  url.port = StrCat(port + 2);
  return url;
}

// Where a ready worker with this name, or with this role, serves; nullopt: there is none now. NotFound, with those that
// there are: all are ready, and none is called so.
absl::StatusOr<std::optional<std::string>> AddressOf(const std::string& worker, const HttpUrl& admin,
                                                     const std::string& api_key) {
  BATON_ASSIGN_OR_RETURN(const HttpResponse response, HttpGet(admin, "/workers", api_key));
  const json body = ShallowJson(response.body);
  if (response.status != 200 || !body.is_object())
    return absl::UnavailableError(StrCat("--kill: ", AuthorityOf(admin), "/workers answers ", response.status,
                                         ": --admin-url names the router's admin port (--port + 2)"));
  bool may_come = false;
  std::vector<std::string> others;
  for (const json& one : ListOf(body, "workers")) {
    const bool named = TextOf(one, "name") == worker || TextOf(one, "role") == worker;
    const bool ready = IsTrue(one, "takes_requests");
    if (named && ready) return TextOf(one, "address");
    may_come |= named || !ready;
    others.push_back(StrCat(ShownTextOf(one, "name"), " (", ShownTextOf(one, "role"), ")"));
  }
  if (may_come) return std::nullopt;
  return absl::NotFoundError(StrCat("--kill: there is no worker ", worker, "; there are ",
                                    others.empty() ? "none" : absl::StrJoin(others, ", ")));
}

absl::StatusOr<std::shared_ptr<ProcessHandle>> FindWorker(const std::string& worker, const HttpUrl& admin,
                                                          const std::string& api_key) {
  const auto until = std::chrono::steady_clock::now() + kMostWait;
  for (;;) {
    BATON_ASSIGN_OR_RETURN(const std::optional<std::string> address, AddressOf(worker, admin, api_key));
    if (address) {
      BATON_ASSIGN_OR_RETURN(const int pid, ListenerProcess(*address));
      const auto fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
      if (fd >= 0) return std::make_shared<ProcessHandle>(fd);
    }
    if (std::chrono::steady_clock::now() >= until)
      return absl::FailedPreconditionError(
          StrCat("--kill ", worker, ": no ready worker has this name or role (GET /workers of the admin port)"));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

}  // namespace

absl::Status Commands::Run(const std::string& command) {
  const char* const arguments[] = {"/bin/sh", "-c", command.c_str(), nullptr};
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t usual;  // this process ignores some
  sigfillset(&usual);
  posix_spawnattr_setsigdefault(&attributes, &usual);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, arguments[0], nullptr, &attributes, const_cast<char* const*>(arguments), environ);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) return absl::InternalError(StrCat("/bin/sh: ", std::strerror(error)));
  running_.push_back(pid);
  return absl::OkStatus();
}

void Commands::Reap() {
  std::erase_if(running_, [](pid_t pid) {
    int status = 0;
    if (waitpid(pid, &status, WNOHANG) == 0) return false;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
      std::fprintf(stderr, "--at: a command ended with %s %d\n", WIFEXITED(status) ? "exit code" : "signal",
                   WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    return true;
  });
}

absl::StatusOr<std::vector<load::Fault>> FindFaults(const load::BenchOptions& o, const HttpUrl& server,
                                                    Commands& commands) {
  std::vector<load::Fault> out;
  for (const std::string& text : o.kill) {
    BATON_ASSIGN_OR_RETURN(const load::KillWish wish, load::ParseKill(text));
    BATON_ASSIGN_OR_RETURN(const HttpUrl admin, AdminOf(o, server));
    BATON_ASSIGN_OR_RETURN(const auto process, FindWorker(wish.worker, admin, o.api_key));
    out.push_back({wish.at, StrCat("kill ", wish.worker), [process] { return process->Kill(); }});
  }
  for (const std::string& text : o.at) {
    BATON_ASSIGN_OR_RETURN(const load::CommandWish wish, load::ParseCommand(text));
    out.push_back({wish.at, wish.command, [&commands, command = wish.command] { return commands.Run(command); }});
  }
  return out;
}

}  // namespace baton::cli
