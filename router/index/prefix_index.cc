#include "router/index/prefix_index.h"

#include <algorithm>
#include <bit>
#include <mutex>

namespace baton::router {
namespace {

constexpr size_t kFirstCapacity = 1024;
constexpr int kEvictionSample = 8;

// Keys are hashes already; 0 marks a hole, so the one real 0 is renamed.
uint64_t Stored(uint64_t key) { return key == 0 ? 1 : key; }

size_t CapacityFor(int64_t max_bytes, int64_t slot_bytes) {
  const auto slots = static_cast<uint64_t>(std::max<int64_t>(max_bytes / slot_bytes, kFirstCapacity));
  return std::bit_floor(slots);
}

}  // namespace

PrefixIndex::Table::Table(size_t capacity)
    : mask(capacity - 1),
      keys(new uint64_t[capacity]()),
      workers(new uint64_t[capacity]()),
      used(new std::atomic<uint32_t>[capacity]()) {}

PrefixIndex::PrefixIndex(int64_t max_bytes)
    : max_capacity_(CapacityFor(max_bytes, kSlotBytes)), table_(std::min(kFirstCapacity, max_capacity_)) {}

size_t PrefixIndex::Find(uint64_t key) const {
  size_t at = key & table_.mask;
  while (table_.keys[at] != 0 && table_.keys[at] != key) at = (at + 1) & table_.mask;
  return at;
}

uint64_t PrefixIndex::Holders(uint64_t raw) const {
  const uint64_t key = Stored(raw);
  const size_t at = Find(key);
  if (table_.keys[at] != key) return 0;
  table_.used[at].store(now_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  return table_.workers[at];
}

void PrefixIndex::Insert(uint64_t key, uint64_t workers, uint32_t used) {
  const size_t at = Find(key);
  if (table_.keys[at] == 0) {
    table_.keys[at] = key;
    ++table_.size;
  }
  table_.workers[at] |= workers;
  table_.used[at].store(used, std::memory_order_relaxed);
}

// Backward-shift deletion: what was pushed past the hole moves back, so that no tombstones pile up.
void PrefixIndex::Erase(size_t hole) {
  const size_t mask = table_.mask;
  size_t at = hole;
  while (true) {
    at = (at + 1) & mask;
    if (table_.keys[at] == 0) break;
    const size_t home = table_.keys[at] & mask;
    if (((at - home) & mask) < ((at - hole) & mask)) continue;
    table_.keys[hole] = table_.keys[at];
    table_.workers[hole] = table_.workers[at];
    table_.used[hole].store(table_.used[at].load(std::memory_order_relaxed), std::memory_order_relaxed);
    hole = at;
  }
  table_.keys[hole] = 0;
  table_.workers[hole] = 0;
  --table_.size;
}

void PrefixIndex::EvictNear(uint64_t key) {
  const uint32_t now = now_.load(std::memory_order_relaxed);
  size_t at = (key * 0x9E3779B97F4A7C15ull) & table_.mask;
  size_t oldest = at;
  uint32_t oldest_age = 0;
  for (int seen = 0; seen < kEvictionSample; at = (at + 1) & table_.mask) {
    if (table_.keys[at] == 0) continue;
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

void PrefixIndex::Grow() {
  Table old(2 * (table_.mask + 1));
  std::swap(old, table_);
  for (size_t i = 0; i <= old.mask; ++i) {
    if (old.keys[i] != 0) Insert(old.keys[i], old.workers[i], old.used[i].load(std::memory_order_relaxed));
  }
}

void PrefixIndex::Store(int slot, absl::Span<const uint64_t> keys) {
  std::unique_lock lock(mutex_);
  const uint32_t now = now_.fetch_add(1, std::memory_order_relaxed) + 1;
  for (const uint64_t key : keys) {
    if (4 * (table_.size + 1) > 3 * (table_.mask + 1)) {
      if (table_.mask + 1 < max_capacity_) {
        Grow();
      } else {
        EvictNear(key);
      }
    }
    Insert(Stored(key), uint64_t{1} << slot, now);
  }
}

void PrefixIndex::Remove(int slot, absl::Span<const uint64_t> keys) {
  std::unique_lock lock(mutex_);
  for (const uint64_t raw : keys) {
    const size_t at = Find(Stored(raw));
    if (table_.keys[at] == 0) continue;
    table_.workers[at] &= ~(uint64_t{1} << slot);
    if (table_.workers[at] == 0) Erase(at);
  }
}

void PrefixIndex::Clear(int slot) {
  std::unique_lock lock(mutex_);
  const uint64_t keep = ~(uint64_t{1} << slot);
  Table old(table_.mask + 1);
  std::swap(old, table_);
  for (size_t i = 0; i <= old.mask; ++i) {
    const uint64_t workers = old.workers[i] & keep;
    if (workers != 0) Insert(old.keys[i], workers, old.used[i].load(std::memory_order_relaxed));
  }
}

// Who holds the unit at `low` and who still holds the one at `high` is known: find where the others stop, by halving.
void PrefixIndex::Narrow(absl::Span<const uint64_t> keys, size_t low, size_t high, uint64_t at_low, uint64_t at_high,
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

PrefixIndex::Depths PrefixIndex::Match(absl::Span<const uint64_t> keys, uint64_t eligible) const {
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

int64_t PrefixIndex::size_units() const {
  std::shared_lock lock(mutex_);
  return static_cast<int64_t>(table_.size);
}

int64_t PrefixIndex::size_bytes() const {
  std::shared_lock lock(mutex_);
  return static_cast<int64_t>(table_.mask + 1) * kSlotBytes;
}

}  // namespace baton::router
