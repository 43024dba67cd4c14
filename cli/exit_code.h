// Exit codes by class, and the one way a command ends in failure: the root cause as the last line.
#pragma once

#include "absl/status/status.h"
#include "common/device_failure.h"

namespace baton::cli {

enum ExitCode : int {
  kExitOk = 0,
  kExitCutOff = 1,                       ///< stopped as asked, but the drain ran out of time: requests were cut off
  kExitUsage = 2,                        ///< flags or config
  kExitModel = 3,                        ///< model or file bad
  kExitAddress = 4,                      ///< address in use or not permitted
  kExitMemory = 5,                       ///< not enough memory or disk
  kExitUnreachable = 6,                  ///< peer or worker unreachable
  kExitRankLost = 7,                     ///< a rank of the worker is lost: every other one ends too
  kExitDevice = kDeviceFailureExitCode,  ///< 8: the GPU failed while the worker ran
  kExitBug = 70,                         ///< ours
};

/// The class of a status: a RankLoss → 7; else by its code: FailedPrecondition | Unimplemented → 2; InvalidArgument |
/// NotFound | DataLoss → 3; PermissionDenied | AlreadyExists (address) → 4; ResourceExhausted → 5; Unavailable |
/// DeadlineExceeded → 6; else 70.
int ExitCodeOf(const absl::Status& status);

/// Prints "baton: MESSAGE" as the last line of stderr, tells the supervisor when there is one (the descriptor in
/// BATON_FAILURE_FD), and returns the exit code.
int Fail(const absl::Status& status);
/// As Fail, always kExitUsage.
int FailUsage(const absl::Status& status);

}  // namespace baton::cli
