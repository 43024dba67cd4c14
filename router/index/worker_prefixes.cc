#include "router/index/worker_prefixes.h"

#include <algorithm>
#include <bit>
#include <mutex>

namespace baton::router {
namespace {

constexpr size_t kFirstCapacity = 1024;
constexpr int kEvictionSample = 8;
constexpr size_t kAhead = 8;  // keys whose slots are fetched before they are needed

// Keys are hashes already; 0 marks a hole, so the one real 0 is renamed.
uint64_t Stored(uint64_t key) { return key == 0 ? 1 : key; }

size_t CapacityFor(int64_t max_bytes, int64_t slot_bytes) {
  return static_cast<size_t>(std::max<int64_t>(max_bytes / slot_bytes, kFirstCapacity));
}

}  // namespace

WorkerPrefixes::Table::Table(size_t c) : capacity(c), slots(c), used(c) {}

WorkerPrefixes::WorkerPrefixes(int64_t max_bytes)
    : max_capacity_(CapacityFor(max_bytes, kSlotBytes)), table_(std::min(kFirstCapacity, max_capacity_)) {}

size_t WorkerPrefixes::Find(uint64_t key) const {
  size_t at = table_.Home(key);
  while (table_.slots[at].key != 0 && table_.slots[at].key != key) at = table_.After(at);
  return at;
}

uint64_t WorkerPrefixes::Holders(uint64_t raw) const {
  const uint64_t key = Stored(raw);
  const size_t at = Find(key);
  if (table_.slots[at].key != key) return 0;
  table_.used[at].store(now_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  return table_.slots[at].workers;
}

void WorkerPrefixes::Insert(uint64_t key, uint64_t workers, uint32_t used) {
  const size_t at = Find(key);
  Slot& slot = table_.slots[at];
  if (slot.key == 0) {
    slot.key = key;
    ++table_.size;
  }
  slot.workers |= workers;
  table_.used[at].store(used, std::memory_order_relaxed);
}

// Backward-shift deletion: what was pushed past the hole moves back, so that no tombstones pile up.
void WorkerPrefixes::Erase(size_t hole) {
  Table& t = table_;
  for (size_t at = t.After(hole); t.slots[at].key != 0; at = t.After(at)) {
    if (t.Distance(t.Home(t.slots[at].key), at) < t.Distance(hole, at)) continue;
    t.slots[hole] = t.slots[at];
    t.used[hole].store(t.used[at].load(std::memory_order_relaxed), std::memory_order_relaxed);
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
    const uint32_t age = now - table_.used[at].load(std::memory_order_relaxed) + 1;
    if (age > oldest_age) {
      oldest_age = age;
      oldest = at;
    }
  }
  Erase(oldest);
  evictions_.fetch_add(1, std::memory_order_relaxed);
}

// A new table of `capacity` with the workers in `keep` only.
void WorkerPrefixes::Rebuild(size_t capacity, uint64_t keep) {
  Table old(capacity);
  std::swap(old, table_);
  for (size_t i = 0; i < old.capacity; ++i) {
    const uint64_t workers = old.slots[i].workers & keep;
    if (workers != 0) Insert(old.slots[i].key, workers, old.used[i].load(std::memory_order_relaxed));
  }
}

void WorkerPrefixes::Store(int slot, absl::Span<const uint64_t> keys) {
  std::unique_lock lock(mutex_);
  const uint32_t now = now_.fetch_add(1, std::memory_order_relaxed) + 1;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i + kAhead < keys.size()) {
      const size_t next = table_.Home(Stored(keys[i + kAhead]));
      __builtin_prefetch(&table_.slots[next], 1);
      __builtin_prefetch(&table_.used[next], 1);
    }
    if (5 * (table_.size + 1) > 4 * table_.capacity) {
      if (table_.capacity < max_capacity_) {
        Rebuild(std::min(max_capacity_, table_.capacity + table_.capacity / 2), ~uint64_t{0});
      } else {
        EvictNear(keys[i]);
      }
    }
    Insert(Stored(keys[i]), uint64_t{1} << slot, now);
  }
}

void WorkerPrefixes::Remove(int slot, absl::Span<const uint64_t> keys) {
  std::unique_lock lock(mutex_);
  for (const uint64_t raw : keys) {
    const size_t at = Find(Stored(raw));
    if (table_.slots[at].key == 0) continue;
    table_.slots[at].workers &= ~(uint64_t{1} << slot);
    if (table_.slots[at].workers == 0) Erase(at);
  }
}

void WorkerPrefixes::Clear(int slot) {
  std::unique_lock lock(mutex_);
  Rebuild(table_.capacity, ~(uint64_t{1} << slot));
}

// The workers that hold the unit at `low`, and those of them that still hold the unit at `high`, are known: find where
// the rest of them stop, by halving.
void WorkerPrefixes::Narrow(absl::Span<const uint64_t> keys, size_t low, size_t high, uint64_t at_low, uint64_t at_high,
                            Depths& depths) const {
  const uint64_t leave = at_low & ~at_high;
  if (leave == 0) return;
  if (high - low == 1) {
    for (uint64_t rest = leave; rest != 0; rest &= rest - 1) {
      depths[std::countr_zero(rest)] = static_cast<uint32_t>(low + 1);
    }
    return;
  }
  const size_t middle = low + (high - low) / 2;
  const uint64_t at_middle = (Holders(keys[middle]) & at_low) | at_high;
  Narrow(keys, low, middle, at_low, at_middle, depths);
  Narrow(keys, middle, high, at_middle, at_high, depths);
}

WorkerPrefixes::Depths WorkerPrefixes::Match(absl::Span<const uint64_t> keys, uint64_t eligible) const {
  Depths depths{};
  if (keys.empty() || eligible == 0) return depths;
  std::shared_lock lock(mutex_);
  const uint64_t first = Holders(keys[0]) & eligible;
  if (first == 0) return depths;
  const size_t last = keys.size() - 1;
  const uint64_t whole = last == 0 ? first : Holders(keys[last]) & first;
  for (uint64_t rest = whole; rest != 0; rest &= rest - 1) {
    depths[std::countr_zero(rest)] = static_cast<uint32_t>(keys.size());
  }
  if (last > 0) Narrow(keys, 0, last, first, whole, depths);
  return depths;
}

int64_t WorkerPrefixes::size_units() const {
  std::shared_lock lock(mutex_);
  return static_cast<int64_t>(table_.size);
}

int64_t WorkerPrefixes::size_bytes() const {
  std::shared_lock lock(mutex_);
  return static_cast<int64_t>(table_.capacity) * kSlotBytes;
}

}  // namespace baton::router
