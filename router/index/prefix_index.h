// PrefixIndex: which worker holds how long a prefix of a prompt. Keys are the low 64 bits of the keyed chain hash of
// each 16-token unit, so a key already stands for its position and everything before it; a collision costs one wrong
// guess, because workers verify hits against token ids.
//
// One open-addressing table: key, worker bitmap and last-use stamp, 20 bytes a slot. Memory has a hard cap; when the
// table is full, the least recently used of a few neighbours goes. Thread-safe: Match takes a shared lock, changes an
// exclusive one.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <vector>

#include "absl/types/span.h"

namespace baton::router {

class PrefixIndex {
 public:
  static constexpr int kMaxWorkers = 64;
  using Depths = std::array<uint32_t, kMaxWorkers>;  ///< units of the prompt's prefix that each worker holds

  explicit PrefixIndex(int64_t max_bytes);

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
  struct Table {
    explicit Table(size_t capacity);
    size_t mask;
    std::unique_ptr<uint64_t[]> keys;               // [capacity], 0 = empty
    std::unique_ptr<uint64_t[]> workers;            // [capacity] bitmap
    std::unique_ptr<std::atomic<uint32_t>[]> used;  // [capacity] stamp
    size_t size = 0;
  };
  static constexpr int64_t kSlotBytes = 8 + 8 + 4;

  size_t Find(uint64_t key) const;  // slot of the key, or of the hole where it belongs
  uint64_t Holders(uint64_t key) const;
  void Insert(uint64_t key, uint64_t workers, uint32_t used);
  void Erase(size_t at);
  void EvictNear(uint64_t key);
  void Grow();
  void Narrow(absl::Span<const uint64_t> keys, size_t low, size_t high, uint64_t at_low, uint64_t at_high,
              Depths& depths) const;

  const size_t max_capacity_;
  mutable std::shared_mutex mutex_;
  Table table_;
  mutable std::atomic<uint32_t> now_{1};
  std::atomic<int64_t> evictions_{0};
};

}  // namespace baton::router
