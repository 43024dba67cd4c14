#include "cli/exit_code.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "cli/environment.h"
#include "common/rank_loss.h"

namespace baton::cli {
namespace {

int PrintAndReturn(const absl::Status& status, int code) {
  std::fflush(stdout);
  const std::string message(status.message());
  std::fprintf(stderr, "baton: %s\n", message.c_str());
  if (const std::optional<std::string> fd = Environment("BATON_FAILURE_FD")) {
    [[maybe_unused]] const ssize_t written = write(std::atoi(fd->c_str()), message.data(), message.size());
  }
  return code;
}

}  // namespace

int ExitCodeOf(const absl::Status& status) {
  if (IsRankLoss(status)) return kExitRankLost;
  switch (status.code()) {
    case absl::StatusCode::kOk: return kExitOk;
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnimplemented: return kExitUsage;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kDataLoss: return kExitModel;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kAlreadyExists: return kExitAddress;
    case absl::StatusCode::kResourceExhausted: return kExitMemory;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded: return kExitUnreachable;
    default: return kExitBug;
  }
}

int Fail(const absl::Status& status) { return PrintAndReturn(status, ExitCodeOf(status)); }
int FailUsage(const absl::Status& status) { return PrintAndReturn(status, kExitUsage); }

}  // namespace baton::cli
