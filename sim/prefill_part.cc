#include "sim/prefill_part.h"

#include "prefill_worker/leg_codec.h"
#include "worker/transfer/kv_pool_view.h"

namespace baton::sim {
namespace {

Duration CancelTakes(const ClusterScenario& scenario) {
  return std::chrono::milliseconds(200 + static_cast<int>(2000 * scenario.StepSeconds()));
}

using prefill_worker::KeyOf;

}  // namespace

PrefillPart::PrefillPart(WorkerNode& node, engine::SteppedEngine& engine)
    : node_(node),
      engine_(engine),
      loop_(node),
      side_(SideOfRole(node.plant().scenario, v1::WORKER_ROLE_PREFILL, engine.memory().layout())),
      sender_({.host = "127.0.0.1", .kinds = {"sim"}, .make = node.MakeTransport(), .self_test = false},
              static_cast<size_t>(node.plant().scenario.slot_bytes),
              PoolOfRank(engine.memory(), side_, node.plant().scenario.heads, 0),
              LaneHello{.protocol = node.kv_protocol(),
                        .incarnation = node.incarnation(),
                        .model_digest = "m",
                        .numerics_id = node.numerics_id(),
                        .side = side_},
              node.plant().time, loop_, *this),
      ranks_(side_.ranks() == 1
                 ? nullptr
                 : std::make_unique<RankGroup>(node, loop_, engine.memory(), side_, prefill_worker::MakeRankSender,
                                               [this](int) { return node_.MakeTransport(); })),
      senders_(ranks_ == nullptr ? nullptr
                                 : std::make_unique<prefill_worker::RankSenders>(
                                       sender_, *ranks_, static_cast<prefill_worker::SenderEvents&>(*this))),
      desk_({.no_room_after = std::chrono::milliseconds(node.plant().scenario.no_room_ms)}, side_,
            static_cast<size_t>(node.plant().scenario.slot_bytes), control(), loop_, node.plant().time) {}

void PrefillPart::OnPush(const prefill::Event& event) {
  const auto* written = std::get_if<prefill::Written>(&event);
  if (written != nullptr && absl::IsDataLoss(written->status))
    node_.plant().Break(
        StrCat(node_.name(), ": a source block changed hands while it was being sent: ", written->status.message()));
  node_.ToScheduler([this, here = std::weak_ptr(here_), event] {
    if (here.expired()) return;
    desk_.Handle(event);
    node_.Wake();
  });
}

void PrefillPart::Prefill(const v1::PrefillRequest& request, const std::string& router,
                          std::shared_ptr<worker::PrefillSink> sink) {
  absl::StatusOr<prefill_worker::JobOrder> order =
      prefill_worker::DecodeOrder(request, {.vocab_size = engine::kFakeVocab}, node_.plant().time.Now(), router);
  if (!order.ok()) return sink->Finish(order.status());
  desk_.Begin(*std::move(order), prefill_worker::MakeLegAnswer(std::move(sink)));
}

void PrefillPart::PrefillStreamEnded(const v1::RequestKey& key, const std::string& router) {
  desk_.OnCallerGone(KeyOf(key, router));
}

void PrefillPart::Cancel(const v1::CancelRequest& request, const std::string& router,
                         std::function<void(v1::CancelReply)> answer) {
  const prefill::JobKey key = KeyOf(request.key(), router);
  v1::CancelReply reply;
  reply.set_known(desk_.Cancel(key));
  if (reply.known()) {
    node_.Post(CancelTakes(node_.plant().scenario), [this, here = std::weak_ptr(here_), key] {
      if (!here.expired()) CheckCancelled(key);
    });
  }
  answer(std::move(reply));
}

void PrefillPart::OnRenewal(const v1::Renewal& renewal, const std::string& router) {
  if (renewal.key().epoch() > 0) desk_.Renew(KeyOf(renewal.key(), router));
}

/// Neither computed nor pushed any more.
void PrefillPart::CheckCancelled(const prefill::JobKey& key) {
  if (node_.rank_failed()) return;  // the step that would end it does not, or did not in its time
  bool works = desk_.Computing(key);
  if (const prefill::PushJob* job = desk_.Pushed(key)) {
    for (const prefill::PushLane& lane : job->lanes) works |= lane.phase < prefill::LanePhase::kFlushing;
  }
  if (works)
    node_.plant().Break(
        StrCat(node_.name(), ": still works for ", key.request_id, " epoch ", key.epoch, ", which was cancelled"));
}

void PrefillPart::OnLayers(const engine::StepPlan& plan) {
  for (const KvGroup& group : side_.layout.groups) {
    for (int layer : group.layers) {
      prefill_worker::LayerProgress progress{layer, {}};
      for (const engine::SequenceStep& step : plan.sequences) {
        if (step.num_tokens > 0)
          progress.rows.push_back({step.request_key, step.context, step.context + step.num_tokens});
      }
      desk_.OnLayer(progress);
    }
  }
}

/// The ways to the decode workers that it is connected to, as fast as the links of plans.
void PrefillPart::FillLoad(v1::HandoffLoad& load) const {
  const RankFigures figures = sender_.Figures();
  for (const RankWay& path : figures.ways) {
    v1::HandoffLoad::PeerPath& peer = *load.add_peers();
    peer.set_incarnation(path.incarnation);
    peer.set_transport(path.transport);
    peer.set_gigabytes_per_second(node_.plant().links->gigabytes_per_s());
  }
}

void PrefillPart::OnTick(engine::Scheduler&) {
  desk_.Tick();
  // Descriptors wake the product's transfer thread, and here every tick does.
  loop_.Post([this] {
    if (beat_.Due(node_.plant().time.Now())) senders_ ? senders_->Tick() : sender_.Tick();
  });
}

void PrefillPart::CheckInvariants() const {
  if (desk_.jobs() > 0) return;
  const int32_t held = engine_.scheduler().Load().held_requests;
  if (held > 0) node_.plant().Break(StrCat(node_.name(), ": ", held, " prompts are held for legs that are over"));
}

const char* PrefillPart::Moment() const {
  if (desk_.jobs() == 0) return "idle";
  return desk_.Stats().open_lanes == 0 ? "before" : "during";
}

std::string PrefillPart::Holds() const {
  const prefill::PushStats stats = desk_.Stats();
  if (stats.open_lanes + stats.held_sources == 0 && desk_.jobs() == 0) return "";
  return StrCat(desk_.jobs(), " jobs, ", stats.open_lanes, " lanes, ", stats.held_sources, " sources");
}

}  // namespace baton::sim
