#include "sim/worker_node.h"

#include "common/kv_digest.h"
#include "kvtransfer/layout_codec.h"

namespace baton::sim {

using std::chrono::microseconds;
using std::chrono::milliseconds;

engine::SteppedEngineOptions EngineOptions(const ClusterScenario& scenario, int tokens_per_block, int blocks,
                                           bool odd) {
  engine::SteppedEngineOptions options;
  std::optional<DType> dtype;
  if (scenario.odd_dtype) dtype = odd ? DType::kBF16 : DType::kF32;
  options.layout = engine::FakeLayout(tokens_per_block, scenario.window, dtype);
  options.numerics = odd ? 1000 : 0;
  options.num_blocks.assign(options.layout.groups.size(), blocks);
  options.scheduler.max_model_len = scenario.max_model_len;
  options.scheduler.max_step_ms = 0;
  options.scheduler.max_num_batched_tokens = scenario.chunk;
  return options;
}

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
  return [plant = plant_, landed = std::move(landed), made = std::make_shared<uint32_t>(0)](
             const LandingShape& shape, TransportEvents& events) -> absl::StatusOr<std::unique_ptr<Transport>> {
    auto watch = std::make_unique<Watch>(events, landed, (*made)++);
    absl::StatusOr<std::unique_ptr<Transport>> kind = plant.transports(shape, *watch);
    if (!kind.ok()) return kind;
    return std::make_unique<UnkindTransport>(*std::move(kind), std::move(watch), plant.scenario.lanes,
                                             plant.scenario.slot_damage, plant.faults_on, plant.faults, plant.time);
  };
}

void WorkerNode::Run(engine::SteppedEngine& engine, Loop& loop, worker::EventHub& hub) {
  engine_ = &engine;
  loop_ = &loop;
  hub_ = &hub;
  host_gone_ = false;
  loaded_at_ = life() == 1 ? time_.Now() : time_.Now() + time_.Between(milliseconds(0), milliseconds(300));
  hub.SendState(v1::WorkerState::STATE_READY, "");
  ticks_ = 0;
  executing_ = step_posted_ = transfer_posted_ = false;
  Post(milliseconds(1), [this] { Tick(); });
}

void WorkerNode::Wake() {
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
  if (loop_->Turn()) {
    moved_ = time_.Now();
    WakeTransfer();
  } else if (time_.Now() - moved_ < milliseconds(5)) {
    WakeTransfer(microseconds(300));
  }
}

/// Plans a step and runs it; it writes KV and reports its layers half way, its tokens at its end.
void WorkerNode::Step() {
  step_posted_ = false;
  engine::Scheduler& scheduler = engine_->scheduler();
  auto plan = std::make_shared<engine::StepPlan>(scheduler.PlanStep(time_.Now()));
  TakeOutputs(scheduler.TakeOutputs(), plan->step);
  if (plan->empty()) return;
  executing_ = true;
  engine_->executor().ClearCancel();
  auto result = std::make_shared<engine::StepResult>();
  const Duration half =
      microseconds(plant_.scenario.step_us) + plan->total_tokens * microseconds(plant_.scenario.us_per_token);
  Post(half, [this, plan, result] {
    *result = engine_->executor().Execute(*plan).value();
    OnLayers(*plan);
  });
  Post(2 * half, [this, plan, result] {
    executing_ = false;
    TakeOutputs(engine_->scheduler().Commit(*plan, *result, time_.Now()), plan->step);
    Wake();
  });
}

void WorkerNode::TakeOutputs(std::vector<engine::SequenceOutput> outputs, uint64_t step) {
  OnOutputs(std::move(outputs), step);
  const engine::KvEvents news = engine_->cache().TakeEvents();
  if (news.gap || !news.events.empty()) hub_->OnKvEvents(news, engine_->scheduler());
}

void WorkerNode::AddWatcher(std::shared_ptr<worker::WatchSink> sink) {
  hub_->Add(std::move(sink), engine_->scheduler());
  ReportLoad();
}

void WorkerNode::RemoveWatcher(const worker::WatchSink* sink) { hub_->Remove(sink); }

void WorkerNode::ReportLoad() {
  v1::Load load = worker::EncodeLoad(engine_->scheduler().Load());
  load.set_prefill_tokens_per_s(1e6 / plant_.scenario.us_per_token);
  load.set_decode_step_ms(0.5);
  hub_->SendLoad(load);
}

v1::HandshakeReply WorkerNode::Describe() const {
  const ClusterScenario& scenario = plant_.scenario;
  v1::HandshakeReply reply;
  reply.mutable_protocol()->set_min(1);
  reply.mutable_protocol()->set_max(1);
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
  *reply.mutable_kv_layout() = EncodeLayout(engine_->memory().layout());
  reply.mutable_numerics()->set_id(numerics_id());
  reply.set_max_model_len(scenario.max_model_len);
  reply.set_vocab_size(engine::kFakeVocab);
  reply.set_kv_blocks(engine_->cache().pool(0).num_blocks());
  reply.set_max_num_seqs(engine_->scheduler().options().max_num_seqs);
  reply.set_prefill_tokens_per_s(1e6 / scenario.us_per_token);
  reply.set_decode_step_ms(0.5);
  reply.set_landing_address(LandingAddress());
  return reply;
}

void WorkerNode::Tick() {
  OnTick();
  if (++ticks_ % 10 == 0) ReportLoad();
  engine_->scheduler().CheckInvariants();
  Wake();
  WakeTransfer();
  Post(milliseconds(10), [this] { Tick(); });
}

void WorkerNode::OnTurnEnd() {
  if (engine_ == nullptr) return;
  for (int32_t g = 0; g < engine_->cache().num_groups(); ++g) {
    const int64_t owners = engine_->cache().pool(g).total_owners(),
                  known = engine_->scheduler().OwnedBlocks(g) + OwnedBlocks(g);
    BATON_CHECK(owners == known, name_, " group ", g, ": ", owners, " owners of blocks, ", known, " known");
  }
}

}  // namespace baton::sim
