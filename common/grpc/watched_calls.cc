#include "common/grpc/watched_calls.h"

#include <grpcpp/server_context.h>

#include <atomic>
#include <string>

namespace baton::net {
namespace {

using grpc::experimental::InterceptionHookPoints;

class Watched final : public grpc::experimental::Interceptor {
 public:
  Watched(grpc::experimental::ServerRpcInfo* call, CallWatcher& watcher) : call_(call), watcher_(watcher) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* batch) override {
    // First of all; of a call that was given up gRPC knows the peer no more.
    if (batch->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_INITIAL_METADATA)) {
      peer_ = call_->server_context()->peer();
      since_ = clock_.Now();
      watcher_.OnBegin(*call_->server_context(), peer_, call_->method());
    }
    if (batch->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_MESSAGE) &&
        batch->GetRecvMessage() != nullptr) {
      asked_ = true;
    }
    if (batch->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_MESSAGE)) answered_ = true;
    if (batch->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_CLOSE))
      watcher_.OnEnd(peer_, {.given_up = !answered_ && call_->server_context()->IsCancelled(),
                             .asked = asked_,
                             .lasted = clock_.Now() - since_,
                             .call = call_->server_context()});
    batch->Proceed();
  }

 private:
  grpc::experimental::ServerRpcInfo* const call_;
  CallWatcher& watcher_;
  const SteadyClock clock_;
  std::string peer_;
  TimePoint since_{};
  std::atomic<bool> asked_ = false, answered_ = false;
};

}  // namespace

grpc::experimental::Interceptor* WatchedCalls::CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) {
  return new Watched(info, watcher_);
}

}  // namespace baton::net
