// The self-test of a connection: known bytes go into a landing slot that only self-tests use, the receiver compares
// them, the sender measures. A connection that has not passed carries no KV.
//
//   sender                                      receiver
//   Ask (repeated until granted)            ─►  one writer at a time, in turn
//                                           ◄─  Grant{slot, turn}
//   writes, flush, Full{turn, bytes, seed}  ─►  compares
//                                           ◄─  Seen{turn, ok}: the slot is granted anew at the next turn
//   Over{GB/s, path}                        ─►  the slot goes to the next that waits
//
// A holder that is silent for long, or that still tests after a time that is long for any path, loses the slot to the
// next asker; its next Full counts as an Ask.
//
// Both halves live on the transfer thread and know neither clock nor codec: time and the way out are arguments.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/own_time.h"
#include "kvtransfer/transport.h"

namespace baton {

struct SelfTestMessage {
  enum class Step : uint8_t { kAsk = 1, kGrant, kFull, kSeen, kOver };
  Step step = Step::kAsk;
  SlotTurn slot;
  uint64_t bytes = 0;               ///< kGrant: of the slot; kFull: written
  uint64_t seed = 0;                ///< kFull
  bool ok = false;                  ///< kSeen, kOver
  double gigabytes_per_second = 0;  ///< kOver
  std::string text;                 ///< kGrant: the receiver's incarnation; kOver: the path
};

using SendSelfTest = std::function<void(PeerNumber, const SelfTestMessage&)>;

/// The bytes of a test. Fill and comparison must have `bytes` of the same size.
void FillTestPattern(uint64_t seed, std::span<std::byte> bytes);
bool IsTestPattern(uint64_t seed, std::span<const std::byte> bytes);

/// The receiver's half: owns the last landing slot of a transport.
class SelfTestSlot {
 public:
  SelfTestSlot(uint32_t slot, std::span<std::byte> memory, std::string incarnation, SendSelfTest send)
      : slot_(slot), memory_(memory), incarnation_(std::move(incarnation)), send_(std::move(send)) {}

  void OnMessage(PeerNumber peer, const SelfTestMessage& message, TimePoint now);
  void OnLost(PeerNumber peer, TimePoint now);
  /// For TransportEvents::MayLand, of this slot.
  bool MayLand(PeerNumber peer, SlotTurn slot) const { return peer == holder_ && slot == SlotTurn{slot_, turn_}; }
  uint32_t slot() const { return slot_; }
  bool HeldBy(PeerNumber peer) const { return peer == holder_; }

 private:
  struct Waiting {
    PeerNumber peer = 0;
    bool asked_again = false;  ///< so it is there, and does not wait for nothing
  };
  void Wait(PeerNumber peer);
  void Grant(TimePoint now);

  const uint32_t slot_;
  const std::span<std::byte> memory_;
  const std::string incarnation_;
  const SendSelfTest send_;
  PeerNumber holder_ = 0;  ///< 0: free
  uint32_t turn_ = 0;
  TimePoint granted_{}, heard_{};  ///< to the holder, and of it
  std::deque<Waiting> waiting_;
};

/// The sender's half, for one connection. Kept by shared_ptr: the transport's callbacks hold it, and its bytes.
class SelfTest : public std::enable_shared_from_this<SelfTest> {
 public:
  struct Result {
    double gigabytes_per_second = 0;  ///< median of the rounds: written and flushed
    std::string path;                 ///< Transport::path
    std::string receiver;             ///< incarnation
  };
  /// Called once; from OnMessage, from Tick or from a callback of the transport.
  using Done = std::function<void(absl::StatusOr<Result>)>;

  SelfTest(Transport& transport, PeerNumber peer, const Clock& clock, SendSelfTest send, Done done);
  void Start();
  void OnMessage(const SelfTestMessage& message);
  /// Asks again, and gives up when nothing was heard for long.
  void Tick();
  /// Done is not called any more.
  void Abandon() { done_ = nullptr; }

 private:
  void BeginRound();
  void EndRound(bool ok);
  void OnWriteFailed(SlotTurn slot, const absl::Status& status);
  void Finish(absl::Status status);

  Transport& transport_;
  const PeerNumber peer_;
  const Clock& clock_;
  const SendSelfTest send_;
  Done done_;
  SlotTurn slot_;
  std::string receiver_;
  std::vector<std::byte> bytes_;
  uint64_t seed_ = 0;
  OwnTime own_;
  TimePoint heard_{};  ///< in own time
  TimePoint started_{}, asked_{}, round_began_{};
  Duration round_took_{};
  bool granted_ = false;
  int rounds_ = 0, failures_ = 0;
  std::vector<double> rates_;  ///< GB/s, of rounds that count
};

}  // namespace baton
