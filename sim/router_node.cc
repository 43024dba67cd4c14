#include "sim/router_node.h"

#include <algorithm>
#include <cstring>

#include "router/fleet/relay_codec.h"

namespace baton::sim {

using router::LegKey;
using router::RequestFlow;
using router::WorkerId;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

router::FlowLimits Limits() {
  router::FlowLimits limits;
  limits.max_attempts = 6;
  limits.credit_tokens = 8;
  limits.first_token_timeout = seconds(15);
  limits.idle_token_timeout = seconds(2);
  limits.total_timeout = seconds(20);
  limits.failover_wait = seconds(5);
  return limits;
}

absl::Status Broken() { return absl::UnavailableError("the connection is broken"); }

}  // namespace

std::string TokenText(int32_t token, const std::vector<router::PositionLogprobs>& logprobs, size_t at) {
  std::string text = StrCat(token);
  if (at >= logprobs.size()) return text + " ";
  const auto one = [&text](const router::TokenLogprob& l) {
    uint32_t bits = 0;
    std::memcpy(&bits, &l.logprob, sizeof(bits));
    text += StrCat("/", l.token_id, ":", bits, ":", l.rank);
  };
  one(logprobs[at].chosen);
  for (const router::TokenLogprob& l : logprobs[at].top) one(l);
  return text + " ";
}

RouterNode::RouterNode(const Plant& plant) : plant_(plant), time_(plant.time) {}

RouterNode::~RouterNode() = default;

void RouterNode::Add(PrefillNode* node) { links_.push_back({node}), ++prefills_; }

void RouterNode::Add(DecodeNode* node) { links_.push_back({node}); }

// ---- connections

bool RouterNode::Current(int worker, const std::string& session) const {
  const Link& link = links_[static_cast<size_t>(worker)];
  return link.session != 0 && SessionName(link.session) == session;
}

void RouterNode::Carry(int worker, std::string bytes, TimePoint* order, std::function<void(std::string)> deliver) {
  const MessageFaults& faults = plant_.scenario.control;
  const auto happens = [&](double rate) { return plant_.faults_on && time_.Chance(rate); };
  if (happens(faults.truncate)) return ++plant_.faults.truncate, Break(worker);
  if (happens(faults.corrupt)) return ++plant_.faults.corrupt, Break(worker);
  if (happens(faults.drop)) return void(++plant_.faults.drop);
  const auto send = [&](std::string copy) {
    TimePoint at = time_.Now() + time_.Between(microseconds(50), microseconds(800));
    if (happens(faults.delay)) ++plant_.faults.delay, at += time_.Between(milliseconds(1), milliseconds(300));
    const bool overtakes = order == nullptr || (happens(faults.reorder) && ++plant_.faults.reorder);
    if (!overtakes) at = *order = std::max(at, *order + microseconds(1));
    time_.At(at, [deliver, copy = std::move(copy)] { deliver(copy); });
  };
  if (happens(faults.duplicate)) ++plant_.faults.duplicate, send(bytes);
  send(std::move(bytes));
}

void RouterNode::ToWorker(WorkerId id, std::string bytes, bool stream,
                          std::function<void(WorkerNode&, const std::string& session, std::string)> deliver) {
  Link& link = links_[static_cast<size_t>(id.slot)];
  if (link.session != id.session || link.session == 0) return;
  Carry(id.slot, std::move(bytes), stream ? &link.up_order : nullptr,
        [this, id, life = link.life, stream, deliver = std::move(deliver)](std::string copy) {
          Link& now = links_[static_cast<size_t>(id.slot)];
          if (now.node->life() != life || !now.node->alive()) return;
          if (stream && now.session != id.session) return;  // the stream has ended, for both
          now.node->Post(Duration::zero(), [node = now.node, session = SessionName(id.session), deliver,
                                            copy = std::move(copy)] { deliver(*node, session, copy); });
        });
}

