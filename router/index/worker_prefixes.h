// WorkerPrefixes: which worker holds how long a prefix of a prompt. Keys are the low 64 bits of the keyed chain hash of
// each 16-token unit, so a key already stands for its position and everything before it; a collision costs one wrong
// guess, because workers verify hits against token ids.
//
// One open-addressing table, ordered by key: a slot is key, holders (holder_sets.h) and a last-use stamp, 16 bytes, 20
// to 30 per unit. It grows by half at 80 % load, which walks both tables in order. At its hard cap, seven eighths of
// the memory, the least recently used of a few neighbours goes; sets of more than three holders have the last eighth.
// Thread-safe: Match takes a shared lock, changes an exclusive one.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <shared_mutex>
#include <vector>

#include "absl/types/span.h"
#include "router/index/holder_sets.h"
#include "router/index/worker_set.h"
#include "router/index/zeroed_pages.h"

namespace baton::router {

class WorkerPrefixes {
 public:
  using Depths = std::array<uint32_t, kMaxWorkers>;  ///< units of the prompt's prefix that each worker holds

  explicit WorkerPrefixes(int64_t max_bytes);

  /// Worker `slot` holds these units from now on.
  void Store(int slot, absl::Span<const uint64_t> keys);
  void Remove(int slot, absl::Span<const uint64_t> keys);
  /// Worker `slot` holds nothing (new incarnation, or before a snapshot).
  void Clear(int slot);
  /// Nobody holds anything: one walk, where Clear of each worker is one walk each.
  void ClearAll();

  /// `keys`: [units of the prompt], in order. Depths of slots outside `eligible` are 0. About log2(units) probes for
  /// each depth at which workers stop, at most one a unit.
  Depths Match(absl::Span<const uint64_t> keys, const WorkerSet& eligible) const;

  /// Units that the worker holds; or more, when some have been evicted here.
  int64_t held_units(int slot) const;
  int64_t size_units() const;
  int64_t size_bytes() const;
  /// Sets of more than three holders that units share.
  int64_t shared_sets() const;
  int64_t evictions() const { return evictions_.load(std::memory_order_relaxed); }

 private:
  struct Slot {
    uint64_t key;  // 0 = empty
    HolderSets::Word holders;
    uint32_t used;  // stamp; atomic_ref under the shared lock
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
    ZeroedPages<Slot> slots;  // [capacity]
    size_t size = 0;
  };
  static constexpr int64_t kSlotBytes = sizeof(Slot);

  /// A unit that was looked at: the word of its holders, and those of them that count.
  struct Probe {
    HolderSets::Word word = 0;
    WorkerSet holders;
  };

  size_t Find(uint64_t key) const;  // slot of the key, or of the hole where it belongs
  HolderSets::Word Look(uint64_t key) const;
  /// The line of its home, and the next one where it may have been pushed there.
  void Fetch(uint64_t key) const {
    const size_t home = table_.Home(key);
    __builtin_prefetch(&table_.slots[home]);
    __builtin_prefetch(&table_.slots[home] + 2);
  }
  void FetchMiddles(absl::Span<const uint64_t> keys, size_t low, size_t high, int levels) const;
  void Place(const Slot& slot);
  void TakeOut(int slot, size_t at);
  void Erase(size_t hole);
  void EvictNear(uint64_t key);
  void Grow(size_t capacity);
  void Narrow(absl::Span<const uint64_t> keys, size_t low, size_t high, const Probe& at_low, const Probe& at_high,
              int ahead, Depths& depths) const;

  const size_t max_capacity_;
  mutable std::shared_mutex mutex_;
  Table table_;
  HolderSets sets_;
  std::array<int64_t, kMaxWorkers> held_{};  // [slot] units it holds, or more; 0 is exact
  mutable std::atomic<uint32_t> now_{1};
  std::atomic<int64_t> evictions_{0};
};

}  // namespace baton::router
