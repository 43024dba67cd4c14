// The transfer thread's half of the decode side: the transports and their landing slots, the messages of writers, the
// passes that verify and scatter. Decides nothing; the ticket desk does, on the scheduler thread.
//
// Every transport has landing memory of its own for the same slot numbers (untouched memory costs nothing), and one
// slot more, for self-tests. A slot is one writer's at a time, so its bytes are where that writer's transport puts
// them.
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
#include "decode_worker/landing_port.h"
#include "kvtransfer/lane_codec.h"
#include "kvtransfer/placer.h"
#include "kvtransfer/self_test.h"
#include "kvtransfer/transport.h"
#include "worker/transfer_loop.h"
#include "worker/transports.h"
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

/// Since start. Read from any thread.
struct LandingCounters {
  std::atomic<int64_t> bytes{0}, slots{0}, nanoseconds{0};
  std::atomic<int64_t> unreadable_slots{0};   ///< header or table wrong, or of another turn
  std::atomic<int64_t> digest_mismatches{0};  ///< bytes are not what the sender sent
  std::atomic<int64_t> self_tests_failed{0}, writers_lost{0};
};

class Landing final : public LandingPort {
 public:
  /// Opens the transports of --transport; one that cannot be had is left out with a warning. Unavailable,
  /// ResourceExhausted, FailedPrecondition: none can. The others must outlive it. `make`: makes the only one, for
  /// tests.
  static absl::StatusOr<std::unique_ptr<Landing>> Create(const worker::WorkerConfig& config, KvPoolView pool,
                                                         std::string incarnation, const Clock& clock,
                                                         worker::TransferLoop& thread, LandingEvents& events,
                                                         const worker::TransportMaker& make = {});
  ~Landing() override;

  static constexpr size_t kMostWays = 8;  ///< transports; a writer's number says by which one it comes
  static WriterId WriterBy(PeerNumber peer, size_t way) { return peer * kMostWays + way; }

  // ---- any thread
  /// Of all transports: worker::LandingAddresses.
  const std::string& address() const { return address_; }
  /// Of the transport that passed a self-test last; before that, of the best.
  const std::string& kind() const;
  const LandingShape& shape() const { return shape_; }
  decode::FenceKind FenceOf(WriterId writer) const override;
  const LandingCounters& counters() const { return counters_; }

  // ---- transfer thread
  /// The slots as this writer fills them, one after the other.
  std::span<const std::byte> SlotsOf(WriterId writer) const;
  void Send(WriterId writer, const ToPrefill& message) override;
  void Place(const PlaceOrder& order) override;
  void Cut(WriterId writer) override;

 private:
  struct Grant {
    WriterId writer = 0;
    LaneKey lane;
    uint32_t turn = 0;
    bool open = false;  ///< granted and not filled yet
  };
  class Way;  // a transport and whom it calls back
  Landing(const LandingShape& shape, KvPoolView pool, const Clock& clock, worker::TransferLoop& thread,
          LandingEvents& events);
  absl::Status Open(const std::string& kind, const worker::WorkerConfig& config, const std::string& incarnation,
                    const worker::TransportMaker& make);
  Way& WayOf(WriterId writer) const { return *ways_[writer % kMostWays]; }
  static PeerNumber PeerOf(WriterId writer) { return writer / kMostWays; }
  void OnMessage(WriterId writer, std::string_view message);
  void OnSelfTest(WriterId writer, const SelfTestMessage& message);
  void OnLost(WriterId writer, const absl::Status& why);
  bool MayLand(WriterId writer, const LandingPlace& place) const;
  void NoteGrant(WriterId writer, const LaneKey& lane, SlotTurn grant);
  absl::Status VerifyAndScatter(const PlaceOrder& order);

  const LandingShape shape_;
  const KvPoolView pool_;
  const Clock& clock_;
  worker::TransferLoop& thread_;
  LandingEvents& events_;
  std::string address_;
  std::vector<Grant> grants_;  ///< [slots]
  LandingCounters counters_;
  std::atomic<size_t> latest_{0};           ///< way that passed a self-test last
  std::vector<std::unique_ptr<Way>> ways_;  ///< fixed after Create; last: their transports call back
};

}  // namespace baton::decode_worker
