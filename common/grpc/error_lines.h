// What gRPC says by itself of what peers send, in our log: strangers cause it and write some of its words.
#pragma once

#include <grpc/support/log.h>

#include <string_view>

namespace baton::net {

/// An error of gRPC's: a line, without control characters, at most one a second; the next one tells how many were left
/// out. Any thread.
void LogGrpcError(std::string_view text);

/// gRPC's log goes there from now on, of all of the process; TakeGrpcErrors leaves it.
void SetGrpcLog(gpr_log_func log);
/// gRPC's errors go to LogGrpcError from now on, unless SetGrpcLog was called.
void TakeGrpcErrors();

}  // namespace baton::net
