#include "router/index/worker_prefixes.h"

#include <algorithm>
#include <bit>
#include <mutex>

namespace baton::router {
namespace {

constexpr size_t kFirstCapacity = 1024;
constexpr int kEvictionSample = 8;
constexpr int64_t kSetsShare = 8;  // of the memory: one in so many bytes is for sets of holders
constexpr size_t kAhead = 8;       // keys whose slots are fetched before they are needed
constexpr int kLevelsAhead = 4;  // of halving, of which the slots are fetched together: as many as a core can wait for

// Keys are hashes already; 0 marks a hole, so the one real 0 is renamed.
uint64_t Stored(uint64_t key) { return key == 0 ? 1 : key; }

size_t CapacityFor(int64_t max_bytes, int64_t slot_bytes) {
  return static_cast<size_t>(std::max<int64_t>(max_bytes / slot_bytes, kFirstCapacity));
}

}  // namespace

WorkerPrefixes::Table::Table(size_t c) : capacity(c), slots(c) {}

WorkerPrefixes::WorkerPrefixes(int64_t max_bytes)
    : max_capacity_(CapacityFor(max_bytes - max_bytes / kSetsShare, kSlotBytes)),
      table_(std::min(kFirstCapacity, max_capacity_)),
      sets_(max_bytes / kSetsShare) {}

size_t WorkerPrefixes::Find(uint64_t key) const {
  size_t at = table_.Home(key);
  while (table_.slots[at].key != 0 && table_.slots[at].key != key) at = table_.After(at);
  return at;
}

// The word of the unit's holders, which is in use now.
HolderSets::Word WorkerPrefixes::Look(uint64_t raw) const {
  const uint64_t key = Stored(raw);
  Slot& slot = table_.slots[Find(key)];
  if (slot.key != key) return 0;
  const std::atomic_ref used(slot.used);
  const uint32_t now = now_.load(std::memory_order_relaxed);
  if (used.load(std::memory_order_relaxed) != now) used.store(now, std::memory_order_relaxed);
  return slot.holders;
}

// Its key is not there.
void WorkerPrefixes::Place(const Slot& slot) {
  table_.slots[Find(slot.key)] = slot;
  ++table_.size;
}

// Worker `slot` holds the unit at `at` no more, if it did.
void WorkerPrefixes::TakeOut(int slot, size_t at) {
  Slot& unit = table_.slots[at];
  if (!sets_.Has(unit.holders, slot)) return;
  --held_[static_cast<size_t>(slot)];
  unit.holders = sets_.Without(unit.holders, slot);
  if (unit.holders == 0) Erase(at);
}

// Backward-shift deletion: what was pushed past the hole moves back, so that no tombstones pile up.
void WorkerPrefixes::Erase(size_t hole) {
  Table& t = table_;
  for (size_t at = t.After(hole); t.slots[at].key != 0; at = t.After(at)) {
    if (t.Distance(t.Home(t.slots[at].key), at) < t.Distance(hole, at)) continue;
    t.slots[hole] = t.slots[at];
    hole = at;
  }
  t.slots[hole] = Slot{};
  --t.size;
}

void WorkerPrefixes::EvictNear(uint64_t key) {
  const uint32_t now = now_.load(std::memory_order_relaxed);
  size_t at = table_.Home(key * 0x9E3779B97F4A7C15ull);
  size_t oldest = at;
  uint32_t oldest_age = 0;
  for (int seen = 0; seen < kEvictionSample; at = table_.After(at)) {
    if (table_.slots[at].key == 0) continue;
    ++seen;
    const uint32_t age = now - table_.slots[at].used + 1;
    if (age > oldest_age) {
      oldest_age = age;
      oldest = at;
    }
  }
  const HolderSets::Word holders = table_.slots[oldest].holders;
  sets_.Of(holders).ForEach([this](int slot) { --held_[static_cast<size_t>(slot)]; });
  sets_.Release(holders);
  Erase(oldest);
  evictions_.fetch_add(1, std::memory_order_relaxed);
}

void WorkerPrefixes::Grow(size_t capacity) {
  Table old(capacity);
  std::swap(old, table_);
  for (size_t i = 0; i < old.capacity; ++i) {
    if (old.slots[i].key != 0) Place(old.slots[i]);
  }
}

void WorkerPrefixes::Store(int slot, absl::Span<const uint64_t> keys) {
  std::unique_lock lock(mutex_);
  const uint32_t now = now_.fetch_add(1, std::memory_order_relaxed) + 1;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i + kAhead < keys.size()) __builtin_prefetch(&table_.slots[table_.Home(Stored(keys[i + kAhead]))], 1);
    if (5 * (table_.size + 1) > 4 * table_.capacity) {
      if (table_.capacity < max_capacity_) {
        Grow(std::min(max_capacity_, table_.capacity + table_.capacity / 2));
      } else {
        EvictNear(keys[i]);
      }
    }
    const uint64_t key = Stored(keys[i]);
    Slot& unit = table_.slots[Find(key)];
    if (unit.key == 0) {
      unit.key = key;
      ++table_.size;
    }
    if (!sets_.Has(unit.holders, slot)) ++held_[static_cast<size_t>(slot)];
    unit.holders = sets_.With(unit.holders, slot);
    unit.used = now;
  }
}

