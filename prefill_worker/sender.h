// The transfer thread's half of the prefill side: connections to decode workers, the pass that gathers and checks a
// slot, the writes. Decides nothing; the prefill desk does, on the scheduler thread.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "kvtransfer/bounce_pool.h"
#include "kvtransfer/lane_codec.h"
#include "kvtransfer/placer.h"
#include "kvtransfer/transport.h"
#include "prefill_worker/handoff/events.h"
#include "worker/transfer_thread.h"

namespace baton::prefill_worker {

/// Who hears of it. Called on the transfer thread.
class SenderEvents {
 public:
  virtual ~SenderEvents() = default;
  virtual void OnPush(const prefill::Event& event) = 0;
};

struct WriteOrder {
  prefill::PeerId peer = 0;
  LaneKey lane;
  SlotTurn slot;
  std::vector<uint32_t> segments;
  std::shared_ptr<const TransferPlan> plan;
  KvBlockTables tables;
};

/// Since start. Read from any thread.
struct SenderCounters {
  std::atomic<int64_t> bytes{0}, slots{0};
  std::atomic<int64_t> nanoseconds{0};  ///< during which at least one slot was under way: gathered, but not answered
};

class Sender {
 public:
  /// `host`: what its ends of connections bind. `slot_bytes`: the longest slot it can fill. The others must outlive it.
  /// `fault_rate`: the share of slots it damages, for tests.
  Sender(std::string host, size_t slot_bytes, double fault_rate, KvPoolView pool, LaneHello hello, const Clock& clock,
         worker::TransferThread& thread, SenderEvents& events);
  ~Sender();

  const SenderCounters& counters() const { return counters_; }

  // ---- transfer thread
  /// `peer` is the caller's number for it. When it cannot be had: PeerLost.
  void Connect(prefill::PeerId peer, const std::string& address);
  void Send(prefill::PeerId peer, const ToDecode& message);
  /// Answered by Written.
  void Write(WriteOrder order);
  /// Answered by Flushed; writes of the lane that have not begun are dropped.
  void Flush(prefill::PeerId peer, const LaneKey& lane);

 private:
  struct Peer {
    Transport* transport = nullptr;
    PeerNumber number = 0;
  };
  class Link;  // a transport and whom it calls back

  absl::StatusOr<Link*> LinkFor(const std::string& kind);
  void Lose(Link& link, PeerNumber number, const absl::Status& why);
  void OnMessage(Link& link, PeerNumber number, std::string_view bytes);
  void Begin(WriteOrder order, BouncePool::Buffer buffer);
  void Depart(prefill::PeerId peer, const LaneKey& lane);
  void Arrive(prefill::PeerId peer, const LaneKey& lane, int slots);
  Peer* Find(prefill::PeerId peer);

  const std::string host_;
  const double fault_rate_;
  const KvPoolView pool_;
  const std::string hello_;
  const Clock& clock_;
  worker::TransferThread& thread_;
  SenderEvents& events_;
  SenderCounters counters_;
  std::map<std::pair<prefill::PeerId, LaneKey>, int> under_way_;  ///< slots begun and not answered; never 0
  TimePoint under_way_since_{};
  std::vector<std::byte> memory_;
  BouncePool buffers_;
  std::deque<WriteOrder> waiting_;  ///< for a buffer
  std::map<prefill::PeerId, Peer> peers_;
  std::map<std::string, std::unique_ptr<Link>> links_;  ///< by kind; last: their transports call back
};

}  // namespace baton::prefill_worker
