// `baton` starts itself as a child: the processes of `baton serve`, ranks of a worker, clusters of `baton bench`.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::cli {

struct ChildStart {
  std::vector<std::string> arguments;         ///< without the program: "rank", "--rank=1"
  std::string program = "/proc/self/exe";     ///< this process's own, also once its file has been replaced
  std::vector<std::string> environment = {};  ///< NAME=value, before this process's own
  int failure_pipe = -1;  ///< its write end, open there as 3 and named by BATON_FAILURE_FD; -1: none
  bool silent = false;    ///< nothing stands on its standard input, and its standard output leads nowhere
};

/// Its process id. The child is in a process group of its own (Ctrl-C reaches this process, which ends it), blocks no
/// signal, and ends when this process does, whose id it learns by BATON_PARENT_PID. Call it on a thread that stays.
/// Unavailable: the system starts none.
absl::StatusOr<pid_t> StartChild(ChildStart start);

}  // namespace baton::cli