void WorkerPrefixes::Remove(int slot, absl::Span<const uint64_t> keys) {
  std::unique_lock lock(mutex_);
  for (const uint64_t raw : keys) TakeOut(slot, Find(Stored(raw)));
}

void WorkerPrefixes::Clear(int slot) {
  std::unique_lock lock(mutex_);
  if (held_[static_cast<size_t>(slot)] == 0) return;
  Table old(table_.capacity);
  std::swap(old, table_);
  for (size_t i = 0; i < old.capacity; ++i) {
    Slot unit = old.slots[i];
    unit.holders = sets_.Without(unit.holders, slot);
    if (unit.holders != 0) Place(unit);
  }
  held_[static_cast<size_t>(slot)] = 0;
}

void WorkerPrefixes::ClearAll() {
  std::unique_lock lock(mutex_);
  Table old(std::min(kFirstCapacity, max_capacity_));
  std::swap(old, table_);
  for (size_t i = 0; i < old.capacity; ++i) sets_.Release(old.slots[i].holders);
  held_.fill(0);
}

// Of the next `levels` of halving. Slots lie anywhere in memory, and so they come together.
void WorkerPrefixes::FetchMiddles(absl::Span<const uint64_t> keys, size_t low, size_t high, int levels) const {
  if (high - low <= 1) return;
  const size_t middle = low + (high - low) / 2;
  Fetch(keys[middle]);
  if (levels == 1) return;
  FetchMiddles(keys, low, middle, levels - 1);
  FetchMiddles(keys, middle, high, levels - 1);
}

// The workers that hold the unit at `low`, and those of them that still hold the unit at `high`, are known: find where
// the rest of them stop, by halving. The slots of the next `ahead` levels have been fetched.
void WorkerPrefixes::Narrow(absl::Span<const uint64_t> keys, size_t low, size_t high, const Probe& at_low,
                            const Probe& at_high, int ahead, Depths& depths) const {
  // Equal words are equal holders here: what counts at a unit lies between what counts at both ends.
  if (at_low.word == at_high.word) return;
  WorkerSet leave = at_low.holders;
  leave -= at_high.holders;
  if (leave.Empty()) return;
  while (high - low > 1) {
    const size_t middle = low + (high - low) / 2;
    if (ahead == 0) FetchMiddles(keys, low, high, ahead = kLevelsAhead);
    --ahead;
    const HolderSets::Word word = Look(keys[middle]);
    if (word == at_low.word) {
      low = middle;
    } else if (word == at_high.word) {
      high = middle;
    } else {
      Probe at_middle{word, sets_.Of(word)};
      at_middle.holders &= at_low.holders;
      at_middle.holders |= at_high.holders;
      Narrow(keys, low, middle, at_low, at_middle, ahead, depths);
      return Narrow(keys, middle, high, at_middle, at_high, ahead, depths);
    }
  }
  leave.ForEach([&](int slot) { depths[static_cast<size_t>(slot)] = static_cast<uint32_t>(low + 1); });
}

WorkerPrefixes::Depths WorkerPrefixes::Match(absl::Span<const uint64_t> keys, const WorkerSet& eligible) const {
  Depths depths{};
  if (keys.empty() || eligible.Empty()) return depths;
  std::shared_lock lock(mutex_);
  const size_t last = keys.size() - 1;
  Fetch(keys[0]);
  Fetch(keys[last]);
  FetchMiddles(keys, 0, last, kLevelsAhead);
  Probe first{Look(keys[0]), {}};
  first.holders = sets_.Of(first.word);
  first.holders &= eligible;
  if (first.holders.Empty()) return depths;
  Probe whole = first;
  if (last > 0) {
    whole.word = Look(keys[last]);
    if (whole.word != first.word) {
      whole.holders = sets_.Of(whole.word);
      whole.holders &= first.holders;
    }
  }
  whole.holders.ForEach([&](int slot) { depths[static_cast<size_t>(slot)] = static_cast<uint32_t>(keys.size()); });
  if (last > 0) Narrow(keys, 0, last, first, whole, kLevelsAhead, depths);
  return depths;
}

int64_t WorkerPrefixes::held_units(int slot) const {
  std::shared_lock lock(mutex_);
  return held_[static_cast<size_t>(slot)];
}

int64_t WorkerPrefixes::size_units() const {
  std::shared_lock lock(mutex_);
  return static_cast<int64_t>(table_.size);
}

int64_t WorkerPrefixes::size_bytes() const {
  std::shared_lock lock(mutex_);
  return static_cast<int64_t>(table_.capacity) * kSlotBytes + sets_.size_bytes();
}

int64_t WorkerPrefixes::shared_sets() const {
  std::shared_lock lock(mutex_);
  return static_cast<int64_t>(sets_.size());
}

}  // namespace baton::router
