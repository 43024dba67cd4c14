// AbandonedCalls: notices calls of a gRPC server that their clients gave up before a message of the answer was sent:
// resets without end are work for the server and none for the client (CVE-2023-44487). A method that no service has is
// seen when the server has a grpc::CallbackGenericService.
#pragma once

#include <grpcpp/support/server_interceptor.h>

#include <functional>
#include <string_view>
#include <utility>

namespace baton::net {

class AbandonedCalls final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  /// With the call's peer as grpc::ServerContext names it, and whether it had come so far that its message was here. On
  /// gRPC's threads.
  using Told = std::function<void(std::string_view peer, bool asked)>;
  explicit AbandonedCalls(Told abandoned) : abandoned_(std::move(abandoned)) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override;

 private:
  const Told abandoned_;
};

}  // namespace baton::net
