// HolderSets: the workers that hold one unit, in a word of 32 bits. Up to three workers stand in the word itself; of
// more, the word has the number of a set, and units with the same holders share one set, which counts them. Not
// thread-safe; const methods may be called by several threads at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "router/index/worker_set.h"

namespace baton::router {

class HolderSets {
 public:
  /// 0: nobody. A word counts in its set until Toggle or Release takes it.
  using Word = uint32_t;

  explicit HolderSets(int64_t max_bytes);

  bool Has(Word holders, int slot) const {
    if (Shared(holders)) return sets_[holders - 1].workers.Has(slot);
    for (int i = 0; i < InlineCount(holders); ++i) {
      if (InlineSlot(holders, i) == slot) return true;
    }
    return false;
  }
  WorkerSet Of(Word holders) const;

  /// Worker `slot` holds the unit besides; takes the word and gives another. With no room for another set the word
  /// stays as it is: an index may know too little, and never too much.
  Word With(Word holders, int slot) { return Has(holders, slot) ? holders : Toggle(holders, slot); }
  /// Worker `slot` holds the unit no more. With no room for another set three of the others are left.
  Word Without(Word holders, int slot) { return Has(holders, slot) ? Toggle(holders, slot) : holders; }
  /// The unit is forgotten.
  void Release(Word holders);

  int64_t size_bytes() const;
  /// Sets that units have now.
  size_t size() const { return live_; }
  /// Words that could not say all for want of a set.
  int64_t shortened() const { return shortened_; }

 private:
  struct Set {
    WorkerSet workers;
    uint64_t hash = 0;
    uint32_t uses = 0;  // words with its number
    uint32_t next = 0;  // in its bucket, or among the free ones; number + 1, 0 = none
  };
  static constexpr int kInline = 3;
  static constexpr uint32_t kSlotBits = 10, kCountShift = 30;
  static_assert(kMaxWorkers <= 1 << kSlotBits);

  static int InlineCount(Word holders) { return static_cast<int>(holders >> kCountShift); }
  static bool Shared(Word holders) { return holders != 0 && InlineCount(holders) == 0; }
  static int InlineSlot(Word holders, int i) {
    return static_cast<int>((holders >> (kSlotBits * static_cast<uint32_t>(i))) & (kMaxWorkers - 1));
  }
  static Word Pack(const WorkerSet& workers);  // the first three
  static Word ToggleInline(Word holders, int slot);

  Word Toggle(Word holders, int slot);
  Word Intern(const WorkerSet& workers, uint64_t hash);  // 0: no room
  uint64_t HashOf(Word holders) const;
  void Rehash(size_t buckets);

  const size_t max_sets_;
  std::vector<Set> sets_;          // [number]
  std::vector<uint32_t> buckets_;  // [power of two] number + 1 of the first set; 0 = none
  uint32_t free_ = 0;              // number + 1 of the first free set
  size_t live_ = 0;
  int64_t shortened_ = 0;
  // The last change that ended in a set: the units of a chain change alike, one after the other.
  struct Change {
    Word from = 0;
    int slot = 0;
    Word to = 0;
  } last_;
};

}  // namespace baton::router
