// The transfer thread's half of the decode side: the transports and their landing slots, the messages of writers, the
// passes that verify and scatter. Decides nothing; the ticket desk does, on the scheduler thread.
//
// Every transport has landing memory of its own for the same slot numbers (untouched memory costs nothing), and one
// slot more, for self-tests. A slot is one writer's at a time, so its bytes are where that writer's transport puts
// them. A memory that a frozen writer may still write is replaced: its transport is opened once more, with fresh memory
// and an address of its own, and the old one stays for the lanes that end there, and for as long as that writer may
// come back. Of one transport at most kMostMemories are kept; beyond that its writers get the next transport.
//
// Where the KV is a GPU's, each landing memory is pinned once, as it is opened, until it is dropped: the GPU copies
// slots by itself. Where that cannot be they are copied by the host (slot_passes.h).
//
// A prefill worker of this machine may lend its GPU's outbox, which is opened with its hello, and closed when its
// connection is: slots then name payloads that are read from there. It is told with every lane. One of another machine
// may lend it through its transport: then the network's device reads it (lent_reads.h), and a slot is placed later.
//
// It keeps the grants it has sent, because where the receiver writes a slot may be stored only in its own turn, and
// that is asked for every piece that arrives: a slot changes hands on this thread alone.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/limited_lines.h"
#include "decode_worker/handoff/events.h"
#include "decode_worker/landing_control.h"
#include "decode_worker/lent_reads.h"
#include "kvtransfer/lane_codec.h"
#include "kvtransfer/rank_figures.h"
#include "kvtransfer/rank_numbers.h"
#include "kvtransfer/self_test.h"
#include "kvtransfer/slot_format.h"
#include "kvtransfer/slot_passes.h"
#include "kvtransfer/transport.h"
#include "kvtransfer/transports/transports.h"
#include "worker/transfer/transfer_loop.h"
#include "worker/worker_config.h"

namespace baton::decode_worker {

/// The listener of a Landing. Called on the transfer thread.
class LandingEvents {
 public:
  virtual ~LandingEvents() = default;
  virtual void OnHello(WriterId writer, LaneHello hello) = 0;
  virtual void OnLane(WriterId writer, ToDecode message) = 0;
  virtual void OnScattered(const decode::Scattered& placed) = 0;
  virtual void OnWriterLost(WriterId writer) = 0;
  virtual void OnWriterFenced(WriterId writer) = 0;
};

/// Since start. Read from any thread.
struct LandingCounters {
  std::atomic<int64_t> bytes{0}, slots{0}, nanoseconds{0};
  std::atomic<int64_t> unreadable_slots{0};   ///< header or table wrong, or of another turn
  std::atomic<int64_t> digest_mismatches{0};  ///< bytes are not what the sender sent
  std::atomic<int64_t> self_tests_failed{0}, writers_lost{0};
  std::atomic<int64_t> writers_refused{0};  ///< connections that were not let in
};

/// What a ticket says of where its KV is taken.
struct LandingWays {
  std::string address;  ///< of every rank: RankAddresses
  std::string kind;     ///< the best of them
  uint64_t slot_bytes = 0;
};

class Landing final : public LandingControl {
 public:
  /// Opens the transports of --transport; one that cannot be had is left out with a warning. Unavailable,
  /// ResourceExhausted, FailedPrecondition: none can. The others must outlive it. `make`: makes the only one, for
  /// tests. `trust`: what prefill workers prove, and how they speak. `rank`: whose slots these are.
  static absl::StatusOr<std::unique_ptr<Landing>> Create(const worker::WorkerConfig& config, KvPoolView pool,
                                                         std::string incarnation, const Clock& clock,
                                                         worker::TransferLoop& thread, LandingEvents& events,
                                                         const TransportMaker& make = {}, trust::PeerTrust trust = {},
                                                         int rank = 0);
  ~Landing() override;

  static constexpr int kMostMemories = 3;  ///< of one transport: the one in use, and replaced ones
  /// A writer's number says which memory it writes (kvtransfer/rank_numbers.h); memories are numbered from the rank's
  /// first on and never again.
  static WriterId WriterBy(PeerNumber peer, uint32_t memory) { return WriterIn(memory, peer); }

