// WatchedCalls: tells of each call of a gRPC server when it begins and when it is over. Calls that their clients give
// up before a message of the answer was sent (CVE-2023-44487), and those that are refused, are work for the server and
// little for the client. A method that no service has is seen when the server has a grpc::CallbackGenericService.
#pragma once

#include <grpcpp/support/server_interceptor.h>

#include <string>
#include <string_view>

#include "common/clock.h"

namespace baton::net {

/// Called on gRPC's threads. `peer`: as grpc::ServerContext names it.
class CallWatcher {
 public:
  virtual ~CallWatcher() = default;
  /// Its headers are here, and of a method that takes one message that is, too: gRPC tells of both at once. `method`:
  /// "/package.Service/Method".
  virtual void OnBegin(const grpc::ServerContextBase& call, std::string_view peer, std::string_view method) = 0;
  struct End {
    bool given_up = false;  ///< by its client, before a message of the answer was sent
    bool asked = false;     ///< it had come so far that its message was here
    Duration lasted{};      ///< since OnBegin
    const grpc::ServerContextBase* call = nullptr;
  };
  virtual void OnEnd(std::string_view peer, End end) = 0;
};

class WatchedCalls final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  /// `watcher` must outlive the server.
  explicit WatchedCalls(CallWatcher& watcher) : watcher_(watcher) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override;

 private:
  CallWatcher& watcher_;
};

}  // namespace baton::net
