// A decode worker: the real desk, handoff core, landing and relay book.
#pragma once

#include <memory>
#include <string>

#include "decode_worker/landing.h"
#include "decode_worker/ticket_desk.h"
#include "sim/worker_node.h"
#include "worker/relay/relay_book.h"

namespace baton::sim {

class DecodeNode final : public WorkerNode,
                         private decode_worker::LandingEvents,
                         private decode_worker::LandingControl {
 public:
  DecodeNode(const Plant& plant, std::string name, bool odd);
  ~DecodeNode() override;
  v1::WorkerRole role() const override { return v1::WORKER_ROLE_DECODE; }
  v1::ReserveReply OnReserve(const v1::ReserveRequest& request) override;
  void OnRelay(const std::shared_ptr<worker::RelayWriter>& stream, const v1::RelayUp& message) override;
  void OnRelayEnd(const worker::RelayWriter& stream, const std::string& session) override;
  void OnPrefill(const v1::PrefillRequest& request, std::shared_ptr<worker::PrefillSink> sink) override;
  void OnPrefillStreamEnd(const v1::RequestKey&) override {}
  void OnCancel(const v1::CancelRequest& request) override;
  std::string Holds() const override;
  /// Its core's counters of this life.
  decode::HandoffStats Stats() const { return life_now_ ? life_now_->desk.Stats() : decode::HandoffStats{}; }

 private:
  struct Policy final : engine::RolePolicy {
    bool ReleasePins() override { return desk->Shed(); }
    decode_worker::TicketDesk* desk = nullptr;
  };
  struct Life {
    explicit Life(DecodeNode& node);
    ~Life() { desk.LetGo(); }
    Policy policy;
    engine::SteppedEngine engine;
    Loop loop;
    std::unique_ptr<decode_worker::Landing> landing;
    decode_worker::DeskFacts facts;
    decode_worker::TicketDesk desk;
    worker::RelayBook book;
    worker::EventHub hub;
  };
  // What the desk asks of the landing; that passes write only blocks which are bound is looked at here.
  FenceKind FenceOf(WriterId writer) const override { return life_now_->landing->FenceOf(writer); }
  void Send(WriterId writer, const ToPrefill& message) override { life_now_->landing->Send(writer, message); }
  void Place(const decode_worker::ScatterOrder& order) override;
  void Cut(WriterId writer) override { life_now_->landing->Cut(writer); }
  uint32_t MemoryOf(WriterId writer) const override { return life_now_->landing->MemoryOf(writer); }
  void Replace(uint32_t memory) override { life_now_->landing->Replace(memory); }
  void Drop(uint32_t memory) override { life_now_->landing->Drop(memory); }
  std::string TicketsHeld() const;
  void OnLanded(uint32_t memory, PeerNumber peer, const LandingPlace& place);
  void OnHello(WriterId writer, LaneHello hello) override {
    ToScheduler([this, writer, hello] { life_now_->desk.OnHello(writer, hello); });
  }
  void OnLane(WriterId writer, ToDecode message) override {
    ToScheduler([this, writer, message] {
      life_now_->desk.OnLane(writer, message);
      Wake();
    });
  }
  void OnScattered(const decode::Scattered& placed) override {
    ToScheduler([this, placed] {
      life_now_->desk.Handle(placed);
      Wake();
    });
  }
  void OnWriterLost(WriterId writer) override {
    ToScheduler([this, writer] {
      life_now_->desk.OnWriterGone(writer, false);
      Wake();
    });
  }
  void OnWriterFenced(WriterId writer) override {
    ToScheduler([this, writer] {
      life_now_->desk.OnWriterGone(writer, true);
      Wake();
    });
  }
  void OnBirth() override;
  void OnDeath() override;
  void OnOutputs(std::vector<engine::SequenceOutput> outputs, uint64_t step) override;
  void OnTick() override;
  int64_t OwnedBlocks(int32_t group) const override { return life_now_->desk.OwnedBlocks(group); }
  std::string LandingAddress() const override { return life_now_->landing->address(); }
  void OnTurnEnd() override;

  std::unique_ptr<Life> life_now_;
};

}  // namespace baton::sim
