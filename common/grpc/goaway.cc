#include "common/grpc/goaway.h"

#include <grpc/grpc_security.h>

// gRPC's C core has this as a member that its shared library exports, and no header of it that is installed. A
// grpc_server is such an object. goaway_test fails where it does something else.
namespace grpc_core {
class Server {
 public:
  void SendGoaways();
};
}  // namespace grpc_core

namespace baton::net {

/// gRPC's core works on threads only that it has prepared, as it does for each call of its C interface: the last owner
/// of credentials that are nobody's is told of their end on such a one, before the call returns.
void SendGoaways(grpc::Server& server) {
  grpc_metadata_credentials_plugin of_nobody{};
  of_nobody.state = server.c_server();
  of_nobody.destroy = [](void* core) { static_cast<grpc_core::Server*>(core)->SendGoaways(); };
  of_nobody.type = "goaway";
  grpc_call_credentials_release(grpc_metadata_credentials_create_from_plugin(of_nobody, GRPC_SECURITY_NONE, nullptr));
}

}  // namespace baton::net
