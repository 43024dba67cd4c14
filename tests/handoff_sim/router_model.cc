#include "router_model.h"

#include <algorithm>

#include "decode_node.h"
#include "prefill_node.h"

namespace baton::sim {

using std::chrono::milliseconds;
using std::chrono::seconds;

RouterModel::RouterModel(World& world) : world_(world) {}

void RouterModel::Begin() {
  requests_.resize(static_cast<size_t>(world_.scenario.requests));
  for (int i = 0; i < world_.scenario.requests; ++i) {
    world_.After(milliseconds(world_.Pick(0, world_.scenario.spread_ms)), [this, i] {
      requests_[static_cast<size_t>(i)].started = requests_[static_cast<size_t>(i)].progress = world_.now;
      ChooseDecode(i);
      SendLeg(i);
      Poke(i);
    });
  }
}

bool RouterModel::AllEnded() const {
  return std::all_of(requests_.begin(), requests_.end(), [this](const Request& r) { return Over(r); });
}

void RouterModel::ChooseDecode(int index) {
  Request& r = requests_[static_cast<size_t>(index)];
  r.decode = static_cast<int>((static_cast<uint32_t>(index) + r.attempt) % world_.decodes.size());
  r.decode_life = world_.decodes[static_cast<size_t>(r.decode)]->life();
}

/// Every 100 ms of a request's life: what is not answered is said again, what takes too long is tried elsewhere.
void RouterModel::Poke(int index) {
  Request& r = requests_[static_cast<size_t>(index)];
  SendCancels();
  world_.After(milliseconds(100), [this, index] { Poke(index); });
  if (Over(r)) return;
  const Duration age = world_.now - r.started, silent = world_.now - r.progress;
  if (world_.scenario.faultless() && age > seconds(2))
    return world_.Break("a request took 2 s though nothing went wrong");
  if (age > seconds(45)) return End(index, Phase::kFailed, true);
  const DecodeNode& d = *world_.decodes[static_cast<size_t>(r.decode)];
  if (d.dead() || d.life() != r.decode_life) return Migrate(index);
  if (r.phase == Phase::kPrefill) {
    const PrefillNode& p = *world_.prefills[static_cast<size_t>(r.prefill)];
    if (p.dead() || p.life() != r.prefill_life || silent > seconds(5)) return Reissue(index);
  }
  if (r.phase != Phase::kPrefill && silent > seconds(3)) return Migrate(index);
  RenewCredit(index);
  if (world_.faults_on) Disturb(index);
  if (!Over(r) && world_.Pick(0, 2) == 0) SendLeg(index);
}

void RouterModel::RenewCredit(int index) {
  const Request& r = requests_[static_cast<size_t>(index)];
  const bool attached = r.phase == Phase::kAttach;
  const auto renew = [this, index, r, gen = attached ? r.gen : 0](Duration latency) {
    DecodeNode& node = *world_.decodes[static_cast<size_t>(r.decode)];
    if (node.life() != r.decode_life) return;
    const decode::Renewed lease{{StrCat("r", index), r.attempt}, gen};
    world_.After(latency, [&node, lease, life = r.decode_life] {
      if (node.life() == life) node.NoteRenewal(lease);
    });
    node.Post(latency, [&node, lease] { node.OnRenewed(lease); });
  };
  attached ? world_.Send(renew) : renew(milliseconds(1));
}

void RouterModel::Disturb(int index) {
  Request& r = requests_[static_cast<size_t>(index)];
  const Scenario& s = world_.scenario;
  if (world_.Chance(s.client_leaves / 10)) return End(index, Phase::kFailed, true);
  if (world_.Chance(s.give_up / 10)) return r.phase == Phase::kPrefill ? Reissue(index) : Migrate(index);
  if (r.phase == Phase::kAttach && world_.Chance(s.reattach / 10)) ++r.gen, SendAttach(index);
}

void RouterModel::SendLeg(int index) {
  switch (requests_[static_cast<size_t>(index)].phase) {
    case Phase::kReserve: return SendReserve(index);
    case Phase::kPrefill: return SendPrefill(index);
    case Phase::kAttach: return SendAttach(index);
    case Phase::kOk:
    case Phase::kFailed: return;
  }
}

uint32_t RouterModel::WireEpoch(const Request& r) const { return Planted("reuse epoch number") ? 1 : r.epoch; }

void RouterModel::SendReserve(int index) {
  const Request& r = requests_[static_cast<size_t>(index)];
  world_.Send([this, index, r](Duration latency) {
    DecodeNode& node = *world_.decodes[static_cast<size_t>(r.decode)];
    if (node.life() == r.decode_life)
      node.Post(latency, [&node, index, attempt = r.attempt] { node.OnReserve(index, attempt); });
  });
}

void RouterModel::SendPrefill(int index) {
  const Request& r = requests_[static_cast<size_t>(index)];
  const Connection& c = world_.Connect(r.prefill, r.decode, r.memory);
  const std::vector<int64_t> bytes(static_cast<size_t>(world_.scenario.segments), 1);
  prefill::Prefill event{
      {StrCat("r", index), r.attempt, WireEpoch(r)}, c.id, r.ticket, r.secret, 42, {}, r.expires - world_.now};
  event.lanes.assign(static_cast<size_t>(world_.scenario.lanes), bytes);
  world_.Send([this, index, r, event, id = c.id](Duration latency) {
    PrefillNode& node = *world_.prefills[static_cast<size_t>(r.prefill)];
    if (node.life() == r.prefill_life)
      node.Post(latency, [&node, index, event, id] { node.OnPrefill(index, id, event); });
  });
}

void RouterModel::SendAttach(int index) {
  const Request& r = requests_[static_cast<size_t>(index)];
  world_.Send([this, r](Duration latency) {
    DecodeNode& node = *world_.decodes[static_cast<size_t>(r.decode)];
    if (node.life() != r.decode_life) return;
    node.Post(latency,
              [&node, attach = decode::Attach{r.ticket, WireEpoch(r), r.gen, r.text}] { node.OnAttach(attach); });
  });
}

void RouterModel::OnTicket(int decode, uint64_t life, const decode::ReserveAnswer& answer) {
  const int index = IndexOf(answer.key.request_id);
  Request& r = requests_[static_cast<size_t>(index)];
  if (r.phase != Phase::kReserve || r.attempt != answer.key.attempt || r.decode != decode || r.decode_life != life)
    return;
  if (!answer.status.ok()) return;  // asked again, elsewhere after a while
  r.phase = Phase::kPrefill;
  r.ticket = answer.ticket, r.secret = answer.secret;
  r.memory = world_.decodes[static_cast<size_t>(decode)]->memory();
  r.expires = world_.now + answer.expiry;
  r.epoch = 0;
  Reissue(index);
}

/// Another prefill worker at epoch + 1; the first one, too.
void RouterModel::Reissue(int index) {
  Request& r = requests_[static_cast<size_t>(index)];
  if (r.epoch > 0) OwePrefill(r, index);
  if (r.epoch >= 4) return Migrate(index);
  r.phase = Phase::kPrefill;
  ++r.epoch;
  r.prefill = static_cast<int>((static_cast<uint32_t>(index) + r.epoch) % world_.prefills.size());
  r.prefill_life = world_.prefills[static_cast<size_t>(r.prefill)]->life();
  r.progress = world_.now;
  SendPrefill(index);
}

/// Another decode worker: prompt and generated tokens, next position, attach_gen + 1.
void RouterModel::Migrate(int index) {
  Request& r = requests_[static_cast<size_t>(index)];
  OweDecode(r, index);
  if (r.phase != Phase::kReserve) OwePrefill(r, index);  // its reply came before the end of its transfer
  r.phase = Phase::kReserve;
  ++r.attempt;
  r.gen = Planted("attach_gen counted by each D") ? 1 : r.gen + 1;
  r.base = r.text;
  r.progress = world_.now;
  ChooseDecode(index);
  SendReserve(index);
}

void RouterModel::OnPrefillReply(int prefill, uint64_t life, const prefill::Reply& reply) {
  const int index = IndexOf(reply.key.request_id);
  Request& r = requests_[static_cast<size_t>(index)];
  if (r.phase != Phase::kPrefill || r.attempt != reply.key.attempt || WireEpoch(r) != reply.key.epoch) return;
  if (r.prefill != prefill || r.prefill_life != life) return;
  if (!reply.status.ok()) return reply.no_room ? Migrate(index) : Reissue(index);
  if (r.text == r.base) ++r.text;
  r.progress = world_.now;
  if (r.text >= static_cast<uint64_t>(world_.scenario.tokens)) return End(index, Phase::kOk, true);
  r.phase = Phase::kAttach;
  SendAttach(index);
}

void RouterModel::OnAttachRefused(int decode, uint64_t life, const decode::AttachRefused& refusal) {
  for (int index = 0; index < world_.scenario.requests; ++index) {
    Request& r = requests_[static_cast<size_t>(index)];
    if (r.phase != Phase::kAttach || r.ticket != refusal.ticket || r.gen != refusal.attach_gen || r.decode != decode ||
        r.decode_life != life)
      continue;
    if (refusal.prefill_again) {
      Reissue(index);
    } else {
      Migrate(index);
    }
  }
}

void RouterModel::OnToken(int decode, uint64_t life, TicketId ticket, int request, uint64_t gen, uint64_t position) {
  TimePoint& last = token_order_[{decode, ticket}];
  last = std::max(last + std::chrono::nanoseconds(1), world_.now + world_.Latency());
  world_.After(last - world_.now, [this, decode, life, ticket, request, gen, position] {
    if (world_.decodes[static_cast<size_t>(decode)]->life() == life) Accept(request, ticket, gen, position);
  });
}

/// Exactly the next position of the current attach_gen. A re-attach cuts the stream: what was on its way is lost.
void RouterModel::Accept(int index, TicketId ticket, uint64_t gen, uint64_t position) {
  Request& r = requests_[static_cast<size_t>(index)];
  if (!Over(r) && gen == r.gen && ticket == r.ticket && position > r.text)
    return world_.Break("a sequence skipped positions");
  if (Over(r) || (gen != r.gen && !Planted("attach_gen ignored")) || position != r.text) return;
  if (ticket != r.ticket || r.phase == Phase::kReserve)
    return world_.Break("the client was given a token of a sequence that was given up");
  ++r.text;
  r.progress = world_.now;
  if (r.text >= static_cast<uint64_t>(world_.scenario.tokens)) End(index, Phase::kOk, r.phase == Phase::kPrefill);
}

bool RouterModel::GaveUp(const prefill::JobKey& key) const {
  const Request& r = requests_[static_cast<size_t>(IndexOf(key.request_id))];
  return r.phase == Phase::kFailed || r.attempt != key.attempt || WireEpoch(r) != key.epoch;
}

bool RouterModel::Acknowledged(int request, TicketId ticket) const {
  const Request& r = requests_[static_cast<size_t>(request)];
  return Over(r) || r.ticket != ticket;
}

void RouterModel::End(int index, Phase how, bool cancel) {
  Request& r = requests_[static_cast<size_t>(index)];
  if (cancel) {
    OweDecode(r, index);
    if (r.phase != Phase::kReserve) OwePrefill(r, index);
  }
  if (how == Phase::kFailed && world_.scenario.faultless()) world_.Break("a request failed though nothing went wrong");
  r.phase = how;
}

void RouterModel::OweDecode(const Request& r, int index) {
  if (!Planted("router forgets decode"))
    owed_decode_.insert({r.decode, r.decode_life, {StrCat("r", index), r.attempt}});
}

void RouterModel::OwePrefill(const Request& r, int index) {
  if (!Planted("router forgets prefill"))
    owed_prefill_.insert({r.prefill, r.prefill_life, {StrCat("r", index), r.attempt, WireEpoch(r)}});
}

void RouterModel::SendCancels() {
  std::erase_if(owed_decode_, [this](const auto& o) {
    return world_.decodes[static_cast<size_t>(std::get<0>(o))]->life() != std::get<1>(o);
  });
  std::erase_if(owed_prefill_, [this](const auto& o) {
    return world_.prefills[static_cast<size_t>(std::get<0>(o))]->life() != std::get<1>(o);
  });
  for (const auto& [decode, life, key] : owed_decode_) {
    DecodeNode& node = *world_.decodes[static_cast<size_t>(decode)];
    world_.Send([&node, key](Duration latency) { node.Post(latency, [&node, key] { node.OnCancel(key); }); });
  }
  for (const auto& [prefill, life, key] : owed_prefill_) {
    PrefillNode& node = *world_.prefills[static_cast<size_t>(prefill)];
    world_.Send([&node, key](Duration latency) { node.Post(latency, [&node, key] { node.OnCancel(key); }); });
  }
}

void RouterModel::OnDecodeCancelled(int decode, uint64_t life, const decode::TicketKey& key) {
  owed_decode_.erase({decode, life, key});
}

void RouterModel::OnPrefillCancelled(int prefill, uint64_t life, const prefill::JobKey& key) {
  owed_prefill_.erase({prefill, life, key});
}

}  // namespace baton::sim
