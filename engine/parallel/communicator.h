// The talk between the ranks of one worker: collectives over a group of ranks, and messages between two of them.
//
// Every rank has one Communicator of the group and calls the same collectives in the same order; that is the only
// matching there is. A rank's calls come from one thread at a time (its executor's); Abort may come from any.
//
// Calls block until their part is done. They never hang on a rank that is gone: its end (its process died, or its
// Communicator was destroyed) is Unavailable for everybody who waits for it, and a call whose length is not what the
// other side has is Internal with both numbers. After an error the group is broken: every later call fails the same.
//
// Buffers are memory of the rank's Ops. Of ranks that compute on devices (device_communicator.h) calls are enqueued:
// what they bring is there after Ops::Sync, and what goes wrong meanwhile is in health().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "absl/status/status.h"

namespace baton::engine {

class Communicator {
 public:
  Communicator(int rank, int size) : rank_(rank), size_(size) {}
  /// This rank leaves the group.
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Matches one Recv of the same length by rank `to`. It may wait for that Recv.
  virtual absl::Status Send(int to, std::span<const std::byte> data) = 0;
  virtual absl::Status Recv(int from, std::span<std::byte> data) = 0;
  /// `data` of `root` becomes everybody's.
  virtual absl::Status Broadcast(int root, std::span<std::byte> data) = 0;
  /// all = the ranks' `mine`, in rank order. all.size() = size() · mine.size(). Returns once every rank has called it.
  virtual absl::Status AllGather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
  /// data = the element-wise sum of the ranks' data, added as one binary tree in rank order (see tree_sum.h), so that
  /// it has the same bits on every rank and every backend. Returns once every rank has called it, so an empty `data` is
  /// a barrier.
  virtual absl::Status TreeAllReduce(std::span<float> data) = 0;

  /// Whether buffers are a device's, and calls go behind what its Ops was asked for. Else the Ops must be done first.
  virtual bool on_device() const { return false; }
  /// Sums of up to `floats` take no memory afterwards. ResourceExhausted with both numbers.
  virtual absl::Status Reserve(int64_t floats) {
    static_cast<void>(floats);
    return absl::OkStatus();
  }
  /// Not OK: what calls on a device have brought, or will bring, is undefined.
  virtual absl::Status health() { return absl::OkStatus(); }
  /// Calls `hook` once the group breaks: at once if it has. On the thread that breaks it; it must not use this group.
  virtual void OnBroken(std::function<void(const absl::Status& why)> hook) { static_cast<void>(hook); }

  /// Breaks the group: calls that wait anywhere return `why`, or that a rank is gone. Any thread; idempotent.
  virtual void Abort(const absl::Status& why) = 0;

 private:
  const int rank_, size_;
};

}  // namespace baton::engine
