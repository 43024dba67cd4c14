// A Watch stream of a gRPC wire: the worker's events, one at a time.
#pragma once

#include <memory>

#include "router/fleet/grpc_calls.h"
#include "router/fleet/report_terms.h"
#include "router/fleet/wire_guard.h"
#include "router/fleet/worker_wire.h"

namespace grpc {
class ChannelInterface;
class ClientContext;
}  // namespace grpc

namespace baton::router {

/// Opens the stream on `context`, which ends it by TryCancel. `calls` counts it until handlers.on_closed has returned;
/// the caller has added it there. `guard` hears of each event.
void OpenWatchCall(const std::shared_ptr<grpc::ChannelInterface>& channel, std::shared_ptr<grpc::ClientContext> context,
                   const std::string& router_id, const ReportTerms& terms, WorkerWire::WatchHandlers handlers,
                   std::shared_ptr<WireGuard> guard, std::shared_ptr<CallCount> calls);

}  // namespace baton::router