void RouterNode::ToRouter(int worker, const std::string& session, std::string bytes, bool stream,
                          std::function<void(std::string)> deliver) {
  if (!Current(worker, session)) return;
  Link& link = links_[static_cast<size_t>(worker)];
  Carry(worker, std::move(bytes), stream ? &link.down_order : nullptr,
        [this, worker, session, deliver = std::move(deliver)](std::string copy) {
          if (Current(worker, session)) deliver(std::move(copy));
        });
}

void RouterNode::Break(int worker) {
  Link& link = links_[static_cast<size_t>(worker)];
  if (link.session == 0) return;
  const std::string session = SessionName(link.session);
  const WorkerId lost = IdOf(worker);
  if (link.node->alive() && link.node->life() == link.life) {
    link.node->Post(time_.Between(microseconds(100), milliseconds(20)),
                    [node = link.node, session] { node->OnSessionEnd(session); });
  }
  link.session = 0;  // from now on nothing of it arrives
  time_.After(time_.Between(microseconds(100), milliseconds(20)),
              [this, lost] { Lost(lost, "the connection is broken"); });
}

void RouterNode::Vanish() {
  for (Link& link : links_) link.session = 0;
  for (size_t i = 0; i < calls_.size(); ++i) {
    if (clients_[i].end == ClientView::End::kNone) End(i, ClientView::End::kLeft);
  }
}

/// Whoever waited for this worker is told.
void RouterNode::Lost(WorkerId worker, const std::string& why) {
  for (size_t i = 0; i < calls_.size(); ++i) {
    Call& call = *calls_[i];
    if (clients_[i].end != ClientView::End::kNone) continue;
    std::vector<LegKey> legs;
    for (const auto& [on, key] : call.prefills) {
      if (on == worker) legs.push_back(key);
    }
    for (const LegKey& leg : legs) {
      EndPrefill(call, leg);
      call.flow->PrefillEnded(leg, {absl::UnavailableError(why)}, false, time_.Now());
    }
    if (call.flow->worker() == worker) call.flow->WorkerLost(worker, absl::UnavailableError(why), time_.Now());
    Pump(i);
  }
}

void RouterNode::EndPrefill(Call& call, const LegKey& key) {
  for (const auto& [worker, leg] : call.prefills) {
    router::LiveLegs* live = LiveAt(worker);
    if (live != nullptr && leg.attempt == key.attempt && leg.epoch == key.epoch) live->PrefillEnded(leg);
  }
  std::erase_if(call.prefills,
                [&key](const auto& leg) { return leg.second.attempt == key.attempt && leg.second.epoch == key.epoch; });
}

void RouterNode::Connect(int worker) {
  Link& link = links_[static_cast<size_t>(worker)];
  link.session = ++last_session_;
  link.life = link.node->life();
  link.up_order = link.down_order = {};
  link.silent_since = {};
  link.live.Clear(), link.renewed = time_.Now();
}

router::LiveLegs* RouterNode::LiveAt(WorkerId id) {
  if (id.slot < 0) return nullptr;
  Link& link = links_[static_cast<size_t>(id.slot)];
  return id.session != 0 && link.session == id.session ? &link.live : nullptr;
}

void RouterNode::Renew(WorkerId id) {
  links_[static_cast<size_t>(id.slot)].renewed = time_.Now();
  v1::RelayUp up;
  for (const router::LegRenewal& leg : LiveAt(id)->Renewals()) *up.add_renewal() = router::EncodeRenewal(leg);
  if (up.renewal().empty()) return;
  ToWorker(
      id, up.SerializeAsString(), true,
      [](WorkerNode& node, const std::string& session, const std::string& bytes) { node.OnRelayUp(session, bytes); });
}

