// The transfer thread's half of the decode side: the transport and its landing slots, the messages of writers, the
// passes that verify and scatter. Decides nothing; the ticket desk does, on the scheduler thread.
//
// It keeps the grants it has sent, because where the receiver writes a slot may be stored only in its own turn, and
// that is asked for every piece that arrives: a slot changes hands on this thread alone.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "decode_worker/handoff/events.h"
#include "kvtransfer/lane_codec.h"
#include "kvtransfer/placer.h"
#include "kvtransfer/transport.h"
#include "worker/transfer_thread.h"
#include "worker/worker_config.h"

namespace baton::decode_worker {

/// Who hears of it. Called on the transfer thread.
class LandingEvents {
 public:
  virtual ~LandingEvents() = default;
  virtual void OnHello(WriterId writer, LaneHello hello) = 0;
  virtual void OnLane(WriterId writer, ToDecode message) = 0;
  virtual void OnPlaced(const decode::Placed& placed) = 0;
  virtual void OnWriterLost(WriterId writer) = 0;
  virtual void OnWriterFenced(WriterId writer) = 0;
};

struct PlaceOrder {
  LaneKey lane;
  SlotTurn slot;
  std::vector<uint32_t> wanted;
  std::shared_ptr<const TransferPlan> plan;
  std::shared_ptr<const KvBlockTables> tables;
};

/// Since start. Read from any thread.
struct LandingCounters {
  std::atomic<int64_t> bytes{0}, slots{0}, nanoseconds{0}, digest_mismatches{0};
};

class Landing final : private TransportEvents {
 public:
  /// Opens the transport of --transport. Unavailable, ResourceExhausted: it cannot. The others must outlive it.
  static absl::StatusOr<std::unique_ptr<Landing>> Create(const worker::WorkerConfig& config, KvPoolView pool,
                                                         const Clock& clock, worker::TransferThread& thread,
                                                         LandingEvents& events);

  // ---- any thread
  const std::string& address() const { return address_; }
  const std::string& kind() const { return kind_; }
  const LandingShape& shape() const { return shape_; }
  decode::FenceKind fence() const;
  const LandingCounters& counters() const { return counters_; }

  // ---- transfer thread
  void Send(WriterId writer, const ToPrefill& message);
  /// Answered by OnPlaced, always.
  void Place(const PlaceOrder& order);
  /// Answered by OnWriterFenced once the writer can write no more.
  void Cut(WriterId writer);

 private:
  struct Grant {
    WriterId writer = 0;
    LaneKey lane;
    uint32_t turn = 0;
    bool open = false;  ///< granted and not filled yet
  };
  Landing(std::string kind, const LandingShape& shape, KvPoolView pool, const Clock& clock,
          worker::TransferThread& thread, LandingEvents& events);
  void OnConnected(PeerNumber) override {}
  void OnMessage(PeerNumber peer, std::string_view message) override;
  void OnLost(PeerNumber peer, const absl::Status& why) override;
  bool MayLand(PeerNumber peer, const LandingPlace& place) override;
  void NoteGrant(WriterId writer, const LaneKey& lane, SlotTurn grant);
  absl::Status VerifyAndScatter(const PlaceOrder& order);

  const std::string kind_;
  const LandingShape shape_;
  const KvPoolView pool_;
  const Clock& clock_;
  worker::TransferThread& thread_;
  LandingEvents& events_;
  std::string address_;
  std::vector<Grant> grants_;  ///< [slots]
  LandingCounters counters_;
  std::unique_ptr<Transport> transport_;  ///< last: it calls back
};

}  // namespace baton::decode_worker
