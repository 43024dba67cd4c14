// WireGuard: looks at what comes on a wire's gRPC channel, and ends its connections when it is far more than the worker
// was asked for (common/grpc/channel_sockets.h). The wire is lost then as if they had broken.
#pragma once

#include <atomic>
#include <memory>
#include <string>

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

 private:
  void Look();

  EventLoop& loop_;
  const std::string worker_;
  const std::shared_ptr<CallCount> calls_;
  net::ChannelSockets sockets_;
  const SteadyClock clock_;
  std::atomic<bool> stopped_ = false;
  std::unique_ptr<EventLoopTimer> timer_;  // of the loop
};

}  // namespace baton::router
