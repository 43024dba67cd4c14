#include "sim/sim_wire.h"

#include <cstring>
#include <deque>
#include <utility>

#include "common/log.h"
#include "proto/protocol_codec.h"
#include "router/fleet/relay_codec.h"
#include "router/fleet/watch_codec.h"
#include "sim/worker_service.h"

namespace baton::sim {

using router::LegAnswer;
using std::chrono::microseconds;
using std::chrono::milliseconds;

namespace {

/// For people who replay a seed.
std::string OrderText(const router::LegOrder& order) {
  struct Text {
    std::string operator()(const router::ReserveLeg& o) { return StrCat("reserve ", o.key.leg_id, "/", o.key.attempt); }
    std::string operator()(const router::PrefillLeg& o) {
      return StrCat("prefill ", o.key.leg_id, "/", o.key.attempt, "/", o.key.epoch);
    }
    std::string operator()(const router::AttachLeg& o) {
      return StrCat("attach ", o.leg_id, "/", o.attempt, " gen ", o.attach_gen, " at ", o.position, " epoch ", o.epoch,
                    o.grant != nullptr ? " with a ticket" : "");
    }
    std::string operator()(const router::CancelLeg& o) {
      return StrCat("cancel ", o.key.leg_id, "/", o.key.attempt, "/", o.key.epoch, o.asks_again ? ", asks again" : "");
    }
    std::string operator()(const router::CancelAttached& o) {
      return StrCat("leave ", o.leg_id, " gen ", o.attach_gen);
    }
    std::string operator()(const router::GiveCredit& o) { return StrCat("credit ", o.leg_id, " + ", o.tokens); }
  };
  return std::visit(Text(), order);
}

}  // namespace

/// What waits to be written on the relay. Everything that has gathered since the last write goes as one message.
struct SimWire::Outbox : std::enable_shared_from_this<Outbox> {
  Outbox(Cable& its_cable, std::shared_ptr<Call> its_call) : cable(its_cable), call(std::move(its_call)) {}
  void WriteIfIdle() {
    if (writing || pending.ByteSizeLong() == 0) return;
    call->SendUp(pending.SerializeAsString());
    pending.Clear();
    writing = true;
    Timeline& time = cable.plant.time;
    const Duration takes = time.Below(50) == 0 ? time.Between(microseconds(100), milliseconds(20))
                                               : time.Between(microseconds(2), microseconds(60));
    cable.router.Post(takes, [self = shared_from_this()] {
      self->writing = false;
      self->WriteIfIdle();
    });
  }
  Cable& cable;
  const std::shared_ptr<Call> call;
  v1::RelayUp pending;
  bool writing = false;
};

std::string SimWire::SessionName(uint64_t session) const { return StrCat(router_id_, "/", session); }

std::shared_ptr<Call> SimWire::Begin() {
  if (down_) return nullptr;
  std::erase_if(calls_, [](const auto& call) { return call->ended_here(); });
  std::erase_if(legs_, [](const auto& call) { return call->ended_here(); });
  std::shared_ptr<Connection>& connection = cable_.connection;
  if (connection == nullptr || !connection->usable()) connection = std::make_shared<Connection>(cable_);
  const std::shared_ptr<Call> call = connection->Begin();
  call->greeted = incarnation_;
  call->router = router_id_;
  calls_.push_back(call);
  if (!cable_.worker.alive() && !cable_.worker.host_gone()) {
    cable_.router.Post(cable_.plant.time.Between(microseconds(50), milliseconds(2)),
                       [call] { call->EndHere(absl::UnavailableError("connection refused")); });
  }
  return call;
}

std::shared_ptr<Call> SimWire::Ask(Serve serve, std::string request,
                                   std::function<void(const absl::Status&, const std::string& reply)> done) {
  const std::shared_ptr<Call> call = Begin();
  if (call == nullptr) return nullptr;
  auto reply = std::make_shared<std::string>();
  call->on_message = [reply](const std::string& bytes) { *reply = bytes; };
  call->on_end = [reply, done = std::move(done)](const absl::Status& status) { done(status, *reply); };
  call->Open([serve, request = std::move(request)](WorkerNode& worker, const std::shared_ptr<Call>& there) {
    serve(worker, there, request);
  });
  return call;
}

void SimWire::Handshake(const std::string& hash_key, Duration timeout,
                        std::function<void(router::HandshakeAnswer)> done) {
  v1::HandshakeRequest request;
  EncodeVersions(WorkerProtocol(), *request.mutable_protocol());
  request.set_router_id(router_id_);
  request.set_hash_key(hash_key);
  const auto call = Ask(service::Handshake, request.SerializeAsString(),
                        [this, done = std::move(done)](const absl::Status& status, const std::string& bytes) {
                          v1::HandshakeReply reply;
                          BATON_CHECK(reply.ParseFromString(bytes));
                          incarnation_ = reply.incarnation();
                          done(router::DecodeHandshake(status, reply));
                        });
  if (call == nullptr) return;
  cable_.router.Post(timeout, [call] { call->EndHere(absl::DeadlineExceededError("Deadline Exceeded")); });
}

void SimWire::OpenRelay(uint64_t session, RelayHandlers handlers) {
  relay_ = Begin();
  if (relay_ == nullptr) return;
  ++counters_.sessions;
  session_ = session;
  outbox_ = std::make_shared<Outbox>(cable_, relay_);
  relay_->on_message = [on_news = std::move(handlers.on_news)](const std::string& bytes) {
    v1::RelayDown down;
    BATON_CHECK(down.ParseFromString(bytes));
    std::vector<router::LegNews> news;
    for (v1::RelayEntry& entry : *down.mutable_entries())
      news.push_back({entry.request_id(), router::DecodeNews(std::move(entry))});
    on_news(news);
  };
  relay_->on_end = std::move(handlers.on_closed);
  relay_->Open([name = SessionName(session)](WorkerNode& worker, const std::shared_ptr<Call>& there) {
    service::Relay(worker, there, name);
  });
}

/// Hands events over one by one.
struct SimWire::WatchQueue : std::enable_shared_from_this<WatchQueue> {
  explicit WatchQueue(WatchHandlers its_handlers, Process& its_router)
      : handlers(std::move(its_handlers)), router(its_router) {}
  void Take(const std::string& bytes) {
    waiting.push_back(bytes);
    HandOver();
  }
  void HandOver() {
    if (handed_over || waiting.empty() || closed) return;
    v1::WorkerEvent event;
    BATON_CHECK(event.ParseFromString(waiting.front()));
    waiting.pop_front();
    handed_over = true;
    handlers.on_event(router::DecodeEvent(event), [self = shared_from_this()] {
      self->router.Post(microseconds(5), [self] {
        self->handed_over = false;
        self->HandOver();
      });
    });
  }
  WatchHandlers handlers;
  Process& router;
  std::deque<std::string> waiting;
  bool handed_over = false, closed = false;
};

void SimWire::OpenWatch(WatchHandlers handlers) {
  if (watch_) watch_->Cancel();
  watch_ = Begin();
  if (watch_ == nullptr) return;
  auto queue = std::make_shared<WatchQueue>(std::move(handlers), cable_.router);
  watch_->on_message = [queue](const std::string& bytes) { queue->Take(bytes); };
  watch_->on_end = [queue](const absl::Status& status) {
    queue->closed = true;
    queue->handlers.on_closed(status);
  };
  watch_->Open([request = router::EncodeWatch(router_id_, reports_).SerializeAsString()](
                   WorkerNode& worker, const std::shared_ptr<Call>& there) { service::Watch(worker, there, request); });
}

void SimWire::CloseSession() {
  for (const auto& stream : {std::exchange(watch_, nullptr), std::exchange(relay_, nullptr)}) {
    if (stream) stream->Cancel();
  }
  for (const auto& leg : std::exchange(legs_, {})) leg->Cancel();
  outbox_ = nullptr;
  session_ = 0;
}

SimWire::Outbox* SimWire::OutboxOf(uint64_t session) {
  return session != 0 && session == session_ ? outbox_.get() : nullptr;
}

absl::Status SimWire::Send(uint64_t session, const router::TokenizedRequest& generation, const router::LegOrder& order,
                           std::function<void(LegAnswer)> on_answer) {
  if (down_ || OutboxOf(session) == nullptr) return absl::UnavailableError("the connection to the worker is closed");
  LogDebug("{:.6f} {} -> {}: {}", Seconds(cable_.plant.time.Now().time_since_epoch()), SessionName(session),
           cable_.worker.name(), OrderText(order));
  const bool on_relay = std::holds_alternative<router::AttachLeg>(order);
  if (on_relay && relay_->ended_here()) return absl::UnavailableError("the connection to the worker is closed");
  return std::visit([&](const auto& leg) { return Do(generation, leg, std::move(on_answer)); }, order);
}

absl::Status SimWire::Do(const router::TokenizedRequest& generation, const router::ReserveLeg& leg,
                         Answered on_answer) {
  counters_.again += leg.key.attempt > 1;
  v1::ReserveRequest request = router::EncodeReserve(generation, leg);
  request.set_router_session(SessionName(session_));
  legs_.push_back(Ask(service::Reserve, request.SerializeAsString(),
                      [on_answer](const absl::Status& status, const std::string& bytes) {
                        if (!status.ok()) return on_answer(router::ReserveResult{status});
                        v1::ReserveReply reply;
                        BATON_CHECK(reply.ParseFromString(bytes));
                        on_answer(router::DecodeReserve(reply));
                      }));
  return absl::OkStatus();
}

absl::Status SimWire::Do(const router::TokenizedRequest& generation, const router::PrefillLeg& leg,
                         Answered on_answer) {
  ++counters_.prefills;
  counters_.again += leg.key.epoch > 1;
  const std::shared_ptr<Call> call = Begin();
  auto result = std::make_shared<router::PrefillResult>(
      router::PrefillResult{absl::InternalError("the prefill leg ended without a result")});
  call->on_message = [on_answer, result](const std::string& bytes) {
    v1::PrefillReply reply;
    BATON_CHECK(reply.ParseFromString(bytes));
    if (!reply.prompt_logprobs().empty()) on_answer(router::PrefillPiece{reply.prompt_logprobs()});
    if (reply.last()) *result = router::DecodePrefill(reply);
  };
  call->on_end = [on_answer, result](const absl::Status& status) {
    on_answer(status.ok() ? *result : router::PrefillResult{status});
  };
  call->Open([request = router::EncodePrefill(generation, leg).SerializeAsString()](
                 WorkerNode& worker, const std::shared_ptr<Call>& there) { service::Prefill(worker, there, request); });
  legs_.push_back(call);
  return absl::OkStatus();
}

absl::Status SimWire::Do(const router::TokenizedRequest& generation, const router::AttachLeg& leg, Answered) {
  counters_.again += leg.attempt > 1;

  counters_.migrations += leg.grant == nullptr && leg.output != nullptr;
  *outbox_->pending.add_attach() = router::EncodeAttach(generation, leg);
  outbox_->WriteIfIdle();
  return absl::OkStatus();
}

absl::Status SimWire::Do(const router::TokenizedRequest&, const router::CancelLeg& leg, Answered) {
  legs_.push_back(Ask(service::Cancel, router::EncodeCancel(leg).SerializeAsString(),
                      [](const absl::Status&, const std::string&) {}));
  return absl::OkStatus();
}

absl::Status SimWire::Do(const router::TokenizedRequest&, const router::CancelAttached& leg, Answered) {
  *outbox_->pending.add_cancel() = router::EncodeCancel(leg);
  outbox_->WriteIfIdle();
  return absl::OkStatus();
}

absl::Status SimWire::Do(const router::TokenizedRequest&, const router::GiveCredit& order, Answered) {
  *outbox_->pending.add_credit() = router::EncodeCredit(order);
  outbox_->WriteIfIdle();
  return absl::OkStatus();
}

void SimWire::Renew(uint64_t session, const std::vector<router::LegRenewal>& legs) {
  Outbox* outbox = OutboxOf(session);
  if (outbox == nullptr || legs.empty()) return;
  outbox->pending.clear_renewal();
  for (const router::LegRenewal& leg : legs) *outbox->pending.add_renewal() = router::EncodeRenewal(leg);
  outbox->WriteIfIdle();
}

void SimWire::Meet(uint64_t session, const std::string& landing_address) {
  Outbox* outbox = OutboxOf(session);
  if (outbox == nullptr) return;
  outbox->pending.add_meet()->set_landing_address(landing_address);
  outbox->WriteIfIdle();
}

void SimWire::Flip(router::WorkerRole to, Duration patience, std::function<void(router::FlipAnswer)> done) {
  v1::FlipRequest request;
  request.set_role(to == router::WorkerRole::kPrefill ? v1::WORKER_ROLE_PREFILL : v1::WORKER_ROLE_DECODE);
  request.set_deadline_ms(static_cast<uint32_t>(Milliseconds(patience)));
  Ask(service::Flip, request.SerializeAsString(),
      [done = std::move(done)](const absl::Status& status, const std::string& bytes) {
        v1::FlipReply reply;
        BATON_CHECK(reply.ParseFromString(bytes));
        done({status, reply.incarnation(), reply.drain_ms(), reply.change_ms()});
      });
}

void SimWire::Meddle() {
  Timeline& time = cable_.plant.time;
  std::vector<const Overheard*> others;
  for (const Overheard& heard : cable_.worker.overheard()) {
    if (heard.router != router_id_) others.push_back(&heard);
  }
  Outbox* outbox = OutboxOf(session_);
  if (down_ || others.empty() || outbox == nullptr || relay_->ended_here()) return;
  ++counters_.meddled;
  const Overheard& its = *others[time.Below(others.size())];
  const uint64_t gen = its.attach ? its.attach->attach_gen() : 0;
  const uint64_t what = time.Below(5);
  if (what == 0) {
    v1::CancelRequest cancel;
    *cancel.mutable_key() = its.key;
    cancel.set_asks_again(time.Below(2) == 0);
    Ask(service::Cancel, cancel.SerializeAsString(), [](const absl::Status&, const std::string&) {});
  } else if (what == 1 && !its.session.empty()) {
    const std::shared_ptr<Call> call = Begin();
    call->Open([name = its.session](WorkerNode& worker, const std::shared_ptr<Call>& there) {
      service::Relay(worker, there, name);
    });
    cable_.router.Post(milliseconds(5), [call] { call->Cancel(); });
  } else if (what == 2 && its.attach && !its.attach->ticket().empty()) {
    v1::Attach& attach = *outbox->pending.add_attach() = *its.attach;
    attach.set_attach_gen(gen + 1);
  } else if (what == 3) {
    v1::RelayCancel& cancel = *outbox->pending.add_cancel();
    cancel.set_request_id(its.key.request_id());
    cancel.set_attach_gen(gen + 1);
  } else {
    v1::Renewal& renewal = *outbox->pending.add_renewal();
    *renewal.mutable_key() = its.key;
    renewal.set_attach_gen(gen);
  }
  outbox->WriteIfIdle();
}

void SimWire::Shutdown() {
  if (std::exchange(down_, true)) return;
  for (const auto& call : calls_) call->Silence();
  calls_.clear();
  legs_.clear();
  relay_ = watch_ = nullptr;
  outbox_ = nullptr;
}

}  // namespace baton::sim
