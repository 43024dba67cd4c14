// The ledger of one rank's landing slots: the only memory a peer may write. Which lane holds which slot, and its turn.
// Numbers only; the bytes are the transport's. Pure; scheduler thread. A granted slot is never taken back: it is
// released by its lane's fence alone.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "kvtransfer/lane_messages.h"

namespace baton::decode {

class LandingRing {
 public:
  enum class Phase : uint8_t {
    kFree,
    kGranted,  ///< the writer may fill it
    kPlacing,  ///< our own pass reads it
  };
  explicit LandingRing(int slots);

  int size() const { return static_cast<int>(slots_.size()); }
  int free_slots() const { return static_cast<int>(free_.size()); }
  /// Takes a free slot, oldest free first, for `lane`. Check free_slots() before.
  SlotTurn Grant(const LaneKey& lane);
  /// True when `lane` holds `slot` in exactly this turn and phase.
  bool Holds(const LaneKey& lane, SlotTurn slot, Phase phase) const;
  /// The slot's grant when `lane` holds it, whatever the turn; turn 0 when it does not.
  SlotTurn CurrentGrant(const LaneKey& lane, uint32_t slot) const;
  void StartPlacing(SlotTurn slot);
  /// Our pass has ended; the same lane is granted the slot anew.
  SlotTurn EndPlacing(SlotTurn slot);
  /// Returns every granted slot of a fenced lane; slots being placed follow by a second call after their pass.
  void ReleaseGranted(const LaneKey& lane);
  /// Slots `lane` holds in `phase`, by number.
  std::vector<SlotTurn> SlotsOf(const LaneKey& lane, Phase phase) const;

 private:
  struct Slot {
    LaneKey owner;
    uint32_t turn = 0;
    Phase phase = Phase::kFree;
  };
  std::vector<Slot> slots_;
  std::deque<uint32_t> free_;
};

}  // namespace baton::decode
