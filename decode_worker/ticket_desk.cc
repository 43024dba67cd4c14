#include "decode_worker/ticket_desk.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/check.h"
#include "common/foreign_text.h"
#include "common/log.h"
#include "common/planted_bug.h"
#include "common/status.h"
#include "decode_worker/ticket_codec.h"
#include "kvtransfer/rank_numbers.h"
#include "proto/worker.pb.h"
#include "worker/transfer/kv_pool_view.h"

namespace baton::decode_worker {

using decode::TicketState;
using worker::TicketStart;

namespace {

constexpr auto kSilence = std::chrono::seconds(4);

}  // namespace

TicketDesk::TicketDesk(DeskFacts facts, LandingControl& landing, worker::TransferLoop& thread, const Clock& clock)
    : facts_(std::move(facts)), landing_(landing), thread_(thread), clock_(clock), core_(facts_.handoff, *this) {}

void TicketDesk::Handle(const decode::Event& event) {
  std::vector<decode::Action> actions;
  core_.Handle(event, clock_.Now(), actions);
  DoAll(actions);
}

void TicketDesk::DoAll(const std::vector<decode::Action>& actions) {
  for (const decode::Action& action : actions) std::visit([this](const auto& one) { Do(one); }, action);
}

// ---- Reserve and Cancel

decode::ReserveAnswer TicketDesk::Reserve(const decode::ReserveOrder& order, std::shared_ptr<const Grammar> grammar) {
  if (draining_) return {order.key, absl::UnavailableError("this worker is draining")};
  if (std::ranges::find(left_, std::pair(order.session, order.key.router)) != left_.end()) {
    return {order.key, absl::CancelledError("its router's session has ended")};
  }
  if (absl::Status checked = CheckReserve(order, scheduler_->options().max_model_len); !checked.ok())
    return {order.key, std::move(checked)};
  decode::ReserveAnswer answer = core_.Reserve(order, clock_.Now());
  reserves_refused_ += !answer.status.ok();
  if (answer.status.ok() && grammar) tickets_.at(answer.ticket).grammar = scheduler_->BeginGrammar(std::move(grammar));
  return answer;
}

bool TicketDesk::Cancel(const decode::TicketKey& key, bool asks_again) {
  std::vector<decode::Action> actions;
  const bool known = core_.Cancel(key, asks_again, clock_.Now(), actions);
  DoAll(actions);
  return known;
}

void TicketDesk::OnRouterLeft(const std::string& session, const std::string& router) {
  if (session.empty()) return;
  if (left_.size() == kRemembered) ForgetOneThatLeft();
  left_.emplace_back(session, router);
  std::vector<decode::TicketKey> keys;
  for (const auto& [id, ticket] : tickets_) {
    if (!ticket.request && ticket.session == session && ticket.key.router == router) keys.push_back(ticket.key);
  }
  for (const decode::TicketKey& key : keys) Cancel(key);
}

/// The oldest of the router that has the most: none has another's forgotten.
void TicketDesk::ForgetOneThatLeft() {
  std::map<std::string_view, size_t> of_router;
  for (const auto& [session, router] : left_) ++of_router[router];
  const std::string_view most =
      std::ranges::max_element(of_router, {}, [](const auto& one) { return one.second; })->first;
  left_.erase(std::ranges::find(left_, most, [](const auto& one) { return std::string_view(one.second); }));
}

void TicketDesk::Do(const decode::ReservationShed& action) {
  LogInfo("handoff: ticket {} was given up unbound: KV memory is short", action.ticket);
}

bool TicketDesk::Shed() {
  int32_t before = 0, after = 0;
  for (int32_t g = 0; g < scheduler_->cache().num_groups(); ++g)
    before += scheduler_->cache().pool(g).available_blocks();
  Handle(decode::ShedUnbound{});
  for (int32_t g = 0; g < scheduler_->cache().num_groups(); ++g)
    after += scheduler_->cache().pool(g).available_blocks();
  return after > before;
}

// ---- blocks

int32_t TicketDesk::Pin(TicketId id, const decode::ReserveOrder& order) {
  Ticket& ticket = tickets_[id];
  ticket = {.key = order.key, .session = order.session, .prompt_len = order.prompt_len};
  engine::PrefixMatch match =
      scheduler_->cache().Match(order.salt, "", order.prompt, order.prompt_len - 1, /*whole_blocks=*/true);
  BATON_CHECK(match.copies.empty());
  ticket.cached_tokens = match.tokens;
  ticket.pin = std::move(match.kv);
  return match.tokens;
}

bool TicketDesk::Bind(TicketId id, uint32_t epoch, int32_t) {
  Ticket& ticket = tickets_.at(id);
  engine::SequenceKv kv = ticket.pin.Share();
  if (!scheduler_->BindForHandoff(kv, ticket.prompt_len + 1).ok()) return false;
  auto tables = std::make_shared<const KvBlockTables>(worker::TablesOf(kv));
  ticket.bound[epoch] = {std::move(kv), std::move(tables)};
  return true;
}

void TicketDesk::Release(TicketId id, uint32_t epoch) {
  Ticket& ticket = tickets_.at(id);
  ticket.bound.erase(epoch);
  ticket.plans.erase(epoch);
}

/// Also of a ticket that was not admitted.
void TicketDesk::Unpin(TicketId id) {
  const auto found = tickets_.find(id);
  if (core_.Find(id) == nullptr)
    tickets_.erase(found);
  else
    found->second.pin.Clear(), found->second.grammar.reset();
}

bool TicketDesk::HoldsBlocks(TicketId id, uint32_t epoch) const {
  const auto ticket = tickets_.find(id);
  return ticket != tickets_.end() && ticket->second.bound.contains(epoch);
}

int64_t TicketDesk::OwnedBlocks(int32_t group) const {
  const auto count = [group](const engine::SequenceKv& kv) {
    return kv.tables.empty() ? 0 : kv.tables[static_cast<size_t>(group)].owned();
  };
  int64_t owned = 0;
  for (const auto& [id, ticket] : tickets_) {
    owned += count(ticket.pin);
    for (const auto& [epoch, bound] : ticket.bound) owned += count(bound.kv);
  }
  return owned;
}

// ---- lanes

void TicketDesk::OnHello(WriterId id, LaneHello hello) {
  Writer writer;
  if (!hello.protocol.Shares(facts_.kv_protocol))
    writer.why_not = StrCat("KV protocol ", Text(hello.protocol), ", here ", Text(facts_.kv_protocol));
  if (hello.model_digest != facts_.model_digest) {
    writer.why_not = StrCat("model digest ", hello.model_digest, ", here ", facts_.model_digest);
  }
  if (hello.kv_digest != facts_.kv_digest)
    writer.why_not = StrCat("KV digests ", hello.kv_digest, ", here ", facts_.kv_digest);
  if (const absl::Status same = CheckSameMeaning(hello.side.layout, facts_.side.layout); !same.ok()) {
    writer.why_not = std::string(View(same.message()));
  }
  const std::string life = Printable(hello.incarnation);
  if (!writer.why_not.empty() && !writers_.contains(id) && lines_.May(life))
    LogWarning("handoff: prefill worker {} does not fit: {}", life, Printable(writer.why_not, 400));
  const auto same_life = [&hello](const auto& known) { return known.second.hello.incarnation == hello.incarnation; };
  if (hello.numerics_id != facts_.numerics_id && std::none_of(writers_.begin(), writers_.end(), same_life) &&
      lines_.May(StrCat("numerics of ", life))) {
    LogWarning("handoff: prefill worker {} computes with numerics {}, this one with {}: answers keep Promise B only",
               life, Printable(hello.numerics_id), facts_.numerics_id);
  }
  writer.hello = std::move(hello);
  writers_[id] = std::move(writer);
}

void TicketDesk::OnLane(WriterId writer, ToDecode message) {
  if (const auto known = writers_.find(writer); known != writers_.end()) known->second.heard = Listened();
  if (const auto* open = std::get_if<OpenLane>(&message)) return Open(writer, *open);
  if (auto* full = std::get_if<SlotFull>(&message)) return Handle(decode::Filled{writer, std::move(*full)});
  if (const auto* done = std::get_if<LaneDone>(&message)) return Handle(decode::Done{writer, *done});
  Handle(decode::Closed{writer, std::get<LaneClosed>(message)});
}

/// Whether there is such a ticket, and who asks was given it.
bool TicketDesk::Knows(TicketId id, const TicketSecret& secret) const {
  const decode::Ticket* const ticket = core_.Find(id);
  return ticket != nullptr && ticket->secret == secret && tickets_.contains(id);
}

void TicketDesk::Open(WriterId id, const OpenLane& message) {
  const auto refuse = [&](std::string_view why) {
    Do(decode::SendToWriter{id, LaneGone{message.lane, std::string(why)}});
  };
  const auto writer = writers_.find(id);
  if (writer == writers_.end()) return refuse("no hello came first");
  if (!writer->second.why_not.empty()) return refuse(writer->second.why_not);
  decode::Opened opened{
      id, landing_.FenceOf(id), message, 0, {}, writer->second.hello.incarnation, landing_.MemoryOf(id)};
  if (const auto ticket = tickets_.find(message.lane.ticket); Knows(message.lane.ticket, message.secret)) {
    if (writer->second.hello.numerics_id != facts_.numerics_id) ticket->second.foreign.insert(message.lane.epoch);
    const auto plan = PlanFor(ticket->second, message.lane.epoch, writer->second.hello.side);
    if (!plan.ok()) return refuse(View(plan.status().message()));
    const std::vector<LanePlan>& lanes = (*plan)->lanes();
    if (const uint32_t lane = message.lane.lane; lane < lanes.size() && lanes[lane].target_rank != RankOf(id))
      return refuse(StrCat("lane ", lane, " leads to rank ", lanes[lane].target_rank, ", it came to ", RankOf(id)));
    opened.plan_digest = (*plan)->digest();
    for (const LanePlan& lane : lanes) opened.lanes.push_back({lane.target_rank, static_cast<uint32_t>(lane.segments)});
  }
  Handle(opened);
  // A plan is kept as long as its epoch holds blocks: a peer may name any number of epochs.
  if (const auto ticket = tickets_.find(message.lane.ticket); ticket != tickets_.end()) {
    if (!ticket->second.bound.contains(message.lane.epoch)) ticket->second.plans.erase(message.lane.epoch);
  }
}

absl::StatusOr<std::shared_ptr<const TransferPlan>> TicketDesk::PlanFor(Ticket& ticket, uint32_t epoch,
                                                                        const KvSide& source) {
  std::shared_ptr<const TransferPlan>& plan = ticket.plans[epoch];
  if (plan == nullptr || !ticket.bound.contains(epoch)) {
    BATON_ASSIGN_OR_RETURN(
        TransferPlan made,
        TransferPlan::Make(source, facts_.side, {ticket.cached_tokens, ticket.prompt_len}, facts_.piece_tokens));
    plan = std::make_shared<const TransferPlan>(std::move(made));
  }
  return plan;
}

void TicketDesk::Do(const decode::SendToWriter& action) {
  thread_.Post([this, action] { landing_.Send(action.writer, action.message); });
}

void TicketDesk::Do(const decode::ScatterSlot& action) {
  const Ticket& ticket = tickets_.at(action.lane.ticket);
  thread_.Post([this, order = ScatterOrder{action.lane, action.slot, action.wanted, ticket.plans.at(action.lane.epoch),
                                           ticket.bound.at(action.lane.epoch).tables, /*tell=*/false,
                                           action.may_wait}] { landing_.Place(order); });
}

void TicketDesk::OnWriterGone(WriterId writer, bool fenced) {
  if (!fenced) return Handle(decode::WriterLost{writer});
  Handle(decode::WriterFenced{writer});
  writers_.erase(writer);
}

void TicketDesk::Do(const decode::CutWriter& action) {
  thread_.Post([this, writer = action.writer] { landing_.Cut(writer); });
}

/// What it says after all finds no hello of it.
void TicketDesk::Do(const decode::ReleaseWriter& action) {
  writers_.erase(action.writer);
  thread_.Post([this, writer = action.writer] { landing_.Release(writer); });
}

void TicketDesk::Do(const decode::ReplaceMemory& action) {
  thread_.Post([this, memory = action.memory] { landing_.Replace(memory); });
}

void TicketDesk::Do(const decode::DropMemory& action) {
  std::erase_if(writers_, [&](const auto& writer) { return landing_.MemoryOf(writer.first) == action.memory; });
  thread_.Post([this, memory = action.memory] { landing_.Drop(memory); });
}

// ---- Attach

absl::Status TicketDesk::OnAttach(worker::TicketAttach attach, engine::Scheduler& scheduler) {
  Use(scheduler);
  const std::optional<engine::RequestKey> replaced = attach.replaces;
  const absl::Status taken = Take(std::move(attach));
  if (replaced) OnEnded(*replaced);  // unless the new one took its ticket over
  return taken;
}

absl::Status TicketDesk::Take(worker::TicketAttach attach) {
  v1::Ticket wire;
  if (!wire.ParseFromString(attach.ticket))
    return absl::InvalidArgumentError(StrCat("a ticket of ", attach.ticket.size(), " bytes that is none"));
  if (wire.incarnation() != facts_.incarnation)
    return absl::UnavailableError("the ticket is of an earlier life of this worker");
  const auto found = tickets_.find(wire.id());
  if (found == tickets_.end() || !Knows(wire.id(), {wire.secret_high(), wire.secret_low()}))
    return absl::UnavailableError(StrCat("ticket ", wire.id(), " is gone"));
  Ticket& ticket = found->second;
  if (attach.request.prompt_len != ticket.prompt_len) {
    return absl::InvalidArgumentError(
        StrCat("a prompt of ", attach.request.prompt_len, " tokens for a ticket of ", ticket.prompt_len));
  }
  if (ticket.request && ticket.request != attach.replaces)
    return absl::AbortedError(StrCat("ticket ", wire.id(), " is attached by another request"));
  if (ticket.request) by_request_.erase(*ticket.request);
  const decode::Attach event{wire.id(), attach.epoch, attach.attach_gen, attach.position};
  engine::Request& request = attach.request;
  const bool one_token = static_cast<int32_t>(request.tokens.size()) == request.prompt_len + 1;
  if (attach.first.empty() && one_token && request.sampling.n == 1) {  // continues where the prompt's KV ends
    attach.first = {{request.sequence_index, request.tokens.back()}};
    request.tokens.pop_back();
  }
  ticket.request = attach.request.key;
  ticket.attached = Listened();
  by_request_[attach.request.key] = wire.id();
  ticket.attach = std::move(attach);
  Handle(event);
  return absl::OkStatus();
}

void TicketDesk::Do(const decode::StartSequence& action) {
  Ticket& ticket = tickets_.at(action.ticket);
  const engine::SequenceKv pin = std::exchange(ticket.pin, {});  // until the scheduler has its own owners
  worker::TicketAttach attach = std::move(*std::exchange(ticket.attach, std::nullopt));
  const engine::RequestKey key = attach.request.key;
  TicketStart how = TicketStart::kHandedOver;
  absl::Status status;
  const bool prompt_only = static_cast<int32_t>(attach.request.tokens.size()) == ticket.prompt_len;
  if (action.recompute || !prompt_only) {  // a second Attach has output that the KV does not cover
    if (attach.request.sampling.use_beam_search) attach.first.clear();  // computed here from the prompt on
    const Bound unused = action.recompute ? Bound{} : std::move(ticket.bound.extract(action.epoch).mapped());
    const bool others_drew = !ticket.foreign.empty() && attach.request.sampling.n > 1 && !attach.first.empty();
    status =
        others_drew && !PlantedBug("first tokens drawn again") ? OtherFirst() : StartComputing(std::move(attach), &how);
  } else {
    engine::SequenceKv kv = std::move(ticket.bound.extract(action.epoch).mapped().kv);
    // The prefix cache holds what this worker's own numerics give, so that who reads it needs not ask whose it is.
    if (ticket.foreign.contains(action.epoch) && !PlantedBug("foreign KV is published")) kv.cursor = {};
    status =
        scheduler_->AttachRequest({std::move(attach.request), std::move(kv), std::move(attach.first)}, clock_.Now());
  }
  ticket.grammar.reset();
  if (!status.ok()) return relay_->EndWithError(key, status);
  relay_->OnStarted(key, how, *scheduler_, clock_.Now());
}

/// Choices draw their first tokens from one prefill. Computed here, they could be others than those that a prefill
/// worker of other numerics drew, which the client has: each choice has to go on from its own, in a leg of its own.
absl::Status TicketDesk::OtherFirst() {
  return absl::AbortedError("the KV of several choices was lost, and other numerics drew their first tokens");
}

/// Another Attach took the ticket over: prompt and output so far are computed again, most of it from this worker's
/// cache.
void TicketDesk::Do(const decode::ContinueSequence& action) {
  worker::TicketAttach attach = std::move(*std::exchange(tickets_.at(action.ticket).attach, std::nullopt));
  const engine::RequestKey key = attach.request.key;
  TicketStart how = TicketStart::kComputedHere;
  if (const absl::Status status = StartComputing(std::move(attach), &how); !status.ok())
    return relay_->EndWithError(key, status);
  relay_->OnStarted(key, how, *scheduler_, clock_.Now());
}

absl::Status TicketDesk::StartComputing(worker::TicketAttach attach, TicketStart* how) {
  *how = TicketStart::kComputedHere;
  if (!attach.first.empty() && attach.request.sampling.n == 1) {
    attach.request.tokens.push_back(attach.first[0].token);
  } else if (!attach.first.empty()) {
    *how = TicketStart::kComputedAgain;  // choices draw their first tokens from one prefill
  }
  return scheduler_->AddRequest(std::move(attach.request), clock_.Now());
}

/// ABORTED tells the router that nothing failed here: it did not renew the ticket.
absl::Status TicketDesk::EndOf(TicketId id, const std::string& reason) const {
  const decode::Ticket* ticket = core_.Find(id);
  return ticket != nullptr && ticket->lapsed ? absl::AbortedError(reason) : absl::UnavailableError(reason);
}

void TicketDesk::Do(const decode::AttachRefused& action) {
  const auto ticket = tickets_.find(action.ticket);
  if (ticket == tickets_.end() || !ticket->second.request) return;
  ticket->second.attach.reset();
  relay_->EndWithError(*ticket->second.request, EndOf(action.ticket, action.reason));
}

void TicketDesk::Do(const decode::StopSequence& action) {
  const auto ticket = tickets_.find(action.ticket);
  if (ticket == tickets_.end() || !ticket->second.request) return;
  const engine::RequestKey key = *ticket->second.request;
  scheduler_->Cancel(key, clock_.Now());
  relay_->EndWithError(key, EndOf(action.ticket, StrCat("ticket closed: ", core_.Find(action.ticket)->why_closed)));
}

void TicketDesk::OnEnded(engine::RequestKey key) {
  const auto node = by_request_.extract(key);
  if (node.empty()) return;
  const TicketId id = node.mapped();
  Ticket& ticket = tickets_.at(id);
  ticket.attach.reset();
  const decode::Ticket* known = core_.Find(id);
  if (known == nullptr) return;
  if (known->state == TicketState::kAttached) return Handle(decode::Finished{id});
  Cancel(ticket.key);
}

// ---- time

/// The time that others' silence is judged by.
TimePoint TicketDesk::Listened() const { return PlantedBug("renewal after clock") ? clock_.Now() : own_.Now(); }

/// An Attach says that the prompt is computed, and a writer repeats a message that is not answered. So a writer that is
/// silent while a request waits for its segments is stopped or cut off: the segments that it owes are computed here.
void TicketDesk::GiveUpSilentWriters() {
  const TimePoint long_ago = Listened() - kSilence;
  std::set<WriterId> silent;
  for (const auto& [id, ticket] : tickets_) {
    const decode::Ticket* known = core_.Find(id);
    if (!ticket.attach || ticket.attached > long_ago || known == nullptr || !known->epochs.contains(known->epoch))
      continue;
    for (const decode::Lane& lane : known->epochs.at(known->epoch).lanes) {
      const auto writer = writers_.find(lane.writer);
      if (!lane.complete() && writer != writers_.end() && writer->second.heard < long_ago) silent.insert(lane.writer);
    }
  }
  for (WriterId writer : silent) {
    LogWarning("handoff: prefill worker {} is silent: its KV is computed here",
               Printable(writers_.at(writer).hello.incarnation));
    Handle(decode::WriterLost{writer, /*connected=*/true});
  }
}

void TicketDesk::Tick() {
  own_.Tick(clock_.Now());
  GiveUpSilentWriters();
  Handle(decode::Tick{});
  for (auto it = tickets_.begin(); it != tickets_.end();) {
    const decode::Ticket* known = core_.Find(it->first);
    const bool gone = known == nullptr || known->state == TicketState::kGone;
    const bool used = it->second.request && by_request_.contains(*it->second.request);
    it = gone && !used ? tickets_.erase(it) : std::next(it);
  }
}

}  // namespace baton::decode_worker
