// A Relay stream of a gRPC wire: orders out, news in. What is ordered while a write is under way gathers and goes as
// one message with the next.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "router/fleet/grpc_calls.h"
#include "router/fleet/worker_wire.h"

namespace grpc {
class ChannelInterface;
class ClientContext;
}  // namespace grpc

namespace baton::router {

/// Thread-safe.
class RelayCall {
 public:
  virtual ~RelayCall() = default;
  /// Unavailable: the stream has ended. ResourceExhausted: `most` attaches wait to be written.
  virtual absl::Status Attach(const TokenizedRequest& generation, const AttachLeg& leg, size_t most) = 0;
  virtual void Cancel(const CancelAttached& order) = 0;
  virtual void Credit(const GiveCredit& order) = 0;
  /// Replaces a renewal that has not been written yet.
  virtual void Renew(const std::vector<LegRenewal>& legs) = 0;
  virtual void Meet(const std::string& landing_address) = 0;
};

/// Opens the stream on `context`, which ends it by TryCancel. `calls` counts it until handlers.on_closed has returned;
/// the caller has added it there.
std::shared_ptr<RelayCall> OpenRelayCall(const std::shared_ptr<grpc::ChannelInterface>& channel,
                                         std::shared_ptr<grpc::ClientContext> context,
                                         WorkerWire::RelayHandlers handlers, std::shared_ptr<CallCount> calls);

}  // namespace baton::router