void RouterNode::Tick() {
  for (size_t w = 0; w < links_.size(); ++w) {
    Link& link = links_[w];
    const auto worker = static_cast<int>(w);
    const bool there = link.node->alive() && !link.node->stopped();
    if (link.session != 0 && time_.Now() - link.renewed >= router::kRenewEvery) Renew(IdOf(worker));
    if (link.session == 0) {
      if (there) Connect(worker);
      continue;
    }
    if (!link.node->alive() || link.node->life() != link.life) {
      Break(worker);
    } else if (!link.node->stopped()) {
      link.silent_since = {};
    } else if (link.silent_since == TimePoint{}) {
      link.silent_since = time_.Now();
    } else if (time_.Now() - link.silent_since > seconds(1)) {
      Break(worker);
    }
  }
}

std::vector<int> RouterNode::Ready(bool prefill, const std::vector<WorkerId>& excluded) const {
  std::vector<int> out;
  for (size_t w = 0; w < links_.size(); ++w) {
    const auto worker = static_cast<int>(w);
    if ((w < prefills_) != prefill || links_[w].session == 0) continue;
    if (std::find(excluded.begin(), excluded.end(), IdOf(worker)) == excluded.end()) out.push_back(worker);
  }
  return out;
}

// ---- answers

RouterNode::Call* RouterNode::CallOf(const std::string& leg_id, size_t* index) {
  for (size_t i = 0; i < calls_.size(); ++i) {
    const std::string& id = calls_[i]->generation.request_id;
    if (leg_id != id && !leg_id.starts_with(id + "#")) continue;
    if (index != nullptr) *index = i;
    return clients_[i].end == ClientView::End::kNone ? calls_[i].get() : nullptr;
  }
  return nullptr;
}

void RouterNode::ReserveReply(int worker, const std::string& session, const LegKey& key, std::string bytes) {
  ToRouter(worker, session, std::move(bytes), false, [this, key](const std::string& copy) {
    size_t i = 0;
    Call* call = CallOf(key.leg_id, &i);
    v1::ReserveReply reply;
    if (call == nullptr || !reply.ParseFromString(copy)) return;
    const router::ReserveResult result = router::DecodeReserve(reply);
    if (router::LiveLegs* live = LiveAt(call->flow->worker()); live != nullptr && !result.status.ok())
      live->Ended(key.leg_id);
    call->flow->Reserved(key, result, time_.Now());
    Pump(i);
  });
}

void RouterNode::PrefillReply(int worker, const std::string& session, const LegKey& key, std::string bytes) {
  ToRouter(worker, session, std::move(bytes), false, [this, key](const std::string& copy) {
    size_t i = 0;
    Call* call = CallOf(key.leg_id, &i);
    v1::PrefillReply reply;
    if (call == nullptr || !reply.ParseFromString(copy) || !reply.last()) return;
    EndPrefill(*call, key);
    call->flow->PrefillEnded(key, router::DecodePrefill(reply), false, time_.Now());
    Pump(i);
  });
}

/// With an OK the answer came before; it may be lost, which the flow's own clock notices.
void RouterNode::PrefillEnd(int worker, const std::string& session, const LegKey& key, const absl::Status& status) {
  if (status.ok()) return;
  ToRouter(worker, session, "", false, [this, key, status](const std::string&) {
    size_t i = 0;
    Call* call = CallOf(key.leg_id, &i);
    if (call == nullptr) return;
    EndPrefill(*call, key);
    call->flow->PrefillEnded(key, {status}, false, time_.Now());
    Pump(i);
  });
}

void RouterNode::RelayDown(int worker, const std::string& session, std::string bytes) {
  ToRouter(worker, session, std::move(bytes), true, [this](const std::string& copy) {
    v1::RelayDown down;
    if (!down.ParseFromString(copy)) return;
    for (v1::RelayEntry& entry : *down.mutable_entries()) {
      size_t i = 0;
      Call* call = CallOf(entry.request_id(), &i);
      if (call == nullptr) continue;
      call->flow->News(router::DecodeNews(std::move(entry)), time_.Now());
      Pump(i);
    }
  });
}

// ---- requests

