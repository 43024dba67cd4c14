// An Attach as an entry of RelayUp's bytes. A long prompt's ids are most of a request to a worker: the bytes share them
// with the request, and the socket is fed from them.
#pragma once

#include "absl/strings/cord.h"
#include "router/fleet/leg_order.h"
#include "router/request_types.h"

namespace baton::router {

/// They parse as a RelayUp whose one attach is EncodeAttach's, but that the ids of a long prompt have 16 bits where all
/// fit and `takes_short_ids` (the worker said so). Any thread; the arguments may go before the bytes do.
absl::Cord AttachEntry(const TokenizedRequest& generation, const AttachLeg& leg, bool takes_short_ids);

}  // namespace baton::router
