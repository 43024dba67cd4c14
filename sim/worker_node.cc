#include "sim/worker_node.h"

#include "common/kv_digest.h"
#include "common/protocol_versions.h"
#include "kvtransfer/layout_codec.h"
#include "proto/protocol_codec.h"

namespace baton::sim {

using std::chrono::microseconds;
using std::chrono::milliseconds;

namespace {

/// A plan that is posted outlives a worker that dies, and its answers' grammars want their pool.
struct HeldPlan {
  std::shared_ptr<engine::GrammarPool> grammars;
  engine::StepPlan plan;
};

constexpr auto kTickOfPlans = milliseconds(100);  ///< a worker's load is told so often in the product

}  // namespace

WorkerNode::WorkerNode(const Plant& plant, std::string name, bool odd)
    : Process(plant.time), plant_(plant), name_(std::move(name)), odd_(odd) {}

void WorkerNode::Loop::Post(std::function<void()> work) {
  posted_.push_back(std::move(work));
  node_.WakeTransfer();
}

bool WorkerNode::Loop::Turn() {
  const std::vector<std::function<void()>> work = std::exchange(posted_, {});
  for (const auto& one : work) one();
  bool moved = !work.empty();
  for (size_t i = 0; i < transports_.size(); ++i) moved |= transports_[i]->Progress();
  return moved;
}

/// Passes on what happens, and tells of what lands.
class WorkerNode::Watch final : public TransportEvents {
 public:
  Watch(TransportEvents& events, Landed landed, uint32_t made)
      : events_(events), landed_(std::move(landed)), made_(made) {}
  void OnConnected(PeerNumber peer) override { events_.OnConnected(peer); }
  void OnMessage(PeerNumber peer, std::string_view message) override { events_.OnMessage(peer, message); }
  void OnLost(PeerNumber peer, const absl::Status& why) override { events_.OnLost(peer, why); }
  bool MayLand(PeerNumber peer, const LandingPlace& place) override {
    if (landed_) landed_(made_, peer, place);
    return events_.MayLand(peer, place);
  }