void RouterNode::Ask(router::Generation generation) {
  const size_t i = calls_.size();
  auto call = std::make_unique<Call>();
  call->flow = std::make_unique<RequestFlow>(generation.request_id, static_cast<uint32_t>(generation.prompt.size()),
                                             static_cast<uint32_t>(generation.sampling.n), Limits(), time_.Now());
  call->generation = std::move(generation);
  calls_.push_back(std::move(call));
  clients_.push_back({.asked = time_.Now()});
  calls_[i]->flow->Start();
  Pump(i);
}

void RouterNode::Leave(Duration after) {
  time_.After(after, [this, i = calls_.size() - 1] {
    if (clients_[i].end != ClientView::End::kNone) return;
    calls_[i]->flow->ClientGone();
    Pump(i);
    End(i, ClientView::End::kLeft);
  });
}

bool RouterNode::AllEnded() const {
  return std::all_of(clients_.begin(), clients_.end(),
                     [](const ClientView& c) { return c.end != ClientView::End::kNone; });
}

void RouterNode::End(size_t i, ClientView::End how) {
  BATON_CHECK(clients_[i].end == ClientView::End::kNone, "request ", i, " ended twice");
  clients_[i].end = how;
  clients_[i].ended = time_.Now();
  RequestFlow& flow = *calls_[i]->flow;
  if (router::LiveLegs* live = LiveAt(flow.worker())) {
    live->Ended(flow.LegId(std::nullopt));
    for (uint32_t c = 0; c < static_cast<uint32_t>(calls_[i]->generation.sampling.n); ++c) live->Ended(flow.LegId(c));
  }
  migrations_ += static_cast<int>(calls_[i]->flow->migrations());
}

void RouterNode::Pump(size_t i) {
  Call& call = *calls_[i];
  if (std::exchange(call.pumping, true)) return;
  for (auto actions = call.flow->TakeActions(); !actions.empty(); actions = call.flow->TakeActions()) {
    for (const router::FlowAction& action : actions) {
      if (clients_[i].end == ClientView::End::kNone) std::visit([this, i](const auto& one) { Do(i, one); }, action);
    }
  }
  call.pumping = false;
}

void RouterNode::Do(size_t i, const router::PickWorker&) {
  RequestFlow& flow = *calls_[i]->flow;
  const std::vector<int> decodes = Ready(false, flow.excluded()), prefills = Ready(true, flow.excluded());
  if (decodes.empty())
    return flow.NoWorker(absl::UnavailableError("no decode worker is ready"), 100, true, time_.Now());
  const WorkerId decode = IdOf(decodes[time_.Below(decodes.size())]);
  if (flow.started_output() || prefills.empty()) return flow.WorkerChosen(decode, time_.Now());
  flow.PairChosen(IdOf(prefills[time_.Below(prefills.size())]), decode, plant_.scenario.local_prefill_tokens,
                  time_.Now());
}

void RouterNode::Do(size_t i, const router::SendTo& action) {
  std::visit([&](const auto& order) { Send(i, action.worker, order); }, action.order);
}

void RouterNode::Send(size_t i, WorkerId worker, const router::ReserveLeg& leg) {
  if (router::LiveLegs* live = LiveAt(worker)) live->Reserved(leg.key);
  const router::ReserveLeg order{leg.key, static_cast<uint32_t>(plant_.scenario.expiry_ms)};
  ToWorker(worker, router::EncodeReserve(calls_[i]->generation, order).SerializeAsString(), false,
           [](WorkerNode& node, const std::string& session, const std::string& bytes) {
             static_cast<DecodeNode&>(node).OnReserve(session, bytes);
           });
}

void RouterNode::Send(size_t i, WorkerId worker, const router::PrefillLeg& leg) {
  Call& call = *calls_[i];
  if (links_[static_cast<size_t>(worker.slot)].session != worker.session)
    return call.flow->PrefillEnded(leg.key, {Broken()}, false, time_.Now());
  call.prefills.emplace_back(worker, leg.key);
  LiveAt(worker)->Prefilling(leg.key);
  ToWorker(worker, router::EncodePrefill(call.generation, leg).SerializeAsString(), false,
           [](WorkerNode& node, const std::string& session, const std::string& bytes) {
             static_cast<PrefillNode&>(node).OnPrefill(session, bytes);
           });
}

