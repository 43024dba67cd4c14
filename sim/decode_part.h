// The role of a decode worker: the real desk, handoff core and landing; the relay book and the engine are its node's.
#pragma once

#include <memory>
#include <string>

#include "decode_worker/landing.h"
#include "decode_worker/rank_landings.h"
#include "decode_worker/ticket_codec.h"
#include "decode_worker/ticket_desk.h"
#include "proto/worker.pb.h"
#include "sim/rank_group.h"
#include "sim/role_part.h"
#include "sim/worker_node.h"
#include "worker/transfer/transfer_beat.h"

namespace baton::sim {

class DecodePart final : public RolePart, private decode_worker::LandingControl, private decode_worker::LandingEvents {
 public:
  /// Of this worker and engine, which outlive it.
  DecodePart(WorkerNode& node, engine::SteppedEngine& engine);
  v1::WorkerRole wire_role() const override { return v1::WORKER_ROLE_DECODE; }
  std::string LandingAddress() const override { return landings_ ? landings_->address() : landing_->address(); }
  engine::RolePolicy* policy() override { return &policy_; }
  worker::TicketHost* tickets() override { return &desk_; }
  void Start(worker::PostTask, worker::RelayBook* relay) override;
  void Drain() override { desk_.Drain(); }
  void Resume() override { desk_.Resume(); }
  bool Idle() const override { return desk_.Idle(); }
  void StopThreads() override {}
  void LetGo() override { desk_.LetGo(); }
  void OnTick(engine::Scheduler&) override;
  void LoseRank(int rank) override { ranks_->Lose(rank); }
  void HangRank(int rank, bool hangs) override { ranks_->Hang(rank, hangs); }
  const char* Moment() const override;
  void OnRenewal(const v1::Renewal& renewal, const std::string& router) override {
    desk_.Renew(decode_worker::KeyOf(renewal.key(), router), renewal.attach_gen());
  }
  int64_t OwnedBlocks(int32_t group) const override { return desk_.OwnedBlocks(group); }
  void FillLoad(v1::HandoffLoad&) const override {}
  void Reserve(const v1::ReserveRequest& request, const std::string& router,
               std::function<void(v1::ReserveReply)> answer) override;
  void RouterLeft(const std::string& session, const std::string& router) override {
    desk_.OnRouterLeft(session, router);
  }
  void Cancel(const v1::CancelRequest& request, const std::string& router,
              std::function<void(v1::CancelReply)> answer) override;
  std::string Holds() const override;
  void CheckInvariants() const override { desk_.CheckInvariants(); }

 private:
  struct Policy final : engine::RolePolicy {
    bool ReleasePins() override { return desk->Shed(); }
    decode_worker::TicketDesk* desk = nullptr;
  };
  // What the desk asks of the landing; that passes write only blocks which are bound is looked at here.
  FenceKind FenceOf(WriterId writer) const override { return control().FenceOf(writer); }
  void Send(WriterId writer, const ToPrefill& message) override { control().Send(writer, message); }
  void Place(const decode_worker::ScatterOrder& order) override;
  void Cut(WriterId writer) override { control().Cut(writer); }
  void Release(WriterId writer) override { control().Release(writer); }
  uint32_t MemoryOf(WriterId writer) const override { return control().MemoryOf(writer); }
  void Replace(uint32_t memory) override { control().Replace(memory); }
  void Drop(uint32_t memory) override { control().Drop(memory); }
  decode_worker::LandingControl& control() const {
    if (landings_) return *landings_;
    return *landing_;
  }
  std::string TicketsHeld() const;
  TransportMaker TransportsOf(int rank);
  void OnLanded(uint32_t memory, PeerNumber peer, const LandingPlace& place);
  /// `wake`: a step may be planned after it.
  void ToDesk(std::function<void()> work, bool wake = true);
  void OnHello(WriterId writer, LaneHello hello) override {
    if (!hello.protocol.Shares(facts_.kv_protocol)) {
      node_.plant().Break(StrCat(node_.name(), ", KV protocol ", Text(facts_.kv_protocol), ": ", hello.incarnation,
                                 " was sent to it, which speaks ", Text(hello.protocol)));
    }
    ToDesk([this, writer, hello] { desk_.OnHello(writer, hello); }, /*wake=*/false);
  }
  void OnLane(WriterId writer, ToDecode message) override {
    ToDesk([this, writer, message] { desk_.OnLane(writer, message); });
  }
  void OnScattered(const decode::Scattered& placed) override {
    ToDesk([this, placed] { desk_.Handle(placed); });
  }
  void OnWriterLost(WriterId writer) override {
    ToDesk([this, writer] { desk_.OnWriterGone(writer, false); });
  }
  void OnWriterFenced(WriterId writer) override {
    ToDesk([this, writer] { desk_.OnWriterGone(writer, true); });
  }

  WorkerNode& node_;
  engine::SteppedEngine& engine_;
  const std::shared_ptr<bool> here_ = std::make_shared<bool>(true);  ///< what was posted for it does nothing without it
  Policy policy_;
  WorkerNode::Loop loop_;
  worker::TransferBeat beat_;
  const KvSide side_;
  std::unique_ptr<decode_worker::Landing> landing_;        ///< rank 0's
  std::unique_ptr<RankGroup> ranks_;                       ///< the others; null: there are none
  std::unique_ptr<decode_worker::RankLandings> landings_;  ///< of all; null: there is one
  const decode_worker::DeskFacts facts_;
  decode_worker::TicketDesk desk_;
};

}  // namespace baton::sim
