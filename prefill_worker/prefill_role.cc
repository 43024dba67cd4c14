#include "prefill_worker/prefill_role.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/status.h"
#include "kvtransfer/transports/transports.h"
#include "prefill_worker/leg_codec.h"
#include "prefill_worker/prefill_desk.h"
#include "prefill_worker/rank_senders.h"
#include "prefill_worker/sender.h"
#include "worker/process/rank_load.h"
#include "worker/transfer/transfer_beat.h"
#include "worker/transfer/transfer_thread.h"
#include "worker/transfer/turn_news.h"

namespace baton::prefill_worker {
namespace {

constexpr auto kWaitForRoom =
    std::chrono::seconds(20);  ///< a computed prompt waits here for decode's blocks, which is a queue

class PrefillPolicy final : public engine::RolePolicy {
 public:
  bool HoldAfterFirstToken(engine::RequestKey key) const override { return PrefillDesk::IsJob(key); }
  /// Segments that were sent stay sent, but those that wait to be sent are gone with the blocks: the leg begins anew
  /// on another worker, or here behind the legs that came first.
  bool HandBackPreempted(engine::RequestKey key, int32_t) const override { return PrefillDesk::IsJob(key); }
};

class PrefillRole final : public worker::Role, private SenderEvents, private engine::LayerObserver {
 public:
  PrefillRole(const worker::RoleContext& context, std::vector<std::string> kinds)
      : clock_(context.clock),
        ops_(*context.loaded.ops),
        first_kind_(kinds.front()),
        limits_{.vocab_size = context.loaded.model->config().vocab_size} {
    const KvSide& side = context.loaded.side;
    LaneHello hello{.incarnation = context.incarnation,
                    .model_digest = context.loaded.model->config().digest,
                    .numerics_id = context.loaded.numerics_id,
                    .side = side};
    const auto slot_bytes = static_cast<size_t>(context.config.LandingSlotBytes());
    DialOptions dial{context.config.host, std::move(kinds), context.config.test_kv_fault_rate,
                     context.config.test_failing_transport};
    dial.trust = context.kv_trust;
    sender_ = std::make_unique<Sender>(std::move(dial), slot_bytes, context.loaded.PoolHere(), std::move(hello), clock_,
                                       thread_, static_cast<SenderEvents&>(*this));
    if (worker::KvLines* const lines = context.loaded.lines.get()) {
      senders_ = std::make_unique<RankSenders>(*sender_, *lines, static_cast<SenderEvents&>(*this));
      thread_.Watch(&lines->transport());
    }
    desk_ = std::make_unique<PrefillDesk>(prefill::PushOptions{.no_room_after = kWaitForRoom}, side, slot_bytes,
                                          control(), thread_, clock_);
  }

  v1::WorkerRole wire_role() const override { return v1::WORKER_ROLE_PREFILL; }
  engine::RolePolicy* policy() override { return &policy_; }
  engine::LayerObserver* observer() override { return this; }

  void Start(worker::PostTask post, worker::RelayBook*) override {
    post_ = std::move(post);
    post_([this](engine::Scheduler& scheduler, TimePoint) { desk_->Use(scheduler); });
    thread_.AtTurnEnd([this] { news_.Tell(post_); });
    thread_.Start();
  }
  void Drain() override { desk_->Drain(); }
  void Resume() override { desk_->Resume(); }
  bool Idle() const override { return desk_->Idle(); }
  void StopThreads() override { thread_.Stop(); }
  void LetGo() override { desk_->LetGo(); }