void RouterNode::Do(size_t i, const router::PickPrefill&) {
  RequestFlow& flow = *calls_[i]->flow;
  const std::vector<int> prefills = Ready(true, flow.excluded_prefill());
  flow.PrefillChosen(prefills.empty() ? std::nullopt : std::optional(IdOf(prefills[time_.Below(prefills.size())])),
                     time_.Now());
}

void RouterNode::Send(size_t, WorkerId worker, const router::CancelLeg& order) {
  if (router::LiveLegs* live = LiveAt(worker)) {
    order.key.epoch == 0 ? live->Ended(order.key.leg_id) : live->PrefillEnded(order.key);
  }
  ToWorker(worker, router::EncodeCancel(order).SerializeAsString(), false,
           [](WorkerNode& node, const std::string&, const std::string& bytes) { node.OnCancel(bytes); });
}

void RouterNode::Send(size_t i, WorkerId worker, const router::AttachLeg& leg) {
  Call& call = *calls_[i];
  second_attaches_ += !leg.choices.empty() && leg.grant != nullptr;
  if (links_[static_cast<size_t>(worker.slot)].session != worker.session)
    return call.flow->WorkerLost(worker, Broken(), time_.Now());
  LiveAt(worker)->Attached(leg.leg_id, leg.attempt, leg.attach_gen);
  v1::RelayUp up;
  *up.add_attach() = router::EncodeAttach(call.generation, leg);
  ToWorker(
      worker, up.SerializeAsString(), true,
      [](WorkerNode& node, const std::string& session, const std::string& bytes) { node.OnRelayUp(session, bytes); });
}

void RouterNode::Send(size_t, WorkerId worker, const router::CancelAttached& order) {
  if (router::LiveLegs* live = LiveAt(worker); live != nullptr && !order.index) live->Ended(order.leg_id);
  v1::RelayUp up;
  *up.add_cancel() = router::EncodeCancel(order);
  ToWorker(
      worker, up.SerializeAsString(), true,
      [](WorkerNode& node, const std::string& session, const std::string& bytes) { node.OnRelayUp(session, bytes); });
}

void RouterNode::Send(size_t, WorkerId worker, const router::GiveCredit& order) {
  v1::RelayUp up;
  *up.add_credit() = router::EncodeCredit(order);
  ToWorker(
      worker, up.SerializeAsString(), true,
      [](WorkerNode& node, const std::string& session, const std::string& bytes) { node.OnRelayUp(session, bytes); });
}

void RouterNode::Do(size_t i, const router::EmitTokens& action) {
  for (size_t t = 0; t < action.token_ids.size(); ++t)
    clients_[i].text[action.index] += TokenText(action.token_ids[t], action.logprobs, t);
  calls_[i]->flow->Consumed(action.index, static_cast<uint32_t>(action.token_ids.size()));
}

void RouterNode::Do(size_t i, const router::EndChoice& action) {
  clients_[i].text[action.index] += StrCat("end ", static_cast<int>(action.reason));
}

void RouterNode::Do(size_t i, const router::Complete&) { End(i, ClientView::End::kComplete); }

void RouterNode::Do(size_t i, const router::Fail& action) {
  clients_[i].failure = action.status;
  End(i, ClientView::End::kFailed);
}

void RouterNode::Do(size_t i, const router::ArmTimer& action) {
  time_.At(action.at, [this, i, timer = ++calls_[i]->timer] {
    if (timer != calls_[i]->timer || clients_[i].end != ClientView::End::kNone) return;
    calls_[i]->flow->Timer(time_.Now());
    Pump(i);
  });
}

}  // namespace baton::sim
