#include "common/grpc/abandoned_calls.h"

#include <grpcpp/server_context.h>

#include <atomic>
#include <string>

namespace baton::net {
namespace {

using grpc::experimental::InterceptionHookPoints;

class Watched final : public grpc::experimental::Interceptor {
 public:
  Watched(grpc::experimental::ServerRpcInfo* call, const AbandonedCalls::Told& abandoned)
      : call_(call), abandoned_(abandoned) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* batch) override {
    // First of all; of a call that was given up gRPC knows the peer no more.
    if (batch->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_INITIAL_METADATA))
      peer_ = call_->server_context()->peer();
    if (batch->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_MESSAGE) &&
        batch->GetRecvMessage() != nullptr) {
      asked_ = true;
    }
    if (batch->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_MESSAGE)) answered_ = true;
    if (batch->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_CLOSE) && !answered_ &&
        call_->server_context()->IsCancelled()) {
      abandoned_(peer_, asked_);
    }
    batch->Proceed();
  }

 private:
  grpc::experimental::ServerRpcInfo* const call_;
  const AbandonedCalls::Told& abandoned_;
  std::string peer_;
  std::atomic<bool> asked_ = false, answered_ = false;
};

}  // namespace

grpc::experimental::Interceptor* AbandonedCalls::CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) {
  return new Watched(info, abandoned_);
}

}  // namespace baton::net
