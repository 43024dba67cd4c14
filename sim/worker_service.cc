#include "sim/worker_service.h"

#include <utility>

namespace baton::sim::service {
namespace {

template <class Message>
Message Parse(const std::string& bytes) {
  Message message;
  BATON_CHECK(message.ParseFromString(bytes));
  return message;
}

/// The write side of a stream.
template <class Sink, class Message>
class Writes : public Sink {
 public:
  explicit Writes(std::shared_ptr<Call> call) : call_(std::move(call)) {}
  void Send(Message message) override { call_->SendDown(message.SerializeAsString()); }

 protected:
  const std::shared_ptr<Call> call_;
};
using RelayWrites = Writes<worker::RelayWriter, v1::RelayDown>;
using WatchWrites = Writes<worker::WatchSink, v1::WorkerEvent>;

class PrefillWrites final : public Writes<worker::PrefillSink, v1::PrefillReply> {
 public:
  using Writes::Writes;
  void Finish(const absl::Status& status) override { call_->Finish(status); }
};

/// False: it was refused.
bool Loaded(const WorkerNode& worker, const std::shared_ptr<Call>& call) {
  if (worker.loading()) call->Finish(absl::UnavailableError("loading: weights 50 %"));
  return !worker.loading();
}

template <class Message>
void Answer(const std::shared_ptr<Call>& call, const Message& reply) {
  call->SendDown(reply.SerializeAsString());
  call->Finish(absl::OkStatus());
}

}  // namespace

void Handshake(WorkerNode& worker, const std::shared_ptr<Call>& call, const std::string&) {
  Answer(call, worker.Describe());
}

void Watch(WorkerNode& worker, const std::shared_ptr<Call>& call) {
  if (!Loaded(worker, call)) return;
  auto sink = std::make_shared<WatchWrites>(call);
  call->at_end = [&worker, sink] { worker.RemoveWatcher(sink.get()); };
  worker.AddWatcher(sink);
}

void Relay(WorkerNode& worker, const std::shared_ptr<Call>& call, const std::string& session) {
  if (!Loaded(worker, call)) return;
  auto sink = std::make_shared<RelayWrites>(call);
  call->at_message = [&worker, sink](const std::string& bytes) { worker.OnRelay(sink, Parse<v1::RelayUp>(bytes)); };
  call->at_end = [&worker, sink, session] { worker.OnRelayEnd(*sink, session); };
}

void Reserve(WorkerNode& worker, const std::shared_ptr<Call>& call, const std::string& request) {
  if (Loaded(worker, call)) Answer(call, worker.OnReserve(Parse<v1::ReserveRequest>(request)));
}

void Prefill(WorkerNode& worker, const std::shared_ptr<Call>& call, const std::string& request) {
  if (!Loaded(worker, call)) return;
  const auto asked = Parse<v1::PrefillRequest>(request);
  call->at_end = [&worker, key = asked.key()] { worker.OnPrefillStreamEnd(key); };
  worker.OnPrefill(asked, std::make_shared<PrefillWrites>(call));
}

void Cancel(WorkerNode& worker, const std::shared_ptr<Call>& call, const std::string& request) {
  if (!worker.loading()) worker.OnCancel(Parse<v1::CancelRequest>(request));
  Answer(call, v1::CancelReply());
}

}  // namespace baton::sim::service
