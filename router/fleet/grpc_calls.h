// What the gRPC calls of a wire share: statuses, and a count of calls that may still call back.
#pragma once

#include <grpcpp/support/status.h>

#include <condition_variable>
#include <mutex>

#include "absl/status/status.h"

namespace baton::router {

inline absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

/// Lets Shutdown wait for the calls that may still call back. Thread-safe.
class CallCount {
 public:
  void Add() {
    std::lock_guard lock(mutex_);
    ++count_;
  }
  void Done() {
    std::lock_guard lock(mutex_);
    if (--count_ == 0) zero_.notify_all();
  }
  void WaitZero() {
    std::unique_lock lock(mutex_);
    zero_.wait(lock, [this] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable zero_;
  int count_ = 0;
};

}  // namespace baton::router
