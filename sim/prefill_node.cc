#include "sim/prefill_node.h"

#include "prefill_worker/leg_codec.h"
#include "sim/one_rank.h"
#include "worker/transfer/kv_pool_view.h"

namespace baton::sim {
namespace {

Duration CancelTakes(const ClusterScenario& scenario) {
  return std::chrono::milliseconds(200 + static_cast<int>(2000 * scenario.StepSeconds()));
}

prefill::JobKey KeyOf(const v1::RequestKey& key) { return {key.request_id(), key.attempt(), key.epoch()}; }

}  // namespace

PrefillNode::Life::Life(PrefillNode& node)
    : engine(node.plant_.engines.Make(node.role(), node.odd(), &policy)),
      loop(node),
      sender({.host = "127.0.0.1", .kinds = {"sim"}, .make = node.MakeTransport(), .self_test = false},
             static_cast<size_t>(node.plant_.scenario.slot_bytes), worker::PoolOf(engine.memory()),
             LaneHello{.incarnation = node.incarnation(),
                       .model_digest = "m",
                       .numerics_id = node.numerics_id(),
                       .side = worker::SideOf(engine.memory().layout())},
             node.time_, loop, node),
      desk({.no_room_after = std::chrono::milliseconds(node.plant_.scenario.no_room_ms)},
           worker::SideOf(engine.memory().layout()), static_cast<size_t>(node.plant_.scenario.slot_bytes), sender, loop,
           node.time_),
      hub(node.incarnation()) {
  desk.Use(engine.scheduler());
}

PrefillNode::PrefillNode(const Plant& plant, std::string name, bool odd) : WorkerNode(plant, std::move(name), odd) {}

PrefillNode::~PrefillNode() = default;

void PrefillNode::OnBirth() {
  life_now_ = std::make_unique<Life>(*this);
  Run(life_now_->engine, &life_now_->loop, life_now_->hub);
}

void PrefillNode::OnDeath() {
  WorkerNode::OnDeath();
  life_now_.reset();
}

v1::ReserveReply PrefillNode::OnReserve(const v1::ReserveRequest&) {
  plant_.Break(StrCat(name(), ": a prefill worker was asked for a ticket"));
  return {};
}

void PrefillNode::OnPrefill(const v1::PrefillRequest& request, std::shared_ptr<worker::PrefillSink> sink) {
  absl::StatusOr<prefill_worker::JobOrder> order =
      prefill_worker::DecodeOrder(request, {.vocab_size = engine::kFakeVocab}, time_.Now());
  if (!order.ok()) return sink->Finish(order.status());
  life_now_->desk.Begin(*std::move(order), prefill_worker::MakeLegAnswer(std::move(sink)));
  Wake();
}

void PrefillNode::OnPrefillStreamEnd(const v1::RequestKey& key) {
  life_now_->desk.OnCallerGone(KeyOf(key));
  Wake();
}

void PrefillNode::OnCancel(const v1::CancelRequest& request) {
  const prefill::JobKey key = KeyOf(request.key());
  if (life_now_->desk.Cancel(key)) Post(CancelTakes(plant_.scenario), [this, key] { CheckCancelled(key); });
  Wake();
}

void PrefillNode::OnRelay(const std::shared_ptr<worker::RelayWriter>&, const v1::RelayUp& message) {
  if (message.attach_size() > 0) plant_.Break(StrCat(name(), ": a prefill worker was asked to decode"));
  for (const v1::Renewal& r : message.renewal()) life_now_->desk.Renew(KeyOf(r.key()));
  for (const v1::Meet& meet : message.meet()) life_now_->desk.Meet(meet.landing_address());
}

/// Neither computed nor pushed any more.
void PrefillNode::CheckCancelled(const prefill::JobKey& key) {
  bool works = life_now_->desk.Computing(key);
  if (const prefill::PushJob* job = life_now_->desk.Pushed(key)) {
    for (const prefill::PushLane& lane : job->lanes) works |= lane.phase < prefill::LanePhase::kFlushing;
  }
  if (works)
    plant_.Break(StrCat(name(), ": still works for ", key.request_id, " epoch ", key.epoch, ", which was cancelled"));
}

void PrefillNode::OnOutputs(std::vector<engine::SequenceOutput> outputs, uint64_t) {
  life_now_->desk.OnOutputs(outputs);
}

void PrefillNode::OnLayers(const engine::StepPlan& plan) {
  for (const KvGroup& group : life_now_->engine.memory().layout().groups) {
    for (int layer : group.layers) {
      prefill_worker::LayerProgress progress{layer, {}};
      for (const engine::SequenceStep& step : plan.sequences) {
        if (step.num_tokens > 0)
          progress.rows.push_back({step.request_key, step.context, step.context + step.num_tokens});
      }
      life_now_->desk.OnLayer(progress);
    }
  }
}

/// The ways to the decode workers that it is connected to, as fast as the links of plans.
void PrefillNode::FillLoad(v1::Load& load) const {
  const RankFigures figures = life_now_->sender.Figures();
  for (const RankWay& path : figures.ways) {
    v1::HandoffLoad::PeerPath& peer = *load.mutable_handoff()->add_peers();
    peer.set_incarnation(path.incarnation);
    peer.set_transport(path.transport);
    peer.set_gigabytes_per_second(plant_.links->gigabytes_per_s());
  }
}

void PrefillNode::OnTick() {
  life_now_->desk.Tick();
  life_now_->loop.Post([this] { life_now_->sender.Tick(); });
}

std::string PrefillNode::Holds() const {
  if (!life_now_) return "";
  const prefill::PushStats stats = life_now_->desk.Stats();
  const auto blocks = life_now_->engine.cache().pool(0).used_blocks();
  const size_t jobs = life_now_->desk.jobs();
  if (stats.open_lanes + stats.held_sources + blocks == 0 && jobs == 0) return "";
  return StrCat(name(), ": ", jobs, " jobs, ", stats.open_lanes, " lanes, ", stats.held_sources, " sources, ", blocks,
                " blocks; ");
}

}  // namespace baton::sim
