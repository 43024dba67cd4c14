// A prefill worker: the real desk, push core and sender.
#pragma once

#include <memory>
#include <string>

#include "prefill_worker/prefill_desk.h"
#include "prefill_worker/sender.h"
#include "proto/worker.pb.h"
#include "sim/worker_node.h"

namespace baton::sim {

class PrefillNode final : public WorkerNode, private prefill_worker::SenderEvents {
 public:
  PrefillNode(const Plant& plant, std::string name, bool odd);
  ~PrefillNode() override;
  v1::WorkerRole role() const override { return v1::WORKER_ROLE_PREFILL; }
  v1::ReserveReply OnReserve(const v1::ReserveRequest& request) override;
  void OnRelay(const std::shared_ptr<worker::RelayWriter>& stream, const v1::RelayUp& message) override;
  void OnRelayEnd(const worker::RelayWriter&, const std::string&) override {}
  void OnPrefill(const v1::PrefillRequest& request, std::shared_ptr<worker::PrefillSink> sink) override;
  void OnPrefillStreamEnd(const v1::RequestKey& key) override;
  void OnCancel(const v1::CancelRequest& request) override;
  std::string Holds() const override;

 private:
  struct Policy final : engine::RolePolicy {
    bool HoldAfterFirstToken(engine::RequestKey key) const override { return prefill_worker::PrefillDesk::IsJob(key); }
    bool HandBackPreempted(engine::RequestKey key, int32_t) const override {
      return prefill_worker::PrefillDesk::IsJob(key);
    }
  };
  struct Life {
    explicit Life(PrefillNode& node);
    ~Life() { desk.LetGo(); }
    Policy policy;
    engine::SteppedEngine engine;
    Loop loop;
    prefill_worker::Sender sender;
    prefill_worker::PrefillDesk desk;
    worker::EventHub hub;
  };
  void OnPush(const prefill::Event& event) override {
    const auto* written = std::get_if<prefill::Written>(&event);
    if (written != nullptr && absl::IsDataLoss(written->status))
      plant_.Break(
          StrCat(name(), ": a source block changed hands while it was being sent: ", written->status.message()));
    ToScheduler([this, event] {
      life_now_->desk.Handle(event);
      Wake();
    });
  }
  void CheckCancelled(const prefill::JobKey& key);
  void OnBirth() override;
  void OnDeath() override;
  void OnOutputs(std::vector<engine::SequenceOutput> outputs, uint64_t step) override;
  void OnLayers(const engine::StepPlan& plan) override;
  void OnTick() override;
  void FillLoad(v1::Load& load) const override;
  int64_t OwnedBlocks(int32_t group) const override { return life_now_->desk.OwnedBlocks(group); }

  std::unique_ptr<Life> life_now_;
};

}  // namespace baton::sim
