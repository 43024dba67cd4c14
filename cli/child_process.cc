#include "cli/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <unistd.h>

#include <string_view>

#include "common/errno_text.h"
#include "common/str_cat.h"

extern char** environ;

namespace baton::cli {
namespace {

constexpr int kFailureFd = 3;

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

// This process's own, without what its parent told it alone.
void AppendEnvironment(std::vector<std::string>& out) {
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string_view variable = *e;
    if (!variable.starts_with("BATON_PARENT_PID=") && !variable.starts_with("BATON_FAILURE_FD="))
      out.emplace_back(variable);
  }
}

}  // namespace

absl::StatusOr<pid_t> StartChild(ChildStart start) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (start.failure_pipe >= 0) posix_spawn_file_actions_adddup2(&actions, start.failure_pipe, kFailureFd);
  if (start.silent) {
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  }
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);

  start.arguments.insert(start.arguments.begin(), "baton");
  start.environment.push_back(StrCat("BATON_PARENT_PID=", getpid()));
  if (start.failure_pipe >= 0) start.environment.push_back(StrCat("BATON_FAILURE_FD=", kFailureFd));
  AppendEnvironment(start.environment);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, start.program.c_str(), &actions, &attributes, Pointers(start.arguments).data(),
                                Pointers(start.environment).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return absl::UnavailableError(ErrnoText(error));
  return pid;
}

}  // namespace baton::cli
