// WorkerPrefixes: which worker holds how long a prefix of a prompt. Keys are the low 64 bits of the keyed chain hash of
// each 16-token unit, so a key already stands for its position and everything before it; a collision costs one wrong
// guess, because workers verify hits against token ids.
//
// One open-addressing table, ordered by key: a slot is key and worker bitmap, with a last-use stamp beside it, 20 bytes
// together, 25 to 37.5 per unit. It grows by half at 80 % load, which walks both tables in order. At its hard cap, the
// least recently used of a few neighbours goes. Thread-safe: Match takes a shared lock, changes an exclusive one.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <shared_mutex>
#include <vector>

#include "absl/types/span.h"
#include "router/index/zeroed_pages.h"

namespace baton::router {

class WorkerPrefixes {
 public:
  static constexpr int kMaxWorkers = 64;
  using Depths = std::array<uint32_t, kMaxWorkers>;  ///< units of the prompt's prefix that each worker holds

  explicit WorkerPrefixes(int64_t max_bytes);

  /// Worker `slot` holds these units from now on.
  void Store(int slot, absl::Span<const uint64_t> keys);
  void Remove(int slot, absl::Span<const uint64_t> keys);
  /// Worker `slot` holds nothing (new incarnation, or before a snapshot).
  void Clear(int slot);

  /// `keys`: [units of the prompt], in order. Depths of slots outside `eligible` (bitmap) are 0. About log2(units)
  /// probes.
  Depths Match(absl::Span<const uint64_t> keys, uint64_t eligible) const;

  int64_t size_units() const;
  int64_t size_bytes() const;
  int64_t evictions() const { return evictions_.load(std::memory_order_relaxed); }

 private:
  struct Slot {
    uint64_t key;      // 0 = empty
    uint64_t workers;  // bitmap
  };
  struct Table {
    explicit Table(size_t capacity);
    /// Where a key belongs. Keys are uniform, so the product's high half is; it keeps their order.
    size_t Home(uint64_t key) const {
      return static_cast<size_t>((static_cast<unsigned __int128>(key) * capacity) >> 64);
    }
    size_t After(size_t at) const { return at + 1 == capacity ? 0 : at + 1; }
    /// Steps from `from` forward to `to`.
    size_t Distance(size_t from, size_t to) const { return to >= from ? to - from : to + capacity - from; }
    size_t capacity;
    ZeroedPages<Slot> slots;                  // [capacity]
    ZeroedPages<std::atomic<uint32_t>> used;  // [capacity] stamp
    size_t size = 0;
  };
  static constexpr int64_t kSlotBytes = sizeof(Slot) + sizeof(uint32_t);

  size_t Find(uint64_t key) const;  // slot of the key, or of the hole where it belongs
  uint64_t Holders(uint64_t key) const;
  void Insert(uint64_t key, uint64_t workers, uint32_t used);
  void Erase(size_t hole);
  void EvictNear(uint64_t key);
  void Rebuild(size_t capacity, uint64_t keep);
  void Narrow(absl::Span<const uint64_t> keys, size_t low, size_t high, uint64_t at_low, uint64_t at_high,
              Depths& depths) const;

  const size_t max_capacity_;
  mutable std::shared_mutex mutex_;
  Table table_;
  mutable std::atomic<uint32_t> now_{1};
  std::atomic<int64_t> evictions_{0};
};

}  // namespace baton::router
