// The role of a prefill worker: the real desk, push core and sender.
#pragma once

#include <memory>
#include <string>

#include "prefill_worker/prefill_desk.h"
#include "prefill_worker/rank_senders.h"
#include "prefill_worker/sender.h"
#include "proto/worker.pb.h"
#include "sim/rank_group.h"
#include "sim/role_part.h"
#include "sim/worker_node.h"
#include "worker/transfer/transfer_beat.h"

namespace baton::sim {

class PrefillPart final : public RolePart, private prefill_worker::SenderEvents {
 public:
  /// Of this worker and engine, which outlive it.
  PrefillPart(WorkerNode& node, engine::SteppedEngine& engine);
  v1::WorkerRole wire_role() const override { return v1::WORKER_ROLE_PREFILL; }
  engine::RolePolicy* policy() override { return &policy_; }
  void Start(worker::PostTask, worker::RelayBook*) override { desk_.Use(engine_.scheduler()); }
  void Drain() override { desk_.Drain(); }
  void Resume() override { desk_.Resume(); }
  bool Idle() const override { return desk_.Idle(); }
  void StopThreads() override {}
  void LetGo() override { desk_.LetGo(); }
  void OnOutputs(const std::vector<engine::SequenceOutput>& outputs, engine::Scheduler&) override {
    desk_.OnOutputs(outputs);
  }
  void OnLayers(const engine::StepPlan& plan) override;
  void OnTick(engine::Scheduler&) override;
  void LoseRank(int rank) override { ranks_->Lose(rank); }
  void HangRank(int rank, bool hangs) override { ranks_->Hang(rank, hangs); }
  const char* Moment() const override;
  void OnRenewal(const v1::Renewal& renewal, const std::string& router) override;
  void OnMeet(const v1::Meet& meet) override { desk_.Meet(meet.landing_address()); }
  int64_t OwnedBlocks(int32_t group) const override { return desk_.OwnedBlocks(group); }
  void FillLoad(v1::HandoffLoad& load) const override;
  void Prefill(const v1::PrefillRequest& request, const std::string& router,
               std::shared_ptr<worker::PrefillSink> sink) override;
  void PrefillStreamEnded(const v1::RequestKey& key, const std::string& router) override;
  void Cancel(const v1::CancelRequest& request, const std::string& router,
              std::function<void(v1::CancelReply)> answer) override;
  std::string Holds() const override;
  void CheckInvariants() const override;

 private:
  struct Policy final : engine::RolePolicy {
    bool HoldAfterFirstToken(engine::RequestKey key) const override { return prefill_worker::PrefillDesk::IsJob(key); }
    bool HandBackPreempted(engine::RequestKey key, int32_t) const override {
      return prefill_worker::PrefillDesk::IsJob(key);
    }
  };
  void OnPush(const prefill::Event& event) override;
  prefill_worker::SenderControl& control() {
    if (senders_) return *senders_;
    return sender_;
  }
  void CheckCancelled(const prefill::JobKey& key);

  WorkerNode& node_;
  engine::SteppedEngine& engine_;
  const std::shared_ptr<bool> here_ = std::make_shared<bool>(true);  ///< what was posted for it does nothing without it
  Policy policy_;
  WorkerNode::Loop loop_;
  worker::TransferBeat beat_;
  const KvSide side_;
  prefill_worker::Sender sender_;                         ///< rank 0's
  std::unique_ptr<RankGroup> ranks_;                      ///< the others; null: there are none
  std::unique_ptr<prefill_worker::RankSenders> senders_;  ///< of all; null: there is one
  prefill_worker::PrefillDesk desk_;
};

}  // namespace baton::sim
