// The transfer thread's half of the prefill side: the pass that gathers and checks a slot, the writes, messages to
// decode workers (which its dialer connects to). Decides nothing; the prefill desk does, on the scheduler thread.
//
// Where a decode worker of this machine, or one whose transport lends it, has said that it reads this GPU's outbox,
// payloads go into a buffer of it, and the slot has only its table. The buffer is the decode worker's to read until it
// answers the slot, has acknowledged the lane's end, or is lost. Where others have them all KV is staged.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/clock.h"
#include "kvtransfer/bounce_pool.h"
#include "kvtransfer/lane_codec.h"
#include "kvtransfer/rank_figures.h"
#include "kvtransfer/slot_passes.h"
#include "kvtransfer/transport.h"
#include "prefill_worker/dialer.h"
#include "prefill_worker/handoff/events.h"
#include "prefill_worker/sender_control.h"
#include "worker/transfer/transfer_loop.h"

namespace baton::prefill_worker {

/// The listener of a Sender. Called on the transfer thread.
class SenderEvents {
 public:
  virtual ~SenderEvents() = default;
  virtual void OnPush(const prefill::Event& event) = 0;
};

/// Since start. Read from any thread.
struct SenderCounters {
  std::atomic<int64_t> bytes{0}, slots{0};
  std::atomic<int64_t> waiting{0};  ///< now: slots that wait for a buffer
  std::atomic<int64_t> peers_lost{0};
  std::atomic<int64_t> nanoseconds{0};  ///< during which at least one slot was under way: gathered, but not answered
};

class Sender final : public SenderControl, private DialEvents {
 public:
  /// `slot_bytes`: the longest slot it can fill. The others must outlive it.
  Sender(DialOptions dial, size_t slot_bytes, KvPoolView pool, LaneHello hello, const Clock& clock,
         worker::TransferLoop& thread, SenderEvents& events);
  ~Sender() override;

  // ---- any thread
  const SenderCounters& counters() const { return counters_; }
  RankFigures Figures() const;

  // ---- transfer thread
  /// `peer` is the caller's number for the decode worker. PeerLost when no connection comes about. Orders that are
  /// given before the connection stands wait.
  void Connect(prefill::PeerId peer, const std::string& addresses) override;
  /// Now and then.
  void Tick() { dialer_.Tick(); }
  void Send(prefill::PeerId peer, const ToDecode& message) override;
  void Write(WriteOrder order) override;
  void Flush(prefill::PeerId peer, const LaneKey& lane) override;
  void Cut(prefill::PeerId peer) override;

 private:
  struct Peer {
    Way way;                                     ///< null until it is reached
    std::vector<std::function<void()>> waiting;  ///< for that
    bool reads_outbox = false;
    bool reached() const { return way.transport != nullptr; }
  };

  using Buffer = BouncePool::Buffer;
  /// Where a slot is packed.
  struct Room {
    std::span<std::byte> slot;       ///< in a bounce buffer, or in the peer's own memory
    std::shared_ptr<Buffer> bounce;  ///< null: in the peer's
    std::optional<Buffer> outbox;    ///< for the payloads
  };
  using SlotOfLane = std::pair<LaneKey, SlotTurn>;

  const std::string& HelloBy(Transport& transport);
  void OnReached(prefill::PeerId peer, Way way) override;
  void OnPeerMessage(prefill::PeerId peer, std::string_view bytes) override;
  void OnPeerLost(prefill::PeerId peer, const absl::Status& why) override;
  /// True: `work` runs once the peer is reached, if it ever is.
  bool Waits(prefill::PeerId peer, std::function<void()> work);
  /// Begins what waits for buffers, one of each peer in turn.
  void BeginWaiting();
  void DropWaiting(prefill::PeerId peer, const LaneKey* lane = nullptr);
  /// Nothing when the slot must wait for a buffer.
  std::optional<Room> RoomFor(const WriteOrder& order);
  void Begin(WriteOrder order, Room room);
  absl::StatusOr<uint64_t> Gather(const WriteOrder& order, const Room& room);
  void SpoilSource(WriteOrder& order);
  bool TellFull(const prefill::Written& written, std::vector<uint32_t> segments);
  void OnReadsOutbox(prefill::PeerId peer);
  /// The peer reads none of the outbox's buffers any more that hold slots which `are_read`.
  template <class AreRead>
  void TakeBack(prefill::PeerId peer, AreRead are_read);
  void Depart(prefill::PeerId peer, const LaneKey& lane);
  void Arrive(prefill::PeerId peer, const LaneKey& lane, int slots);
  Peer* Find(prefill::PeerId peer);

  const KvPoolView pool_;
  KvMover* const lender_;            ///< null: no peer reads a device's memory
  std::string hello_, local_hello_;  ///< the second to peers of this machine
  LaneHello lending_hello_;
  std::map<const Transport*, std::string> hellos_;  ///< to others, where there is a device
  const Clock& clock_;
  worker::TransferLoop& thread_;
  SenderEvents& events_;
  SenderCounters counters_;
  std::map<std::pair<prefill::PeerId, LaneKey>, int> under_way_;  ///< slots begun and not answered; never 0
  TimePoint under_way_since_{};
  const double source_fault_rate_;  ///< for tests
  std::mt19937_64 random_{1};
  std::vector<std::byte> memory_;
  BouncePool buffers_, outbox_;
  std::map<prefill::PeerId, std::map<SlotOfLane, Buffer>> lent_;  ///< never empty
  std::map<prefill::PeerId, std::deque<WriteOrder>> waiting_;     ///< for a buffer; never empty
  prefill::PeerId begun_last_ = 0;                                ///< of those that waited
  std::map<prefill::PeerId, Peer> peers_;
  Dialer dialer_;  ///< last: its transports call back
};

}  // namespace baton::prefill_worker
