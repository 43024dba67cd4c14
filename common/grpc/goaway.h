// HTTP/2's GOAWAY (RFC 9113, 6.8) on the connections of a gRPC server that goes on: its clients are to make their next
// calls elsewhere. gRPC says it when a server is shut down, too, and refuses then what was on its way to it.
#pragma once

#include <grpcpp/server.h>

namespace baton::net {

/// Tells the clients of all connections that are there, once each. What they have sent by then is taken, calls under
/// way go on, and a connection ends when none is left on it. New connections are taken as before. Any thread, until the
/// server is shut down.
void SendGoaways(grpc::Server& server);

}  // namespace baton::net
