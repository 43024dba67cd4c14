// absl::Status with the two macros the project uses. Messages state values: "need 12 KV blocks, 7 free".
//
// The code is chosen for what the caller should do, and is sent unchanged over gRPC:
//   InvalidArgument   the request or file is wrong; retrying it cannot help
//   NotFound          the named thing does not exist
//   ResourceExhausted a bounded queue or pool is full; try later or elsewhere
//   Unavailable       the peer is gone, draining or loading; try elsewhere
//   DeadlineExceeded, Cancelled   as they say
//   DataLoss          bytes failed verification
//   FailedPrecondition the feature or hardware is not there
//   Internal          our bug
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/str_cat.h"

#define BATON_CONCAT_INNER(a, b) a##b
#define BATON_CONCAT(a, b) BATON_CONCAT_INNER(a, b)

/// Returns the status from the enclosing function unless it is OK.
#define BATON_RETURN_IF_ERROR(expr)                                                    \
  do {                                                                                 \
    if (::absl::Status baton_status = (expr); !baton_status.ok()) return baton_status; \
  } while (false)

/// BATON_ASSIGN_OR_RETURN(auto x, F()): declares x from a StatusOr, or returns its status.
#define BATON_ASSIGN_OR_RETURN(lhs, expr) BATON_ASSIGN_OR_RETURN_INNER(BATON_CONCAT(baton_or_, __LINE__), lhs, expr)
#define BATON_ASSIGN_OR_RETURN_INNER(var, lhs, expr) \
  auto var = (expr);                                 \
  if (!var.ok()) return std::move(var).status();     \
  lhs = std::move(var).value()
