#include "router/index/holder_sets.h"

#include <algorithm>

namespace baton::router {
namespace {

constexpr size_t kFirstBuckets = 64;

// A set's hash is the xor of its workers', so that a change of one worker changes it in one step.
uint64_t HashOfSlot(int slot) {
  uint64_t x = (static_cast<uint64_t>(slot) + 1) * 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

}  // namespace

HolderSets::HolderSets(int64_t max_bytes)
    : max_sets_(static_cast<size_t>(
          std::max<int64_t>(max_bytes / static_cast<int64_t>(sizeof(Set) + 2 * sizeof(uint32_t)), 1))),
      buckets_(std::min(kFirstBuckets, std::bit_ceil(max_sets_))) {}

WorkerSet HolderSets::Of(Word holders) const {
  if (Shared(holders)) return sets_[holders - 1].workers;
  WorkerSet workers;
  for (int i = 0; i < InlineCount(holders); ++i) workers.Add(InlineSlot(holders, i));
  return workers;
}

uint64_t HolderSets::HashOf(Word holders) const {
  if (Shared(holders)) return sets_[holders - 1].hash;
  uint64_t hash = 0;
  for (int i = 0; i < InlineCount(holders); ++i) hash ^= HashOfSlot(InlineSlot(holders, i));
  return hash;
}

HolderSets::Word HolderSets::Pack(const WorkerSet& workers) {
  Word word = 0;
  uint32_t count = 0;
  workers.ForEach([&](int slot) {
    if (count < kInline) word |= static_cast<uint32_t>(slot) << (kSlotBits * count++);
  });
  return word | count << kCountShift;
}

// `holders` has up to three and stays so. Slots stand in order, so that equal holders are equal words.
HolderSets::Word HolderSets::ToggleInline(Word holders, int slot) {
  constexpr Word kSlot = (1u << kSlotBits) - 1;
  const auto count = static_cast<uint32_t>(InlineCount(holders));
  const auto wanted = static_cast<Word>(slot);
  Word slots = holders & ((1u << kCountShift) - 1);
  uint32_t below = 0;  // bits of the slots before it
  while (below < count * kSlotBits && ((slots >> below) & kSlot) < wanted) below += kSlotBits;
  const Word before = slots & ((1u << below) - 1), after = slots >> below;
  if (below < count * kSlotBits && (after & kSlot) == wanted) {
    return before | after >> kSlotBits << below | (count - 1) << kCountShift;
  }
  return before | wanted << below | after << kSlotBits << below | (count + 1) << kCountShift;
}

HolderSets::Word HolderSets::Toggle(Word holders, int slot) {
  if (!Shared(holders) && (InlineCount(holders) < kInline || Has(holders, slot))) return ToggleInline(holders, slot);
  if (Shared(last_.to) && last_.from == holders && last_.slot == slot) {
    const Word to = last_.to;
    ++sets_[to - 1].uses;
    Release(holders);
    return to;
  }
  const bool joins = !Has(holders, slot);
  WorkerSet workers = Of(holders);
  joins ? workers.Add(slot) : workers.Remove(slot);
  const uint64_t hash = HashOf(holders) ^ HashOfSlot(slot);
  if (workers.Count() <= kInline) {
    Release(holders);
    return Pack(workers);
  }
  Word to = Intern(workers, hash);
  if (to == 0 && Shared(holders) && sets_[holders - 1].uses == 1) {
    Release(holders);  // its own set's place is free then
    return Intern(workers, hash);
  }
  if (to == 0) {
    ++shortened_;
    if (joins) return holders;
    to = Pack(workers);
  }
  last_ = {holders, slot, to};
  Release(holders);
  return to;
}

HolderSets::Word HolderSets::Intern(const WorkerSet& workers, uint64_t hash) {
  for (uint32_t at = buckets_[hash & (buckets_.size() - 1)]; at != 0; at = sets_[at - 1].next) {
    Set& set = sets_[at - 1];
    if (set.hash != hash || !(set.workers == workers)) continue;
    ++set.uses;
    return at;
  }
  uint32_t at = free_;
  if (at != 0) {
    free_ = sets_[at - 1].next;
  } else {
    if (sets_.size() == max_sets_) return 0;
    if (sets_.size() == sets_.capacity()) sets_.reserve(std::min(max_sets_, sets_.size() + sets_.size() / 2 + 16));
    sets_.emplace_back();
    at = static_cast<uint32_t>(sets_.size());
  }
  if (++live_ > buckets_.size()) Rehash(2 * buckets_.size());
  uint32_t& bucket = buckets_[hash & (buckets_.size() - 1)];
  sets_[at - 1] = {workers, hash, 1, bucket};
  bucket = at;
  return at;
}

void HolderSets::Rehash(size_t buckets) {
  const std::vector<uint32_t> old(std::move(buckets_));
  buckets_.assign(buckets, 0);
  for (uint32_t at : old) {
    while (at != 0) {
      Set& set = sets_[at - 1];
      const uint32_t next = set.next;
      uint32_t& bucket = buckets_[set.hash & (buckets - 1)];
      set.next = bucket;
      bucket = at;
      at = next;
    }
  }
}

void HolderSets::Release(Word holders) {
  if (!Shared(holders)) return;
  Set& set = sets_[holders - 1];
  if (--set.uses > 0) return;
  uint32_t* at = &buckets_[set.hash & (buckets_.size() - 1)];
  while (*at != holders) at = &sets_[*at - 1].next;
  *at = set.next;
  set.next = free_;
  free_ = holders;
  --live_;
  if (last_.from == holders || last_.to == holders) last_ = {};
}

int64_t HolderSets::size_bytes() const {
  return static_cast<int64_t>(sets_.capacity() * sizeof(Set) + buckets_.size() * sizeof(uint32_t));
}

}  // namespace baton::router