  void OnOutputs(const std::vector<engine::SequenceOutput>& outputs, engine::Scheduler&) override {
    desk_->OnOutputs(outputs);
  }
  void OnTick(engine::Scheduler&) override {
    desk_->Tick();
    if (beat_.Due(clock_.Now())) thread_.Post([this] { senders_ ? senders_->Tick() : sender_->Tick(); });
  }
  void OnRenewal(const v1::Renewal& renewal, const std::string& router) override {
    if (renewal.key().epoch() > 0) desk_->Renew(KeyOf(renewal.key(), router));
  }
  void OnMeet(const v1::Meet& meet) override { desk_->Meet(meet.landing_address()); }
  int64_t OwnedBlocks(int32_t group) const override { return desk_->OwnedBlocks(group); }
  void FillLoad(v1::HandoffLoad& load) const override {
    std::vector<RankFigures> ranks = {sender_->Figures()};
    if (senders_) std::ranges::move(senders_->figures(), std::back_inserter(ranks));
    worker::FillRankLoad(ranks, load);
    load.set_transport(load.peers().empty() ? first_kind_ : load.peers().rbegin()->transport());
    FillLegLoad(desk_->Stats(), static_cast<int32_t>(desk_->jobs()), load);
  }

  void Prefill(const v1::PrefillRequest& request, const std::string& router,
               std::shared_ptr<worker::PrefillSink> sink) override {
    auto order = std::make_shared<absl::StatusOr<JobOrder>>(DecodeOrder(request, limits_, clock_.Now(), router));
    if (!order->ok()) return sink->Finish(order->status());
    post_([this, order, sink = std::move(sink)](engine::Scheduler&, TimePoint) {
      desk_->Begin(*std::move(*order), MakeLegAnswer(sink));
    });
  }
  void PrefillStreamEnded(const v1::RequestKey& key, const std::string& router) override {
    post_([this, key = KeyOf(key, router)](engine::Scheduler&, TimePoint) { desk_->OnCallerGone(key); });
  }
  void Cancel(const v1::CancelRequest& request, const std::string& router,
              std::function<void(v1::CancelReply)> answer) override {
    post_([this, key = KeyOf(request.key(), router), answer = std::move(answer)](engine::Scheduler&, TimePoint) {
      v1::CancelReply reply;
      reply.set_known(desk_->Cancel(key));
      answer(std::move(reply));
    });
  }

 private:
  // Transfer thread.
  void OnPush(const prefill::Event& event) override {
    news_.Add([this, event] { desk_->Handle(event); });
  }

  // Executor thread.
  void OnLayerKv(const engine::StepPlan& plan, int layer) override {
    LayerProgress progress{layer, {}};
    for (const engine::SequenceStep& step : plan.sequences) {
      if (step.num_tokens > 0 && PrefillDesk::IsJob(step.request_key)) {
        progress.rows.push_back({step.request_key, step.context, step.context + step.num_tokens});
      }
    }
    if (progress.rows.empty()) return;
    // A device has the KV when it gets there, and another stream gathers it.
    ops_.WhenDone([this, progress = std::move(progress)]() mutable {
      post_([this, progress = std::move(progress)](engine::Scheduler&, TimePoint) { desk_->OnLayer(progress); });
    });
  }

  SenderControl& control() {
    if (senders_) return *senders_;
    return *sender_;
  }

  const Clock& clock_;
  kernels::Ops& ops_;
  const std::string first_kind_;  ///< of transports, until a decode worker was reached
  const worker::AttachLimits limits_;
  worker::PostTask post_;
  PrefillPolicy policy_;
  worker::TransferThread thread_;
  worker::TurnNews news_;
  worker::TransferBeat beat_;
  std::unique_ptr<Sender> sender_;        ///< of the KV that is here
  std::unique_ptr<RankSenders> senders_;  ///< where ranks carry their own KV: of all
  std::unique_ptr<PrefillDesk> desk_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<worker::Role>> MakePrefillRole(const worker::RoleContext& context) {
  BATON_ASSIGN_OR_RETURN(
      std::vector<std::string> kinds,
      TransportKinds(context.config.transport, context.config.require_rdma, context.config.kv_by_ucx()));
  auto role = std::make_unique<PrefillRole>(context, std::move(kinds));
  BATON_RETURN_IF_ERROR(worker::BeginLines(context));
  return role;
}

}  // namespace baton::prefill_worker
