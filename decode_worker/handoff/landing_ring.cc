#include "decode_worker/handoff/landing_ring.h"

#include "common/check.h"
#include "common/planted_bug.h"

namespace baton::decode {

LandingRing::LandingRing(int slots) : slots_(static_cast<size_t>(slots)) {
  for (int i = 0; i < slots; ++i) free_.push_back(static_cast<uint32_t>(i));
}

SlotTurn LandingRing::Grant(const LaneKey& lane) {
  if (PlantedBug("credits beyond the ring") && free_.empty()) free_.push_back(0);
  BATON_CHECK(!free_.empty(), "0 of ", slots_.size(), " landing slots free");
  const uint32_t number = free_.front();
  free_.pop_front();
  Slot& slot = slots_[number];
  slot.owner = lane, slot.phase = Phase::kGranted, ++slot.turn;
  return {number, slot.turn};
}

bool LandingRing::Holds(const LaneKey& lane, SlotTurn name, Phase phase) const {
  if (name.slot >= slots_.size()) return false;
  const Slot& slot = slots_[name.slot];
  return slot.phase == phase && slot.owner == lane && slot.turn == name.turn;
}

SlotTurn LandingRing::CurrentGrant(const LaneKey& lane, uint32_t number) const {
  if (number >= slots_.size()) return {};
  const Slot& slot = slots_[number];
  if (slot.phase != Phase::kGranted || slot.owner != lane) return {};
  return {number, slot.turn};
}

void LandingRing::StartPlacing(SlotTurn name) {
  Slot& slot = slots_[name.slot];
  BATON_CHECK(slot.phase == Phase::kGranted && slot.turn == name.turn, "slot ", name.slot, " turn ", name.turn);
  slot.phase = Phase::kPlacing;
}

SlotTurn LandingRing::EndPlacing(SlotTurn name) {
  Slot& slot = slots_[name.slot];
  BATON_CHECK(slot.phase == Phase::kPlacing && slot.turn == name.turn, "slot ", name.slot, " turn ", name.turn);
  slot.phase = Phase::kGranted, ++slot.turn;
  return {name.slot, slot.turn};
}

void LandingRing::ReleaseGranted(const LaneKey& lane) {
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (slot.phase != Phase::kGranted || slot.owner != lane) continue;
    slot.phase = Phase::kFree, slot.owner = {};
    free_.push_back(i);
  }
}

std::vector<SlotTurn> LandingRing::SlotsOf(const LaneKey& lane, Phase phase) const {
  std::vector<SlotTurn> found;
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].phase == phase && slots_[i].owner == lane) found.push_back({i, slots_[i].turn});
  }
  return found;
}

}  // namespace baton::decode
