// Handshakes and events of the Watch stream, from the worker protocol's messages to the router's plain values.
#pragma once

#include "absl/status/status.h"
#include "proto/worker.pb.h"
#include "router/fleet/report_terms.h"
#include "router/fleet/worker_wire.h"

namespace baton::router {

v1::WatchRequest EncodeWatch(const std::string& router_id, const ReportTerms& terms);
WatchEvent DecodeEvent(const v1::WorkerEvent& event);
/// `status`: how the call ended; `reply` is empty unless it is OK.
HandshakeAnswer DecodeHandshake(absl::Status status, const v1::HandshakeReply& reply);

}  // namespace baton::router
