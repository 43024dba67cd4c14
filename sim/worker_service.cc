#include "sim/worker_service.h"

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "worker/process/whose_leg.h"

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
  template <class... Whose>
  explicit Writes(std::shared_ptr<Call> call, const Whose&... whose) : Sink(whose...), call_(std::move(call)) {}
  void Send(Message message) override { call_->SendDown(message.SerializeAsString()); }

 protected:
  const std::shared_ptr<Call> call_;
};
using RelayWrites = Writes<worker::RelayWriter, v1::RelayDown>;
class WatchWrites final : public Writes<worker::WatchSink, v1::WorkerEvent> {
 public:
  using Writes::Writes;
  void End(const absl::Status& why) override { call_->Finish(why); }
};

/// News of many steps as one message at the end of a turn, with every token's own time told beside it.
class GatheredNews final : public worker::RelayWriter, public std::enable_shared_from_this<GatheredNews> {
 public:
  GatheredNews(WorkerNode& worker, std::shared_ptr<Call> call)
      : RelayWriter(call->router), worker_(worker), call_(std::move(call)) {}
  void Send(v1::RelayDown message) override {
    for (v1::RelayEntry& entry : *message.mutable_entries()) {
      for (int i = 0; i < entry.token_ids_size(); ++i)
        worker_.plant().token_times->Note(entry.request_id(), entry.position() + static_cast<uint64_t>(i),
                                          worker_.drawn_at());
      Add(std::move(entry));
    }
    gathered_.set_step(message.step());
    if (std::exchange(told_, true)) return;
    worker_.AtTurnEnd([self = shared_from_this()] { self->Flush(); });
  }

 private:
  void Add(v1::RelayEntry entry) {
    const auto known = last_.find(entry.request_id());
    v1::RelayEntry* before = known == last_.end() ? nullptr : gathered_.mutable_entries(known->second);
    const bool goes_on = before != nullptr && before->index() == entry.index() &&
                         before->attach_gen() == entry.attach_gen() && before->token_ids_size() > 0 &&
                         before->position() + static_cast<uint64_t>(before->token_ids_size()) == entry.position() &&
                         !entry.has_accepted() && !entry.has_error() && entry.logprobs_size() == 0;
    if (!goes_on) {
      last_[entry.request_id()] = gathered_.entries_size();
      *gathered_.add_entries() = std::move(entry);
      return;
    }
    before->mutable_token_ids()->MergeFrom(entry.token_ids());
    entry.clear_token_ids();
    entry.set_position(before->position());
    before->MergeFrom(entry);  // how it ended, if it did
  }
  void Flush() {
    told_ = false;
    last_.clear();
    call_->SendDown(std::exchange(gathered_, {}).SerializeAsString());
  }
  WorkerNode& worker_;
  const std::shared_ptr<Call> call_;
  v1::RelayDown gathered_;
  absl::flat_hash_map<std::string, int> last_;  ///< a leg's last entry
  bool told_ = false;
};

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

/// The check of what begins work, as the product's. False: it was refused.
bool MayBegin(const WorkerNode& worker, const std::shared_ptr<Call>& call) {
  const absl::Status may = worker::WhyNotOurs(call->greeted, worker.incarnation());
  if (!may.ok()) call->Finish(may);
  return may.ok() && Loaded(worker, call);
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

void Watch(WorkerNode& worker, const std::shared_ptr<Call>& call, const std::string& request) {
  if (!Loaded(worker, call)) return;
  auto sink = std::make_shared<WatchWrites>(call);
  call->at_end = [&worker, sink] { worker.RemoveWatcher(sink.get()); };
  worker.AddWatcher(sink, worker::LoadTermsOf(Parse<v1::WatchRequest>(request)));
}

void Relay(WorkerNode& worker, const std::shared_ptr<Call>& call, const std::string& session) {
  if (!MayBegin(worker, call)) return;
  std::shared_ptr<worker::RelayWriter> sink = std::make_shared<RelayWrites>(call, call->router);
  if (worker.plant().token_times != nullptr) sink = std::make_shared<GatheredNews>(worker, call);
  call->at_message = [&worker, sink](const std::string& bytes) {
    const auto message = Parse<v1::RelayUp>(bytes);
    for (const v1::Attach& attach : message.attach()) worker.Overhear({sink->router(), attach.key(), "", attach});
    worker.OnRelay(sink, message);
  };
  call->at_end = [&worker, sink, session] { worker.OnRelayEnd(*sink, session); };
}

void Reserve(WorkerNode& worker, const std::shared_ptr<Call>& call, const std::string& request) {
  if (!MayBegin(worker, call)) return;
  const auto asked = Parse<v1::ReserveRequest>(request);
  worker.Overhear({call->router, asked.key(), asked.router_session()});
  Answer(call, worker.OnReserve(asked, call->router));
}

void Prefill(WorkerNode& worker, const std::shared_ptr<Call>& call, const std::string& request) {
  if (!MayBegin(worker, call)) return;
  const auto asked = Parse<v1::PrefillRequest>(request);
  worker.Overhear({call->router, asked.key()});
  call->at_end = [&worker, key = asked.key(), router = call->router] { worker.OnPrefillStreamEnd(key, router); };
  worker.OnPrefill(asked, call->router, std::make_shared<PrefillWrites>(call));
}

void Cancel(WorkerNode& worker, const std::shared_ptr<Call>& call, const std::string& request) {
  if (!worker.loading()) worker.OnCancel(Parse<v1::CancelRequest>(request), call->router);
  Answer(call, v1::CancelReply());
}

void Flip(WorkerNode& worker, const std::shared_ptr<Call>& call, const std::string& request) {
  if (!Loaded(worker, call)) return;
  worker.OnFlip(Parse<v1::FlipRequest>(request), [call](const absl::StatusOr<v1::FlipReply>& reply) {
    reply.ok() ? Answer(call, *reply) : call->Finish(reply.status());
  });
}

}  // namespace baton::sim::service
