// A decode worker around the real Handoff core: landing slots, a block pool, placing passes that take their time,
// sequences that read blocks at every token.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "decode_worker/handoff/handoff.h"
#include "world.h"

namespace baton::sim {

class DecodeNode final : public Node, public decode::TicketBlocks {
 public:
  struct Payload {
    std::vector<std::pair<uint32_t, uint64_t>> cells;  ///< (segment, content)
    bool corrupted = false;                            ///< by an injected fault
  };
  DecodeNode(World& world, int index);
  // From the network.
  void OnReserve(int request, uint32_t attempt);
  void OnAttach(const decode::Attach& attach) { Handle(attach); }
  void OnRenewed(const decode::Renewed& lease) { Handle(lease); }
  /// A renewal has come to this process, which may be stopped.
  void NoteRenewal(const decode::Renewed& lease) { renewals_[lease.key] = {lease.attach_gen, world_.now}; }
  void OnCancel(const decode::TicketKey& key);
  void OnMessage(uint64_t connection, const ToDecode& message, const Payload& payload);
  void OnWriterLost(uint64_t connection) { Handle(decode::WriterLost{connection}); }
  void OnWriterFenced(uint64_t connection) {
    if (!world_.connection(connection).released) Handle(decode::WriterFenced{connection});
  }
  /// One-sided: the process does not notice.
  void Land(uint64_t connection, const LaneKey& lane, SlotTurn slot, const Payload& payload);
  /// What is held; empty: nothing.
  std::string Holds() const;
  void CheckEnd();
  /// The landing memory that new tickets name.
  uint32_t memory() const { return memory_; }

 private:
  struct Block {
    TicketId ticket = 0;  ///< 0: free
    uint32_t epoch = 0;
    std::vector<std::vector<uint64_t>> cells;  ///< [lanes][segments]
  };
  struct Sequence {
    int request = 0;
    uint64_t attach_gen = 0, position = 0;
    int block = -1;  ///< -1: computed here
    uint64_t step = 0;
  };
  void Reborn() override;
  void Timer();
  void Handle(const decode::Event& event);
  void CheckSometimes();
  void DoAll(const std::vector<decode::Action>& actions, bool may_stop_sequences);
  void Do(const decode::ReservationShed&) {}
  void Do(const decode::SendToWriter& action);
  void Do(const decode::ScatterSlot& action);
  void Do(const decode::StartSequence& action);
  void Do(const decode::ContinueSequence& action);
  void Do(const decode::StopSequence& action);
  void Do(const decode::AttachRefused& action);
  void Do(const decode::CutWriter& action);
  void Do(const decode::ReleaseWriter& action) { world_.connection(action.writer).released = true; }
  void Do(const decode::ReplaceMemory& action);
  void Do(const decode::DropMemory& action) { world_.DropMemory(index_, life(), action.memory); }
  void Place(const decode::ScatterSlot& action);
  void Step(TicketId ticket, uint64_t step);
  void EndSequence(TicketId ticket);
  void Open(const Connection& connection, const OpenLane& message);
  void NoteRefused(const decode::Opened& event);
  void NoteStandstill();
  void ForgetEarlier(TicketId ticket);
  void CheckShare(const decode::Opened& event);
  bool Readable(const Sequence& sequence) const;
  void CheckClosing();
  void CheckLapsed();
  int RequestOf(TicketId ticket) const;
  int BlockOf(TicketId ticket, uint32_t epoch) const;
  // TicketBlocks
  int32_t Pin(TicketId ticket, const decode::ReserveOrder& order) override;
  bool Bind(TicketId ticket, uint32_t epoch, int32_t tokens) override;
  void Release(TicketId ticket, uint32_t epoch) override;
  void Unpin(TicketId ticket) override;

  const int index_;
  std::unique_ptr<decode::Handoff> core_;
  std::map<std::pair<uint32_t, uint32_t>, Payload> slots_;  ///< by memory and number
  uint32_t memory_ = 0;
  std::vector<Block> blocks_;
  std::set<TicketId> pins_;
  std::map<TicketId, int> requests_;
  std::map<TicketId, Sequence> sequences_;
  struct Refusal {
    TimePoint at{};  ///< the latest
    std::string process;
    bool aside = false;  ///< its process had its share, or its memory is replaced: nobody waits for it
    TimePoint stuck_since = TimePoint::max();  ///< there was room for it whenever it asked, and nobody in front of it
  };
  std::map<TicketId, Refusal> refused_;  ///< Opens that were told to ask again
  std::map<TicketId, TimePoint> closing_since_;
  TimePoint checked_at_{};
  std::set<decode::TicketKey> cancelled_;
  std::map<decode::TicketKey, std::pair<uint64_t, TimePoint>> renewals_;  ///< attach_gen and time of the latest
  std::set<TicketId> lapsed_;
  bool may_stop_sequences_ = false;  ///< during Handle: the event is a reason to
};

}  // namespace baton::sim
