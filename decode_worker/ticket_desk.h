// The scheduler thread's half of the decode side: drives the handoff core with the block pool, the transfer plans and
// the relay. Scheduler thread only; the scheduler is passed in by its owner.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/kv_digest.h"
#include "common/limited_lines.h"
#include "common/own_time.h"
#include "decode_worker/handoff/handoff.h"
#include "decode_worker/landing_control.h"
#include "kvtransfer/lane_codec.h"
#include "worker/relay/relay_book.h"
#include "worker/relay/ticket_host.h"
#include "worker/transfer/transfer_loop.h"

namespace baton::decode_worker {

struct DeskFacts {
  KvSide side;
  int piece_tokens = 0;
  std::string incarnation, model_digest;
  std::string kv_digest = kKvDigestName;
  std::string numerics_id{};  ///< a writer with another one keeps Promise B only
  ProtocolVersions kv_protocol = KvProtocol();
  decode::HandoffOptions handoff;
};

class TicketDesk final : public worker::TicketHost, private decode::TicketBlocks {
 public:
  /// `landing` and `thread` must outlive it.
  TicketDesk(DeskFacts facts, LandingControl& landing, worker::TransferLoop& thread, const Clock& clock);

  void SetRelay(worker::RelayBook* relay) { relay_ = relay; }
  void Use(engine::Scheduler& scheduler) { scheduler_ = &scheduler; }

  // After Use, from here on.
  /// `grammar`: of the answer that is to come, or null. It is compiled from now on.
  decode::ReserveAnswer Reserve(const decode::ReserveOrder& order, std::shared_ptr<const Grammar> grammar = nullptr);
  /// As decode::Handoff::Cancel.
  bool Cancel(const decode::TicketKey& key, bool asks_again = false);
  /// The router still waits for it; `attach_gen` 0: it has not attached.
  void Renew(const decode::TicketKey& key, uint64_t attach_gen) { Handle(decode::Renewed{key, attach_gen}); }
  /// Ends what a router has reserved in this session and not attached. A stream without a name ("") is no ticket's.
  void OnRouterLeft(const std::string& session, const std::string& router = {});
  void OnHello(WriterId writer, LaneHello hello);
  void OnLane(WriterId writer, ToDecode message);
  void OnWriterGone(WriterId writer, bool fenced);
  void Handle(const decode::Event& event);
  void Tick();
  /// Gives up the pin of the youngest reservation that is not bound; true when that freed a block.
  bool Shed();
  /// New tickets are refused, and those that nobody asks for end.
  void Drain() { draining_ = true, core_.Drain(); }
  void Resume() { draining_ = false, core_.Resume(); }
  /// No ticket lives: nobody was promised anything.
  bool Idle() const { return core_.Stats().tickets == 0; }
  /// Ends everything: the engine's threads have ended.
  void LetGo() { tickets_.clear(); }

  absl::Status OnAttach(worker::TicketAttach attach, engine::Scheduler& scheduler) override;
  void OnEnded(engine::RequestKey key) override;

  decode::HandoffStats Stats() const { return core_.Stats(); }
  int64_t reserves_refused() const { return reserves_refused_; }
  int64_t OwnedBlocks(int32_t group) const;
  /// Null when unknown or forgotten.
  const decode::Ticket* Find(TicketId ticket) const { return core_.Find(ticket); }
  const decode::LandingRing& ring(int rank) const { return core_.ring(rank); }
  /// Whether this epoch's blocks are bound here: passes may write them.
  bool HoldsBlocks(TicketId ticket, uint32_t epoch) const;
  /// Dies when slots, lanes and tickets do not agree. For tests.
  void CheckInvariants() const { core_.CheckInvariants(); }

 private:
  struct Bound {
    engine::SequenceKv kv;
    std::shared_ptr<const KvBlockTables> tables;
  };
  struct Ticket {
    decode::TicketKey key;
    std::string session;
    int32_t prompt_len = 0, cached_tokens = 0;
    engine::SequenceKv pin;
    std::shared_ptr<engine::AnswerGrammar> grammar;                 ///< being compiled; until the sequence has its own
    std::map<uint32_t, std::shared_ptr<const TransferPlan>> plans;  ///< by epoch
    std::map<uint32_t, Bound> bound;                                ///< by epoch
    std::set<uint32_t> foreign;                                     ///< epochs whose writer has other numerics
    std::optional<worker::TicketAttach> attach;                     ///< waits for its KV
    std::optional<engine::RequestKey> request;
    TimePoint attached{};  ///< when `attach` came, in own time
  };
  struct Writer {
    LaneHello hello;
    std::string why_not;  ///< what must match and does not
    TimePoint heard{};    ///< its last message, in own time
  };

  int32_t Pin(TicketId ticket, const decode::ReserveOrder& order) override;
  bool Bind(TicketId ticket, uint32_t epoch, int32_t tokens) override;
  void Release(TicketId ticket, uint32_t epoch) override;
  void Unpin(TicketId ticket) override;

  void DoAll(const std::vector<decode::Action>& actions);
  void Open(WriterId writer, const OpenLane& message);
  bool Knows(TicketId id, const TicketSecret& secret) const;
  void ForgetOneThatLeft();
  void GiveUpSilentWriters();
  TimePoint Listened() const;
  absl::StatusOr<std::shared_ptr<const TransferPlan>> PlanFor(Ticket& ticket, uint32_t epoch, const KvSide& source);
  absl::Status Take(worker::TicketAttach attach);
  absl::Status StartComputing(worker::TicketAttach attach, worker::TicketStart* how);
  void Do(const decode::ReservationShed& action);
  void Do(const decode::SendToWriter& action);
  void Do(const decode::ScatterSlot& action);
  void Do(const decode::StartSequence& action);
  void Do(const decode::ContinueSequence& action);
  void Do(const decode::StopSequence& action);
  static absl::Status OtherFirst();
  absl::Status EndOf(TicketId id, const std::string& reason) const;
  void Do(const decode::AttachRefused& action);
  void Do(const decode::CutWriter& action);
  void Do(const decode::ReleaseWriter& action);
  void Do(const decode::ReplaceMemory& action);
  void Do(const decode::DropMemory& action);

  const DeskFacts facts_;
  OwnTime own_;
  LandingControl& landing_;
  worker::TransferLoop& thread_;
  const Clock& clock_;
  LimitedLines lines_{clock_};  ///< about prefill workers: who has the secret may come without end
  engine::Scheduler* scheduler_ = nullptr;
  worker::RelayBook* relay_ = nullptr;
  std::map<TicketId, Ticket> tickets_;
  std::map<engine::RequestKey, TicketId> by_request_;
  std::map<WriterId, Writer> writers_;
  static constexpr size_t kRemembered = 64;
  std::deque<std::pair<std::string, std::string>> left_;  ///< sessions of routers that ended last: their Reserves may
                                                          ///< still arrive
  bool draining_ = false;
  int64_t reserves_refused_ = 0;
  decode::Handoff core_;
};

}  // namespace baton::decode_worker
