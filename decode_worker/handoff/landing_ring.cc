#include "decode_worker/handoff/landing_ring.h"

#include <algorithm>
#include <iterator>

#include "common/check.h"
#include "common/planted_bug.h"

namespace baton::decode {

LandingRing::LandingRing(int slots) : slots_(static_cast<size_t>(slots)) {
  for (int i = 0; i < slots; ++i) free_.push_back(static_cast<uint32_t>(i));
}

bool LandingRing::Slot::LostTo(uint32_t to) const {
  return std::any_of(losses.begin(), losses.end(), [to](const Loss& loss) { return loss.memory == to; });
}

int LandingRing::free_slots(uint32_t memory) const {
  if (losses_ == 0) return free_slots();
  return static_cast<int>(
      std::count_if(free_.begin(), free_.end(), [&](uint32_t number) { return !slots_[number].LostTo(memory); }));
}

int LandingRing::held_by(const std::string& process) const {
  const auto held = held_.find(process);
  return held == held_.end() ? 0 : held->second;
}

int LandingRing::lost(uint32_t memory) const {
  if (losses_ == 0) return 0;
  return static_cast<int>(
      std::count_if(slots_.begin(), slots_.end(), [memory](const Slot& slot) { return slot.LostTo(memory); }));
}

bool LandingRing::Lost(WriterId writer, const LaneKey& lane, uint32_t slot) const {
  return slot < slots_.size() && std::any_of(
                                     slots_[slot].losses.begin(), slots_[slot].losses.end(),
                                     [&](const Loss& l) { return l.writer == writer && l.lane == lane; });
}

SlotTurn LandingRing::Grant(const LaneKey& lane, const std::string& process, uint32_t memory) {
  if (PlantedBug("credits beyond the ring") && free_slots(memory) == 0) free_.push_back(0);
  auto found = std::find_if(free_.begin(), free_.end(), [&](uint32_t n) { return !slots_[n].LostTo(memory); });
  if (found == free_.end() && PlantedBug("credits beyond the ring")) found = std::prev(free_.end());
  BATON_CHECK(found != free_.end(), "0 of ", slots_.size(), " landing slots free");
  const uint32_t number = *found;
  free_.erase(found);
  Slot& slot = slots_[number];
  slot.owner = lane;
  slot.process = process;
  slot.phase = Phase::kGranted;
  ++slot.turn;
  ++held_[process];
  return {number, slot.turn};
}

bool LandingRing::Usable(const LaneKey& lane, uint32_t memory) const {
  return losses_ == 0 || std::none_of(slots_.begin(), slots_.end(), [&](const Slot& slot) {
           return slot.phase != Phase::kFree && slot.owner == lane && slot.LostTo(memory);
         });
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
  slot.phase = Phase::kGranted;
  ++slot.turn;
  return {name.slot, slot.turn};
}

void LandingRing::Free(uint32_t number) {
  Slot& slot = slots_[number];
  const auto held = held_.find(slot.process);
  if (--held->second == 0) held_.erase(held);
  slot.phase = Phase::kFree;
  slot.owner = {};
  slot.process.clear();
  free_.push_back(number);
}

void LandingRing::ReleaseGranted(const LaneKey& lane) {
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].phase == Phase::kGranted && slots_[i].owner == lane) Free(i);
  }
}

void LandingRing::WriteOffGranted(const LaneKey& lane, WriterId writer, uint32_t memory) {
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (slot.phase != Phase::kGranted || slot.owner != lane) continue;
    if (!PlantedBug("written off is free")) {
      slot.losses.push_back({memory, writer, lane});
      ++losses_;
    }
    Free(i);
  }
}

void LandingRing::Restore(WriterId writer, const LaneKey& lane) {
  if (losses_ == 0) return;
  for (Slot& slot : slots_) {
    losses_ -= static_cast<int>(
        std::erase_if(slot.losses, [&](const Loss& loss) { return loss.writer == writer && loss.lane == lane; }));
  }
}

void LandingRing::Restore(WriterId writer) {
  if (losses_ == 0) return;
  for (Slot& slot : slots_) {
    losses_ -= static_cast<int>(std::erase_if(slot.losses, [&](const Loss& loss) { return loss.writer == writer; }));
  }
}

bool LandingRing::LostBy(WriterId writer) const {
  if (losses_ == 0) return false;
  return std::ranges::any_of(slots_, [writer](const Slot& slot) {
    return std::ranges::any_of(slot.losses, [writer](const Loss& loss) { return loss.writer == writer; });
  });
}

std::vector<SlotTurn> LandingRing::SlotsOf(const LaneKey& lane, Phase phase) const {
  std::vector<SlotTurn> found;
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].phase == phase && slots_[i].owner == lane) found.push_back({i, slots_[i].turn});
  }
  return found;
}

size_t LandingRing::CountOf(const LaneKey& lane, Phase phase) const {
  return static_cast<size_t>(std::count_if(
      slots_.begin(), slots_.end(), [&](const Slot& slot) { return slot.phase == phase && slot.owner == lane; }));
}

}  // namespace baton::decode
