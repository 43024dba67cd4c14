// A prefill worker: the real desk, push core and sender.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "prefill_worker/prefill_desk.h"
#include "prefill_worker/sender.h"
#include "proto/worker.pb.h"
#include "sim/router_port.h"
#include "sim/worker_node.h"

namespace baton::sim {

class PrefillNode final : public WorkerNode, private prefill_worker::SenderEvents {
 public:
  /// `slot`: the router's number for it.
  PrefillNode(const Plant& plant, int slot, RouterPort& router);
  ~PrefillNode() override;
  void OnPrefill(const std::string& session, const std::string& bytes);
  void OnCancel(const std::string& bytes) override;
  void OnRelayUp(const std::string& session, const std::string& bytes) override;
  void OnSessionEnd(const std::string& session) override;
  std::string Holds() const override;

 private:
  struct Policy final : engine::RolePolicy {
    bool HoldAfterFirstToken(engine::RequestKey key) const override { return prefill_worker::PrefillDesk::IsJob(key); }
    bool HandBackPreempted(engine::RequestKey key, int32_t) const override {
      return prefill_worker::PrefillDesk::IsJob(key);
    }
  };
  class Stream;
  struct Life {
    Life(PrefillNode& node, const engine::HarnessOptions& options);
    ~Life() { desk.LetGo(); }
    Policy policy;
    engine::Harness engine;
    Loop loop;
    prefill_worker::Sender sender;
    prefill_worker::PrefillDesk desk;
    std::multimap<std::string, prefill::JobKey> legs;  ///< by session
  };
  void OnPush(const prefill::Event& event) override {
    const auto* written = std::get_if<prefill::Written>(&event);
    if (written != nullptr && absl::IsDataLoss(written->status))
      plant_.Break(
          StrCat(name(), ": a source block changed hands while it was being sent: ", written->status.message()));
    ToScheduler([this, event] { life_now_->desk.Handle(event), Wake(); });
  }
  void CheckCancelled(const prefill::JobKey& key);
  void OnBirth() override;
  void OnDeath() override;
  void OnOutputs(std::vector<engine::SequenceOutput> outputs, uint64_t step) override;
  void OnLayers(const engine::StepPlan& plan) override;
  void OnTick() override;
  int64_t OwnedBlocks(int32_t group) const override { return life_now_->desk.OwnedBlocks(group); }

  const int slot_;
  RouterPort& router_;
  std::unique_ptr<Life> life_now_;
};

}  // namespace baton::sim
