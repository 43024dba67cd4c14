#include "common/grpc/goaway.h"

#include <grpc/grpc_security.h>

// grpc_core::Server::SendGoaways() of gRPC's C core (gRPC 1.51), which its shared library exports and no installed
// header declares; a grpc_server is such an object. Weak: with a gRPC that has no such function, clients of a server
// that goes on are told nothing, and goaway_test fails.
extern "C" [[gnu::weak]] void SendGoawaysOfCore(void* server) __asm__("_ZN9grpc_core6Server11SendGoawaysEv");

namespace baton::net {

/// gRPC's core works on threads only that it has prepared, as it does for each call of its C interface: the last owner
/// of credentials that are nobody's is told of their end on such a one, before the call returns.
void SendGoaways(grpc::Server& server) {
  if (SendGoawaysOfCore == nullptr) return;
  grpc_metadata_credentials_plugin of_nobody{};
  of_nobody.state = server.c_server();
  of_nobody.destroy = SendGoawaysOfCore;
  of_nobody.type = "goaway";
  grpc_call_credentials_release(grpc_metadata_credentials_create_from_plugin(of_nobody, GRPC_SECURITY_NONE, nullptr));
}

}  // namespace baton::net
