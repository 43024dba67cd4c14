#include "worker/process/role_service.h"

#include "worker/relay/codec.h"

namespace baton::worker {

void Role::Reserve(const v1::ReserveRequest&, const std::string&, std::function<void(v1::ReserveReply)> answer) {
  v1::ReserveReply reply;
  *reply.mutable_nack() =
      EncodeError(absl::UnavailableError("this worker gives no tickets: it has another role now"), 0, 0);
  answer(std::move(reply));
}

void Role::Prefill(const v1::PrefillRequest&, const std::string&, std::shared_ptr<PrefillSink> sink) {
  sink->Finish(absl::UnavailableError("this worker takes no prefill legs: it has another role now"));
}

}  // namespace baton::worker
