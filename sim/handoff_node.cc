#include "sim/handoff_node.h"

#include <utility>

#include "sim/decode_part.h"
#include "sim/prefill_part.h"
#include "worker/process/nothing_runs.h"

namespace baton::sim {

using std::chrono::milliseconds;

HandoffNode::Life::Life(HandoffNode& node)
    : engine(node.plant_.engines.Make(node.role(), node.odd(), &no_role)),
      book({.vocab_size = engine::kFakeVocab}),
      hub(node.incarnation()) {}

HandoffNode::Life::~Life() {
  if (role) role->LetGo();
}

HandoffNode::HandoffNode(const Plant& plant, std::string name, v1::WorkerRole role, bool odd)
    : WorkerNode(plant, std::move(name), odd), first_role_(role), role_(role) {}

HandoffNode::~HandoffNode() = default;

void HandoffNode::OnBirth() {
  role_ = first_role_;
  life_now_ = std::make_unique<Life>(*this);
  life_now_->role = Make();
  UseRole();
  Run(life_now_->engine, life_now_->hub);
}

void HandoffNode::OnDeath() {
  WorkerNode::OnDeath();
  change_ = nullptr;
  life_now_.reset();
}

std::unique_ptr<RolePart> HandoffNode::Make() {
  if (role_ == v1::WORKER_ROLE_PREFILL) return std::make_unique<PrefillPart>(*this, life_now_->engine);
  return std::make_unique<DecodePart>(*this, life_now_->engine);
}

void HandoffNode::UseRole() {
  Life& life = *life_now_;
  life.role->Start(nullptr, &life.book);
  life.book.UseTickets(life.role->tickets());
  life.engine.scheduler().UsePolicy(*life.role->policy());
}

// ---- what routers call

/// Where nobody changes his role, nobody is asked for what others do.
void HandoffNode::CheckStranger(const char* what) const {
  if (!plant_.scenario.roles_change()) plant_.Break(StrCat(name(), ": ", what));
}

v1::ReserveReply HandoffNode::OnReserve(const v1::ReserveRequest& request, const std::string& router) {
  if (role_ == v1::WORKER_ROLE_PREFILL) CheckStranger("a prefill worker was asked for a ticket");
  v1::ReserveReply reply;
  life_now_->role->Reserve(request, router, [&reply](v1::ReserveReply answer) { reply = std::move(answer); });
  WakeGrammars();
  return reply;
}

void HandoffNode::OnPrefill(const v1::PrefillRequest& request, const std::string& router,
                            std::shared_ptr<worker::PrefillSink> sink) {
  if (role_ == v1::WORKER_ROLE_DECODE) CheckStranger("a decode worker was asked for a prefill leg");
  life_now_->role->Prefill(request, router, std::move(sink));
  Wake();
}

void HandoffNode::OnPrefillStreamEnd(const v1::RequestKey& key, const std::string& router) {
  if (life_now_->role) life_now_->role->PrefillStreamEnded(key, router);
  Wake();
}

void HandoffNode::OnCancel(const v1::CancelRequest& request, const std::string& router) {
  life_now_->role->Cancel(request, router, [](const v1::CancelReply&) {});
  Wake();
}

void HandoffNode::OnRelay(const std::shared_ptr<worker::RelayWriter>& stream, const v1::RelayUp& message) {
  Life& life = *life_now_;
  const bool prefills = role_ == v1::WORKER_ROLE_PREFILL;
  if (prefills && message.attach_size() > 0) CheckStranger("a prefill worker was asked to decode");
  life.book.OnMessage(stream, message, life.engine.scheduler(), time_.Now());
  if (life.role) {
    for (const v1::Renewal& r : message.renewal()) life.role->OnRenewal(r, stream->router());
    for (const v1::Meet& meet : message.meet()) life.role->OnMeet(meet);
  }
  if (!prefills || message.attach_size() > 0) Wake();
}

void HandoffNode::OnRelayEnd(const worker::RelayWriter& stream, const std::string& session) {
  Life& life = *life_now_;
  life.book.OnStreamEnd(&stream, life.engine.scheduler(), time_.Now());
  if (life.role) life.role->RouterLeft(session, stream.router());
  Wake();
}

// ---- its turns

void HandoffNode::OnOutputs(std::vector<engine::SequenceOutput> outputs, uint64_t step) {
  if (life_now_->role) life_now_->role->OnOutputs(outputs, life_now_->engine.scheduler());
  life_now_->book.OnOutputs(std::move(outputs), step);
}

void HandoffNode::OnLayers(const engine::StepPlan& plan) {
  if (life_now_->role) life_now_->role->OnLayers(plan);
}

void HandoffNode::OnTick() {
  Life& life = *life_now_;
  life.book.Tick(life.engine.scheduler(), time_.Now());
  if (life.role) life.role->OnTick(life.engine.scheduler());
  LookAtChange();
}

void HandoffNode::FillLoad(v1::Load& load) const {
  if (life_now_->role) life_now_->role->FillLoad(*load.mutable_handoff());
}

int64_t HandoffNode::OwnedBlocks(int32_t group) const {
  return life_now_->role ? life_now_->role->OwnedBlocks(group) : 0;
}

std::string HandoffNode::LandingAddress() const {
  return life_now_->role ? life_now_->role->LandingAddress() : std::string();
}

void HandoffNode::OnTurnEnd() {
  WorkerNode::OnTurnEnd();
  if (life_now_ && life_now_->role && !plant_.plans()) life_now_->role->CheckInvariants();
}

std::string HandoffNode::Holds() const {
  if (!life_now_) return "";
  const std::string role = life_now_->role ? life_now_->role->Holds() : "";
  const auto blocks = life_now_->engine.cache().pool(0).used_blocks();
  if (blocks == 0 && role.empty()) return "";
  return StrCat(name(), ": ", blocks, " blocks, ", role, "; ");
}

// ---- a change of the role

void HandoffNode::OnFlip(const v1::FlipRequest& request, FlipAnswered answer) {
  if (change_) return answer(absl::FailedPreconditionError("the worker changes its role already"));
  v1::FlipReply as_it_is;
  as_it_is.set_incarnation(incarnation());
  if (role_ == request.role()) return answer(as_it_is);
  change_ = std::make_unique<Change>();
  change_->to = request.role();
  change_->began = time_.Now();
  change_->answer = std::move(answer);
  if (request.deadline_ms() > 0) change_->until = time_.Now() + milliseconds(request.deadline_ms());
  life_now_->book.Drain();
  life_now_->role->Drain();
  life_now_->hub.SendState(v1::WorkerState::STATE_DRAINING, "draining");
}

void HandoffNode::LookAtChange() {
  Life& life = *life_now_;
  if (!change_ || !life.role) return;
  if (worker::NothingRuns(life.engine.scheduler().Idle(), life.book, life.role.get())) return LeaveRole();
  if (time_.Now() < change_->until) return;
  life.book.Resume();
  life.role->Resume();
  life.hub.SendState(v1::WorkerState::STATE_READY, "");
  Answer(absl::DeadlineExceededError("requests still run"));
}

void HandoffNode::LeaveRole() {
  Life& life = *life_now_;
  change_->drained = time_.Now();
  life.book.UseTickets(nullptr);
  life.engine.scheduler().UsePolicy(life.no_role);
  life.role->LetGo();
  BeginAnew();
  life.hub.BeginAnew(incarnation(), absl::UnavailableError("the worker changes its role"));
  life.role = nullptr;
  Post(time_.Between(milliseconds(1), milliseconds(60)), [this] { TakeRole(); });
}

/// The new one, or, where that cannot be made, the one that it had.
void HandoffNode::TakeRole() {
  Life& life = *life_now_;
  const bool fails = plant_.faults_on && time_.Chance(plant_.scenario.flip_fails);
  if (!fails) role_ = change_->to;
  life.role = Make();
  UseRole();
  life.book.Resume();
  life.hub.SendState(v1::WorkerState::STATE_READY, "");
  LoadedAnew();
  if (fails) return Answer(absl::ResourceExhaustedError("no memory for the landing ring"));
  v1::FlipReply reply;
  reply.set_incarnation(incarnation());
  reply.set_drain_ms(Milliseconds(change_->drained - change_->began));
  reply.set_change_ms(Milliseconds(time_.Now() - change_->drained));
  Answer(reply);
}

void HandoffNode::Answer(const absl::StatusOr<v1::FlipReply>& reply) {
  const std::unique_ptr<Change> change = std::move(change_);
  change->answer(reply);
}

}  // namespace baton::sim
