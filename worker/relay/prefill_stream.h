// Where the answers of one Prefill leg go.
#pragma once

#include "absl/status/status.h"
#include "proto/worker.pb.h"

namespace baton::worker {

/// The answer stream of one Prefill leg. Any thread; never blocks.
class PrefillSink {
 public:
  virtual ~PrefillSink() = default;
  virtual void Send(v1::PrefillReply reply) = 0;
  /// The last call: ends the stream when everything sent has left.
  virtual void Finish(const absl::Status& status) = 0;
};

}  // namespace baton::worker
