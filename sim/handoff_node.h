// A worker that prefills for others or decodes what others have prefilled, and may change from one to the other in
// place: what worker/process/engine_shell.cc and role_changer.cc are in the product, without their threads.
#pragma once

#include <memory>
#include <string>

#include "proto/worker.pb.h"
#include "sim/role_part.h"
#include "sim/worker_node.h"
#include "worker/relay/relay_book.h"

namespace baton::sim {

class HandoffNode final : public WorkerNode {
 public:
  /// `role`: of every new process of it.
  HandoffNode(const Plant& plant, std::string name, v1::WorkerRole role, bool odd);
  ~HandoffNode() override;
  /// Of now, or that it has had until now.
  v1::WorkerRole role() const override { return role_; }
  v1::ReserveReply OnReserve(const v1::ReserveRequest& request, const std::string& router) override;
  void OnRelay(const std::shared_ptr<worker::RelayWriter>& stream, const v1::RelayUp& message) override;
  void OnRelayEnd(const worker::RelayWriter& stream, const std::string& session) override;
  void OnPrefill(const v1::PrefillRequest& request, const std::string& router,
                 std::shared_ptr<worker::PrefillSink> sink) override;
  void OnPrefillStreamEnd(const v1::RequestKey& key, const std::string& router) override;
  void OnCancel(const v1::CancelRequest& request, const std::string& router) override;
  void OnFlip(const v1::FlipRequest& request, FlipAnswered answer) override;
  std::string Holds() const override;
  int ranks() const override { return plant_.scenario.ranks_of(role_ == v1::WORKER_ROLE_PREFILL); }
  const char* Moment() const override { return life_now_ && life_now_->role ? life_now_->role->Moment() : "idle"; }
  bool changes_role() const override { return change_ != nullptr; }
  v1::WorkerRole begins_as() const override { return first_role_; }
  void BeginAs(v1::WorkerRole role) override { first_role_ = role; }

 private:
  struct Life {
    explicit Life(HandoffNode& node);
    ~Life();
    engine::RolePolicy no_role;  ///< between two
    engine::SteppedEngine engine;
    worker::RelayBook book;
    worker::EventHub hub;
    std::unique_ptr<RolePart> role;  ///< null: it changes
  };
  /// A change of the role that was asked for and not answered.
  struct Change {
    v1::WorkerRole to = v1::WORKER_ROLE_UNSPECIFIED;
    TimePoint began{}, until = TimePoint::max(), drained{};
    FlipAnswered answer;
  };
  std::unique_ptr<RolePart> Make();
  void UseRole();
  void LookAtChange();
  void LeaveRole();
  void TakeRole();
  void Answer(const absl::StatusOr<v1::FlipReply>& reply);
  void CheckStranger(const char* what) const;
  void OnBirth() override;
  void OnDeath() override;
  void OnOutputs(std::vector<engine::SequenceOutput> outputs, uint64_t step) override;
  void OnLayers(const engine::StepPlan& plan) override;
  void OnTick() override;
  void OnRankLost(int rank) override {
    if (life_now_->role) life_now_->role->LoseRank(rank);
  }
  void OnRankHangs(int rank, bool hangs) override {
    if (life_now_->role) life_now_->role->HangRank(rank, hangs);
  }
  void FillLoad(v1::Load& load) const override;
  int64_t OwnedBlocks(int32_t group) const override;
  std::string LandingAddress() const override;
  void OnTurnEnd() override;

  v1::WorkerRole first_role_;
  v1::WorkerRole role_;
  std::unique_ptr<Change> change_;
  std::unique_ptr<Life> life_now_;
};

}  // namespace baton::sim
