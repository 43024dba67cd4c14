#include "sim/prefill_node.h"

#include "prefill_worker/leg_codec.h"
#include "tests/worker/one_rank.h"
#include "worker/kv_pool_view.h"

namespace baton::sim {
namespace {

constexpr auto kCancelTakes = std::chrono::milliseconds(200);  ///< steps are shorter

}  // namespace

/// The answer stream of one leg.
class PrefillNode::Stream final : public worker::PrefillSink {
 public:
  Stream(PrefillNode& node, std::string session, router::LegKey key)
      : node_(node), session_(std::move(session)), key_(std::move(key)) {}
  void Send(v1::PrefillReply reply) override {
    node_.router_.PrefillReply(node_.slot_, session_, key_, reply.SerializeAsString());
  }
  void Finish(const absl::Status& status) override { node_.router_.PrefillEnd(node_.slot_, session_, key_, status); }

 private:
  PrefillNode& node_;
  const std::string session_;
  const router::LegKey key_;
};

PrefillNode::Life::Life(PrefillNode& node, const engine::HarnessOptions& options)
    : engine(options, &policy),
      loop(node),
      sender(
          {.host = "127.0.0.1", .kinds = {"sim"}, .make = node.MakeTransport(), .self_test = false},
          static_cast<size_t>(node.plant_.scenario.slot_bytes), worker::PoolOf(engine.memory()),
          LaneHello{
              .incarnation = node.incarnation(), .model_digest = "m", .side = worker::SideOf(engine.memory().layout())},
          node.time_, loop, node),
      desk({.no_room_after = std::chrono::milliseconds(node.plant_.scenario.no_room_ms)},
           worker::SideOf(engine.memory().layout()), static_cast<size_t>(node.plant_.scenario.slot_bytes), sender, loop,
           node.time_) {
  desk.Use(engine.scheduler());
}

PrefillNode::PrefillNode(const Plant& plant, int slot, RouterPort& router)
    : WorkerNode(plant, StrCat("p", slot)), slot_(slot), router_(router) {}

PrefillNode::~PrefillNode() = default;

void PrefillNode::OnBirth() {
  life_now_ = std::make_unique<Life>(
      *this, EngineOptions(plant_.scenario, plant_.scenario.prefill_block, plant_.scenario.prefill_blocks));
  Run(life_now_->engine, life_now_->loop);
}

void PrefillNode::OnDeath() {
  WorkerNode::OnDeath();
  life_now_.reset();
}

void PrefillNode::OnPrefill(const std::string& session, const std::string& bytes) {
  v1::PrefillRequest request;
  BATON_CHECK(request.ParseFromString(bytes));
  const router::LegKey key{request.key().request_id(), request.key().attempt(), request.key().epoch()};
  auto stream = std::make_shared<Stream>(*this, session, key);
  absl::StatusOr<prefill_worker::JobOrder> order =
      prefill_worker::DecodeOrder(request, {.vocab_size = engine::kFakeVocab}, time_.Now());
  if (!order.ok()) return stream->Finish(order.status());
  life_now_->legs.insert({session, order->key});
  life_now_->desk.Begin(*std::move(order), prefill_worker::MakeLegAnswer(stream));
  Wake();
}

void PrefillNode::OnCancel(const std::string& bytes) {
  v1::CancelRequest request;
  BATON_CHECK(request.ParseFromString(bytes));
  const prefill::JobKey key{request.key().request_id(), request.key().attempt(), request.key().epoch()};
  if (life_now_->desk.Cancel(key)) Post(kCancelTakes, [this, key] { CheckCancelled(key); });
  Wake();
}

void PrefillNode::OnRelayUp(const std::string&, const std::string& bytes) {
  v1::RelayUp up;
  BATON_CHECK(up.ParseFromString(bytes));
  for (const v1::Renewal& r : up.renewal())
    life_now_->desk.Renew({r.key().request_id(), r.key().attempt(), r.key().epoch()});
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

void PrefillNode::OnSessionEnd(const std::string& session) {
  const auto [first, last] = life_now_->legs.equal_range(session);
  for (auto leg = first; leg != last; ++leg) life_now_->desk.OnCallerGone(leg->second);
  life_now_->legs.erase(first, last);
  Wake();
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
