// The two ends that decision code writes to. gRPC reactors implement them; tests use fakes.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "proto/worker.pb.h"

namespace baton::worker {

/// The down side of one router's relay stream. Any thread; never blocks. A stream that stopped reading until its
/// bounded queue was full is closed by its owner, which is reported as the end of the stream.
class RelayWriter {
 public:
  explicit RelayWriter(std::string router = {}) : router_(std::move(router)) {}
  virtual ~RelayWriter() = default;
  virtual void Send(v1::RelayDown message) = 0;
  /// Whose stream it is (RouterSessions::Check).
  const std::string& router() const { return router_; }

 private:
  const std::string router_;
};

/// One watcher of events. As RelayWriter.
class WatchSink {
 public:
  virtual ~WatchSink() = default;
  virtual void Send(v1::WorkerEvent event) = 0;
  /// Behind what was sent, the stream ends so.
  virtual void End(const absl::Status& why) = 0;
};

}  // namespace baton::worker
