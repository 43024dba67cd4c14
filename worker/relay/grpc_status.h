// What a worker's gRPC services answer for a status of its own.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"
#include "common/str_cat.h"

namespace baton::worker {

/// The codes are the same numbers.
inline grpc::Status ToGrpc(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), std::string(View(status.message()))};
}

}  // namespace baton::worker
