// WireGuard: looks at what comes on a wire's gRPC channel, and ends its connections when it is far more than the worker
// was asked for (common/grpc/channel_sockets.h). The wire is lost then as if they had broken.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/grpc/channel_sockets.h"
#include "router/event_loop.h"
#include "router/fleet/grpc_calls.h"

namespace baton::router {

class WireGuard : public std::enable_shared_from_this<WireGuard> {
 public:
  /// `worker`: its address, for the log. `loop` must run until `calls` are over, of which this is one.
  WireGuard(EventLoop& loop, std::string worker, std::shared_ptr<CallCount> calls);
  void Start();
  /// Idempotent.
  void Stop();
  net::ChannelSockets& sockets() { return sockets_; }
  /// Why a call has failed: `status`, or what came without being asked for if connections were ended for it since the
  /// last call of this. Any thread.
  absl::Status Explain(const absl::Status& status);

 private:
  void Look();

  EventLoop& loop_;
  const std::string worker_;
  const std::shared_ptr<CallCount> calls_;
  net::ChannelSockets sockets_;
  const SteadyClock clock_;
  std::atomic<bool> stopped_ = false;
  std::atomic<uint64_t> flood_ = 0;        ///< bytes for which connections were ended
  std::unique_ptr<EventLoopTimer> timer_;  // of the loop
};

}  // namespace baton::router
