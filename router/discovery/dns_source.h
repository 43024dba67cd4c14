// --workers-dns: the workers behind a DNS name, asked for again every few seconds. "name:port" asks for A and AAAA;
// "name" alone asks for SRV, whose targets bring their ports, and then for the targets' addresses.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "router/discovery/endpoint_source.h"

namespace baton::router {

struct DnsOptions {
  Duration interval = std::chrono::seconds(5);  ///< from the end of one round to the next
  std::string server;                           ///< IP:PORT to ask; empty: those of the system
};

/// InvalidArgument: `name` or the server is no address; the message names the flag.
absl::StatusOr<std::unique_ptr<EndpointSource>> MakeDnsSource(const std::string& name, const DnsOptions& options);

}  // namespace baton::router
