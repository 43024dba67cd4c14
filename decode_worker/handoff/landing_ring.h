// The ledger of one rank's landing slots: the only memory a peer may write. Which lane holds which slot, and its turn.
// Numbers only; the bytes are the transport's. Pure; scheduler thread. A granted slot is never taken back: it is
// released by its lane's fence alone.
//
// A slot has bytes in every landing memory, one memory per transport and per fresh ring of a transport. A slot of a
// writer that shows no sign of life is written off: it is free again, but lost to writers of that memory until the old
// writer was fenced after all.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
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
  /// That a writer of `memory` may be granted.
  int free_slots(uint32_t memory) const;
  /// Held by lanes of this process.
  int held_by(const std::string& process) const;
  /// Slots that are lost to writers of `memory`.
  int lost(uint32_t memory) const;
  /// True when `writer` may still write this slot for `lane`, which was written off.
  bool Lost(WriterId writer, const LaneKey& lane, uint32_t slot) const;
  /// Takes a free slot, oldest free first, for `lane`, which `process` fills in `memory`. Check free_slots() before.
  SlotTurn Grant(const LaneKey& lane, const std::string& process, uint32_t memory);
  /// True when no slot that `lane` holds is lost to writers of `memory`.
  bool Usable(const LaneKey& lane, uint32_t memory) const;
  /// True when `lane` holds `slot` in exactly this turn and phase.
  bool Holds(const LaneKey& lane, SlotTurn slot, Phase phase) const;
  /// The slot's grant when `lane` holds it, whatever the turn; turn 0 when it does not.
  SlotTurn CurrentGrant(const LaneKey& lane, uint32_t slot) const;
  void StartPlacing(SlotTurn slot);
  /// Our pass has ended; the same lane is granted the slot anew.
  SlotTurn EndPlacing(SlotTurn slot);
  /// Returns every granted slot of a fenced lane; slots being placed follow by a second call after their pass.
  void ReleaseGranted(const LaneKey& lane);
  /// The same of a lane that is not fenced: `writer` may still write them, so they are lost to its `memory`.
  void WriteOffGranted(const LaneKey& lane, WriterId writer, uint32_t memory);
  /// `writer` can no longer write the slots that it held for `lane`, or any slot.
  void Restore(WriterId writer, const LaneKey& lane);
  void Restore(WriterId writer);
  /// Some slot is lost because `writer` may still write it.
  bool LostBy(WriterId writer) const;
  /// Slots `lane` holds in `phase`, by number.
  std::vector<SlotTurn> SlotsOf(const LaneKey& lane, Phase phase) const;
  size_t CountOf(const LaneKey& lane, Phase phase) const;

 private:
  struct Loss {
    uint32_t memory = 0;
    WriterId writer = 0;
    LaneKey lane;
  };
  struct Slot {
    LaneKey owner;
    std::string process;
    uint32_t turn = 0;
    Phase phase = Phase::kFree;
    std::vector<Loss> losses;
    bool LostTo(uint32_t memory) const;
  };
  void Free(uint32_t number);

  std::vector<Slot> slots_;
  std::deque<uint32_t> free_;
  std::map<std::string, int> held_;  ///< by process; never 0
  int losses_ = 0;                   ///< over all slots
};

}  // namespace baton::decode
