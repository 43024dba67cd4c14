// The Relay stream of a wire: orders out, news in. What is ordered while a write is under way gathers and goes as one
// message with the next.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "router/fleet/grpc_calls.h"
#include "router/fleet/worker_wire.h"
#include "router/outbound/http2_stream.h"

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
  /// Ends the stream with CANCELLED, if nothing else has ended it; handlers.on_closed comes some time later.
  virtual void Close() = 0;
};

/// Opens the stream on a connection that `loop` carries: `where` says to whom and with which metadata, the rest of the
/// head is set here. The handlers are called on the loop. `calls` counts the stream until handlers.on_closed has
/// returned; the caller has added it there. `takes_short_ids`: the worker said so.
std::shared_ptr<RelayCall> OpenRelayCall(EventLoop& loop, Http2Stream::Options where, bool takes_short_ids,
                                         WorkerWire::RelayHandlers handlers, std::shared_ptr<CallCount> calls);

}  // namespace baton::router
