// What the gRPC calls of a wire share: statuses, what metadata may say, and a count of calls that may still call back.
#pragma once

#include <grpcpp/support/status.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"

namespace baton::router {

inline absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

/// An incarnation as metadata says it; empty, which means whoever answers: gRPC ends a process that would send anything
/// but graphic ASCII. A worker's own has sixteen digits.
inline std::string SaidIncarnation(const std::string& incarnation) {
  constexpr size_t kMost = 128;  // bytes
  return incarnation.size() <= kMost && std::ranges::all_of(incarnation, absl::ascii_isgraph) ? incarnation : "";
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
