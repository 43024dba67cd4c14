// The ranks of a group, each with an Ops of its own whose memory is not the host's, as one of them sees it: collectives
// over that memory, enqueued in the order of the Ops' calls. Ops::JoinGroup makes it.
//
// All ranks make the same calls in the same order. Nothing waits on the host: results are there after Ops::Sync, and a
// recorded step has the calls in it. What goes wrong, now or later, is in health(): then results are undefined.
// Thread: the Ops'; health and Abort: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "absl/status/status.h"

namespace baton::kernels {

/// A rank's place in a group that meets, and how the ranks tell each other about their devices.
struct GroupSeat {
  int rank = 0, size = 1;
  /// all = the ranks' `mine`, in rank order: over the host. Called in the same order on all ranks.
  std::function<absl::Status(std::span<const std::byte> mine, std::span<std::byte> all)> gather;
  bool sums = true;  ///< TreeAllReduce will be called
};

class RankGroup {
 public:
  virtual ~RankGroup() = default;
  /// Sums of up to `floats` allocate nothing afterwards. ResourceExhausted with both numbers.
  virtual absl::Status Reserve(int64_t floats) = 0;
  /// Matches one Recv of as many bytes by rank `to`.
  virtual absl::Status Send(int to, const void* data, size_t bytes) = 0;
  virtual absl::Status Recv(int from, void* data, size_t bytes) = 0;
  virtual absl::Status Broadcast(int root, void* data, size_t bytes) = 0;
  virtual absl::Status AllGather(const void* mine, size_t bytes, void* all) = 0;
  /// As engine::Communicator's: one binary tree in rank order. n is a multiple of 4; 0 is a barrier.
  virtual absl::Status TreeAllReduce(float* data, int64_t n) = 0;
  /// Of the device's memory, as it is allocated.
  virtual int64_t bytes() const = 0;
  /// How sums travel, in words for a log; empty: there is nothing to say.
  virtual std::string about() const { return {}; }
  /// Not OK: the group is broken, with the reason.
  virtual absl::Status health() = 0;
  /// Breaks the group: what is under way on this device ends.
  virtual void Abort(const absl::Status& why) = 0;
};

}  // namespace baton::kernels