 private:
  TransportEvents& events_;
  const Landed landed_;
  const uint32_t made_;
};

TransportMaker WorkerNode::MakeTransport(Landed landed) {
  return [this, plant = plant_, landed = std::move(landed), made = std::make_shared<uint32_t>(0)](
             const LandingShape& shape, TransportEvents& events) -> absl::StatusOr<std::unique_ptr<Transport>> {
    if (plant.links != nullptr) return plant.links->Make(shape, events, [this] { WakeTransfer(); });
    auto watch = std::make_unique<Watch>(events, landed, (*made)++);
    absl::StatusOr<std::unique_ptr<Transport>> kind = plant.transports(shape, *watch);
    if (!kind.ok()) return kind;
    return std::make_unique<UnkindTransport>(*std::move(kind), std::move(watch), plant.scenario.lanes,
                                             plant.scenario.slot_damage, plant.faults_on, plant.faults, plant.time);
  };
}

void WorkerNode::Run(engine::SteppedEngine& engine, worker::EventHub& hub) {
  engine_ = &engine;
  hub_ = &hub;
  host_gone_ = false;
  loaded_at_ = life() == 1 ? time_.Now() : time_.Now() + time_.Between(milliseconds(0), milliseconds(300));
  hub.SendState(v1::WorkerState::STATE_READY, "");
  ticks_ = 0;
  executing_ = step_posted_ = transfer_posted_ = grammars_posted_ = false;
  if (engine.grammars() != nullptr) engine.grammars()->OnReady([this] { Wake(); });
  if (plant_.plans()) {
    const auto told = [this](std::vector<engine::SequenceOutput> outputs, uint64_t step, TimePoint at) {
      drawn_at_ = at;
      OnOutputs(std::move(outputs), step);
    };
    quiet_ = std::make_unique<QuietSteps>(engine, plant_.engines, role(), told);
    rates_ = {};
  }
  Post(milliseconds(1), [this] { Tick(); });
}

void WorkerNode::Wake() {
  if (quiet_ != nullptr && quiet_->running()) return AwaitQuiet(quiet_->StepEnd());
  if (executing_ || std::exchange(step_posted_, true)) return;
  Post(microseconds(20), [this] { Step(); });
}

void WorkerNode::WakeTransfer(Duration after) {
  if (std::exchange(transfer_posted_, true)) return;
  if (plant_.faults_on && time_.Chance(plant_.scenario.busy))
    after += time_.Between(microseconds(100), milliseconds(20));
  Post(after, [this] { TransferTurn(); });
}

/// Looks again at once when it had something to do, and for a while after that; else once in a tick.
void WorkerNode::TransferTurn() {
  transfer_posted_ = false;
  if (loop_ == nullptr) return;
  if (loop_->Turn()) {
    moved_ = time_.Now();
    WakeTransfer();
  } else if (!plant_.plans() && time_.Now() - moved_ < milliseconds(5)) {  // links wake it
    WakeTransfer(microseconds(300));
  }
}

/// Grammars are compiled, and masks made, in turns of their own: before the step that wants them or long after it.
void WorkerNode::WakeGrammars() {
  const engine::GrammarPool* grammars = engine_->grammars().get();
  if (grammars == nullptr || grammars->counts().following == 0 || std::exchange(grammars_posted_, true)) return;
  const bool late = plant_.faults_on && time_.Chance(plant_.scenario.busy);
  Post(late ? time_.Between(microseconds(100), milliseconds(20)) : Duration(microseconds(50)),
       [this] { GrammarTurn(); });
}

void WorkerNode::GrammarTurn() {
  grammars_posted_ = false;
  if (engine_->grammars()->Turn(2) > 0) WakeGrammars();
}

void WorkerNode::Step() {
  step_posted_ = false;
  if (rank_lost_) return;
  drawn_at_ = time_.Now();
  engine::Scheduler& scheduler = engine_->scheduler();
  const auto held = std::make_shared<HeldPlan>(engine_->grammars(), scheduler.PlanStep(time_.Now()));
  std::shared_ptr<engine::StepPlan> plan(held, &held->plan);
  TakeOutputs(scheduler.TakeOutputs(), plan->step);
  WakeGrammars();
  if (plan->empty()) return;
  if (quiet_ != nullptr) quiet_->Note(*plan);
  Run(std::move(plan));
}

/// It writes KV and reports its layers half way, its tokens at its end.
void WorkerNode::Run(std::shared_ptr<engine::StepPlan> plan) {
  executing_ = true;
  if (quiet_ != nullptr && role() != v1::WORKER_ROLE_PREFILL && QuietSteps::IsQuiet(*plan))
    return BeginQuiet(std::move(*plan), time_.Now());
  engine_->executor().ClearCancel();
  auto result = std::make_shared<engine::StepResult>();
  const Duration whole = plant_.engines.Takes(*plan);
  busy_ += whole;
  const auto compute = [this, plan, result] {
    *result = plant_.engines.Compute(*engine_, role(), *plan);
    OnLayers(*plan);
    WakeGrammars();
  };
  const auto commit = [this, plan, result] {
    executing_ = false;
    drawn_at_ = time_.Now();
    TakeOutputs(engine_->scheduler().Commit(*plan, *result, time_.Now()), plan->step);
    Wake();
  };
  Post(whole / 2, [this, compute] { WithAllRanks(compute); });
  Post(whole, [this, commit] { WithAllRanks(commit); });
}

/// Never where one was lost; where one stands still, when it goes on.
void WorkerNode::WithAllRanks(std::function<void()> work) {
  if (rank_lost_) return;
  if (rank_hangs_ || !steps_held_.empty()) return steps_held_.push_back(std::move(work));  // in their order
  work();
}

void WorkerNode::ResumeRank(int rank) {
  rank_hangs_ = false;
  OnRankHangs(rank, false);
  Post(microseconds(10), [this] {
    for (const auto& work : std::exchange(steps_held_, {})) work();
  });
}

void WorkerNode::BeginQuiet(engine::StepPlan plan, TimePoint at) {
  quiet_->Begin(std::move(plan), at);
  AwaitQuiet(quiet_->AnswerEnd(at + kTickOfPlans));
}

/// A turn at `until`, in place of the one that was waited for.
void WorkerNode::AwaitQuiet(TimePoint until) {
  Post(std::max(Duration::zero(), until - time_.Now()), [this, turn = ++quiet_turn_] {
    if (turn != quiet_turn_ || quiet_ == nullptr || !quiet_->running()) return;
    AwaitQuiet(quiet_->AnswerEnd(time_.Now() + kTickOfPlans));
  });
}

/// Whoever comes finds the worker in the step that runs now.
void WorkerNode::OnTurnBegin() {
  if (quiet_ == nullptr || !quiet_->running()) return;
  const TimePoint before = quiet_->last_end();
  std::optional<engine::StepPlan> next = quiet_->CatchUp(time_.Now());
  busy_ += quiet_->last_end() - before;
  if (quiet_->last_end() != before) TellKvEvents();
  if (quiet_->running()) return;
  executing_ = false;
  if (next) return Run(std::make_shared<engine::StepPlan>(*std::move(next)));
  Wake();
}

void WorkerNode::TakeOutputs(std::vector<engine::SequenceOutput> outputs, uint64_t step) {
  OnOutputs(std::move(outputs), step);
  TellKvEvents();
}

void WorkerNode::TellKvEvents() {
  const engine::KvEvents news = engine_->cache().TakeEvents();
  if (news.gap || !news.events.empty()) hub_->OnKvEvents(news, engine_->scheduler());
}

void WorkerNode::AddWatcher(std::shared_ptr<worker::WatchSink> sink, const worker::LoadTerms& terms) {
  hub_->Add(std::move(sink), terms, engine_->scheduler());
  ReportLoad();
}

void WorkerNode::RemoveWatcher(const worker::WatchSink* sink) { hub_->Remove(sink); }

void WorkerNode::ReportLoad() {
  const engine::SchedulerLoad now = engine_->scheduler().Load();
  v1::Load load = worker::EncodeLoad(now);
  load.set_prefill_tokens_per_s(plant_.engines.PrefillTokensPerS());
  load.set_decode_step_ms(plant_.engines.DecodeStepMs());
  if (plant_.plans()) {
    rates_.Take(now);
    load.set_prefill_tokens_per_s(rates_.prefill_tokens_per_s());
    load.set_decode_step_ms(rates_.step_ms());
    FillLoad(load);
  }
  hub_->SendLoad(load, time_.Now());
}

v1::HandshakeReply WorkerNode::Describe() const {
  v1::HandshakeReply reply;
  EncodeVersions(WorkerProtocol(), *reply.mutable_protocol());
  EncodeVersions(kv_protocol_, *reply.mutable_kv_protocol());
  reply.set_worker_id(name_);
  reply.set_incarnation(incarnation());
  reply.set_role(role());
  const HashKey key;  // the engines'
  reply.set_hash_key(key.bytes.data(), key.bytes.size());
  if (loading()) {
    reply.mutable_loading()->set_phase("weights");
    reply.mutable_loading()->set_progress(0.5);
    return reply;
  }
  reply.set_model_digest("test");
  reply.set_model_name("fake");
  reply.set_kv_digest(kKvDigestName);
  *reply.mutable_kv_layout() = EncodeLayout(plant_.engines.ToldLayout(*engine_));
  reply.mutable_numerics()->set_id(numerics_id());
  reply.set_max_model_len(plant_.engines.max_model_len());
  reply.set_vocab_size(engine::kFakeVocab);
  reply.set_kv_blocks(engine_->cache().pool(0).num_blocks());
  reply.set_max_num_seqs(engine_->scheduler().options().max_num_seqs);
  reply.set_prefill_tokens_per_s(plant_.engines.PrefillTokensPerS());
  reply.set_decode_step_ms(plant_.engines.DecodeStepMs());
  reply.set_landing_address(LandingAddress());
  return reply;
}

void WorkerNode::Tick() {
  OnTick();
  if (plant_.plans()) {
    ReportLoad();
    if (!executing_ && !engine_->scheduler().Idle()) Wake();
    return Post(kTickOfPlans, [this] { Tick(); });
  }
  if (++ticks_ % 10 == 0) ReportLoad();
  engine_->scheduler().CheckInvariants();
  Wake();
  WakeTransfer();
  Post(milliseconds(10), [this] { Tick(); });
}

void WorkerNode::OnTurnEnd() {
  for (const auto& work : std::exchange(at_turn_end_, {})) work();
  if (engine_ == nullptr || plant_.plans()) return;
  for (int32_t g = 0; g < engine_->cache().num_groups(); ++g) {
    const int64_t owners = engine_->cache().pool(g).total_owners(),
                  known = engine_->scheduler().OwnedBlocks(g) + OwnedBlocks(g);
    BATON_CHECK(owners == known, name_, " group ", g, ": ", owners, " owners of blocks, ", known, " known");
  }
}

}  // namespace baton::sim