  // ---- any thread
  /// Of all transports, now: LandingAddresses.
  std::string address() const;
  /// Of the transport that passed a self-test last; before that, of the best.
  std::string kind() const;
  const LandingShape& shape() const { return shape_; }
  LandingWays ways() const { return {address(), kind(), shape_.slot_bytes}; }
  FenceKind FenceOf(WriterId writer) const override;
  uint32_t MemoryOf(WriterId writer) const override { return MemoryOfWriter(writer); }
  const LandingCounters& counters() const { return counters_; }
  RankFigures Figures() const;

  // ---- transfer thread
  /// The slots as this writer fills them, one after the other.
  std::span<const std::byte> SlotsOf(WriterId writer) const;
  void Send(WriterId writer, const ToPrefill& message) override;
  void Place(const ScatterOrder& order) override;
  void Cut(WriterId writer) override;
  void Release(WriterId writer) override;
  void Replace(uint32_t memory) override;
  void Drop(uint32_t memory) override;

 private:
  struct Grant {
    WriterId writer = 0;
    LaneKey lane;
    uint32_t turn = 0;
    bool open = false;  ///< granted and not filled yet
  };
  class Way;  // a transport and whom it calls back
  Landing(const worker::WorkerConfig& config, std::string told_host, KvPoolView pool, std::string incarnation,
          const Clock& clock, worker::TransferLoop& thread, LandingEvents& events, TransportMaker make,
          trust::PeerTrust trust, int rank);
  absl::Status Open(const std::string& kind);
  void OpenFresh(const std::string& kind);
  void PinSlots(Way& way);
  void Publish();
  /// Null when its memory was dropped.
  Way* WayOf(WriterId writer) const;
  static PeerNumber PeerOf(WriterId writer) { return PeerOfWriter(writer); }
  void OnMessage(WriterId writer, std::string_view message);
  void OnSelfTest(WriterId writer, const SelfTestMessage& message);
  void OpenOutboxOf(WriterId writer, const LaneHello& hello);
  void OnLost(WriterId writer, const absl::Status& why);
  void OnRefused(WriterId peer, std::string_view host, const absl::Status& why);
  bool MayLand(WriterId writer, const LandingPlace& place) const;
  void NoteGrant(WriterId writer, const LaneKey& lane, SlotTurn grant);
  void OpenLent(WriterId writer, const LaneHello& hello, LentOutbox lent);
  absl::StatusOr<SlotContent> TableOf(const ScatterOrder& order);
  absl::Status VerifyAndScatter(const ScatterOrder& order, const SlotContent& content, bool in_inbox);
  void ReadAndPlace(const ScatterOrder& order, const SlotContent& content);
  void Answer(const ScatterOrder& order, TimePoint start, const absl::Status& status);

  const std::string host_, told_host_, incarnation_;
  const uint16_t port_;
  const TransportMaker make_;
  const trust::PeerTrust trust_;
  std::vector<std::string> kinds_;  ///< best first; fixed after Create
  const LandingShape shape_;
  const KvPoolView pool_;
  const Clock& clock_;
  LimitedLines refusals_;       ///< by address
  LimitedLines writers_words_;  ///< of those who have greeted, by what and whose: they come without end, too
  worker::TransferLoop& thread_;
  LandingEvents& events_;
  std::vector<Grant> grants_;                ///< [slots]
  std::map<WriterId, PeerOutbox> outboxes_;  ///< of those who lend one; let go by the transfer thread, or after it
  LandingCounters counters_;
  LentReads lent_reads_;  ///< by the transports of those who lend, into the device's inbox
  uint32_t next_memory_;
  bool said_why_unpinned_ = false;
  mutable std::mutex mutex_;  ///< guards address_ and kind_, and ways_ where it changes or another thread reads
  std::string address_, kind_;
  std::map<uint32_t, std::unique_ptr<Way>> ways_;  ///< by memory; last: their transports call back
};

}  // namespace baton::decode_worker
