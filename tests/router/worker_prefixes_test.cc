#include "router/index/worker_prefixes.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace baton::router {
namespace {

using Keys = std::vector<uint64_t>;

Keys Chain(uint64_t seed, size_t length) {
  std::mt19937_64 random(seed);
  Keys keys(length);
  for (uint64_t& key : keys) key = random();
  return keys;
}

Keys Head(const Keys& keys, size_t n) { return Keys(keys.begin(), keys.begin() + static_cast<ptrdiff_t>(n)); }

TEST(WorkerPrefixes, DepthIsTheLongestPrefixAWorkerHolds) {
  WorkerPrefixes index(1 << 20);
  const Keys chain = Chain(1, 100);
  index.Store(0, Head(chain, 40));
  index.Store(3, chain);
  index.Store(1023, Head(chain, 1));
  const auto depths = index.Match(chain, WorkerSet::All());
  EXPECT_EQ(depths[0], 40u);
  EXPECT_EQ(depths[3], 100u);
  EXPECT_EQ(depths[1023], 1u);
  EXPECT_EQ(depths[1], 0u);
}

TEST(WorkerPrefixes, EveryDepthOfEveryLengthIsFound) {
  const Keys chain = Chain(2, 33);
  for (size_t length = 1; length <= chain.size(); ++length) {
    for (size_t held = 0; held <= length; ++held) {
      WorkerPrefixes index(1 << 16);
      index.Store(5, Head(chain, held));
      EXPECT_EQ(index.Match(Head(chain, length), WorkerSet::All())[5], held) << length;
    }
  }
}

TEST(WorkerPrefixes, OnlyEligibleWorkersAreCounted) {
  WorkerPrefixes index(1 << 20);
  const Keys chain = Chain(3, 10);
  index.Store(0, chain);
  index.Store(1, chain);
  const auto depths = index.Match(chain, WorkerSet{1});
  EXPECT_EQ(depths[0], 0u);
  EXPECT_EQ(depths[1], 10u);
}

TEST(WorkerPrefixes, AWorkerThatLostTheHeadOfAPrefixHoldsNothingOfIt) {
  WorkerPrefixes index(1 << 20);
  const Keys chain = Chain(3, 16);
  index.Store(0, Head(chain, 12));
  index.Store(1, chain);
  index.Remove(1, Head(chain, 3));
  const auto depths = index.Match(chain, WorkerSet::All());
  EXPECT_EQ(depths[0], 12u);
  EXPECT_EQ(depths[1], 0u) << "its later units are of no use without the first";
}

TEST(WorkerPrefixes, RemovedAndClearedUnitsAreGone) {
  WorkerPrefixes index(1 << 20);
  const Keys chain = Chain(4, 20);
  index.Store(0, chain);
  index.Store(1, chain);
  index.Remove(0, Keys(chain.begin() + 12, chain.end()));
  EXPECT_EQ(index.Match(chain, {0})[0], 12u);
  EXPECT_EQ(index.Match(chain, {1})[1], 20u);
  index.Clear(1);
  EXPECT_EQ(index.Match(chain, {1})[1], 0u);
  EXPECT_EQ(index.size_units(), 12);
  index.Clear(0);
  EXPECT_EQ(index.size_units(), 0);
}

TEST(WorkerPrefixes, AnIndexThatIsClearedForAllHoldsNothingAndTakesUnitsAgain) {
  WorkerPrefixes index(1 << 22);
  const Keys chain = Chain(9, 5000);
  for (int slot = 0; slot < 8; ++slot) index.Store(slot, Head(chain, 5000 - 500 * static_cast<size_t>(slot)));
  ASSERT_GT(index.shared_sets(), 0);
  index.ClearAll();
  EXPECT_EQ(index.size_units(), 0);
  EXPECT_EQ(index.shared_sets(), 0);
  for (int slot = 0; slot < 8; ++slot) EXPECT_EQ(index.held_units(slot), 0);
  EXPECT_EQ(index.Match(chain, WorkerSet::All())[0], 0u);
  index.Clear(3);
  index.Store(3, Head(chain, 20));
  EXPECT_EQ(index.Match(chain, WorkerSet::All())[3], 20u);
}

TEST(WorkerPrefixes, MemoryHasAHardCapAndTheOldestGoesFirst) {
  constexpr int64_t kBytes = 20 * 4096;
  WorkerPrefixes index(kBytes);
  const Keys wanted = Chain(5, 200);
  index.Store(0, wanted);
  for (uint64_t i = 0; i < 200; ++i) {
    index.Store(0, Chain(1000 + i, 100));
    index.Match(wanted, {0});  // in use
  }
  EXPECT_LE(index.size_bytes(), kBytes);
  EXPECT_GT(index.evictions(), 10000);
  // The ends of the chain are what a match looks at first, so they are the freshest.
  EXPECT_GT(index.Match(wanted, {0})[0], 0u);
}

TEST(WorkerPrefixes, WhatIsForgottenForWantOfRoomIsHeldByNobody) {
  WorkerPrefixes index(20 * 4096);
  const Keys old = Chain(5, 500);
  for (int slot = 0; slot < 5; ++slot) index.Store(slot, old);
  EXPECT_EQ(index.shared_sets(), 1);
  for (uint64_t i = 0; i < 200; ++i) index.Store(9, Chain(1000 + i, 100));
  for (int slot = 0; slot < 5; ++slot) EXPECT_EQ(index.held_units(slot), 0) << slot;
  EXPECT_EQ(index.held_units(9), index.size_units());
  EXPECT_EQ(index.shared_sets(), 0);
}

TEST(WorkerPrefixes, OfMoreUnitsAtOnceThanThereIsRoomForSomeAreForgottenAndTheRestIsCounted) {
  WorkerPrefixes index(20 * 4096);
  const Keys keys = Chain(5, 20000);
  index.Store(3, keys);
  int64_t there = 0;
  for (const uint64_t key : keys) there += index.Match(Keys{key}, {3})[3];
  EXPECT_GT(there, 1000);
  EXPECT_EQ(index.held_units(3), there);
  EXPECT_EQ(index.size_units(), there);
  EXPECT_EQ(index.evictions(), 20000 - there);
}

TEST(WorkerPrefixes, NothingIsForgottenWhereThereIsRoom) {
  WorkerPrefixes index(1 << 20);
  const Keys keys = Chain(5, 40000);
  index.Store(0, keys);
  EXPECT_EQ(index.evictions(), 0);
  EXPECT_EQ(index.size_units(), 40000);
  EXPECT_EQ(index.Match(keys, {0})[0], 40000u);
}

TEST(WorkerPrefixes, ZeroIsAKeyLikeAnyOther) {
  WorkerPrefixes index(1 << 16);
  index.Store(2, Keys{0, 0xffff});
  EXPECT_EQ(index.Match(Keys{0, 0xffff}, WorkerSet::All())[2], 2u);
  index.Remove(2, Keys{0});
  EXPECT_EQ(index.Match(Keys{0, 0xffff}, WorkerSet::All())[2], 0u);
}

// Against a plain map, on keys that crowd into eight places of the table (one at its very end), so that runs grow and
// shrink through each other and around the end.
TEST(WorkerPrefixes, RandomOperationsEqualAMap) {
  std::mt19937_64 random(11);
  WorkerPrefixes index(1 << 20);
  std::map<uint64_t, std::set<int>> reference;
  std::vector<uint64_t> pool(300);
  for (uint64_t& key : pool) {
    key = (random() & 0xe000000000000000ull) | (random() % 2 ? 0x1ffffffffffff000ull : 0) | (random() % 4096);
  }
  for (int step = 0; step < 20000; ++step) {
    const int slot = static_cast<int>(random() % 8);
    const uint64_t key = pool[random() % pool.size()];
    if (step % 2500 == 2499) {
      index.Clear(slot);
      for (auto it = reference.begin(); it != reference.end();) {
        it->second.erase(slot);
        it = it->second.empty() ? reference.erase(it) : std::next(it);
      }
    } else if (random() % 2) {
      index.Store(slot, Keys{key});
      reference[key].insert(slot);
    } else {
      index.Remove(slot, Keys{key});
      auto found = reference.find(key);
      if (found != reference.end() && found->second.erase(slot) && found->second.empty()) reference.erase(found);
    }
    ASSERT_EQ(index.size_units(), static_cast<int64_t>(reference.size())) << "step " << step;
    const uint64_t probe = pool[random() % pool.size()];
    const auto depths = index.Match(Keys{probe}, WorkerSet::All());
    for (int s = 0; s < 8; ++s) {
      const auto found = reference.find(probe);
      ASSERT_EQ(depths[s], found != reference.end() && found->second.count(s) ? 1u : 0u) << "step " << step;
    }
  }
}

// What a set of sets says, for workers and chains drawn from a seed: many workers, long runs of units that change
// together, and depths of every worker.
struct Oracle {
  std::map<uint64_t, std::set<int>> holders;

  void Store(int slot, const Keys& keys) {
    for (const uint64_t key : keys) holders[key].insert(slot);
  }
  void Remove(int slot, const Keys& keys) {
    for (const uint64_t key : keys) {
      const auto found = holders.find(key);
      if (found != holders.end() && found->second.erase(slot) && found->second.empty()) holders.erase(found);
    }
  }
  void Clear(int slot) {
    for (auto it = holders.begin(); it != holders.end();) {
      it = it->second.erase(slot) && it->second.empty() ? holders.erase(it) : std::next(it);
    }
  }
  uint32_t Depth(int slot, const Keys& chain) const {
    uint32_t depth = 0;
    for (; depth < chain.size(); ++depth) {
      const auto found = holders.find(chain[depth]);
      if (found == holders.end() || !found->second.contains(slot)) break;
    }
    return depth;
  }
};

// Each worker holds heads of chains only, as a cache that drops leaves first does; then halving finds exact depths.
void HeadsAtRandom(WorkerPrefixes& index, Oracle& oracle, uint64_t seed, int workers) {
  std::mt19937_64 random(seed);
  std::vector<Keys> chains;
  for (uint64_t i = 0; i < 6; ++i) chains.push_back(Chain(seed * 100 + i, 1 + random() % 60));
  for (int step = 0; step < 3000; ++step) {
    const int slot = static_cast<int>(random() % static_cast<uint64_t>(workers)) * (kMaxWorkers / workers);
    const Keys& chain = chains[random() % chains.size()];
    const auto at = static_cast<ptrdiff_t>(random() % (chain.size() + 1));
    const uint64_t kind = random() % 16;
    if (kind == 0) {
      index.Clear(slot);
      oracle.Clear(slot);
    } else if (kind < 5) {
      const Keys tail(chain.begin() + at, chain.end());
      index.Remove(slot, tail);
      oracle.Remove(slot, tail);
    } else {
      index.Store(slot, Head(chain, static_cast<size_t>(at)));
      oracle.Store(slot, Head(chain, static_cast<size_t>(at)));
    }
    ASSERT_EQ(index.size_units(), static_cast<int64_t>(oracle.holders.size())) << "step " << step;
    if (step % 8 != 7) continue;
    const auto depths = index.Match(chain, WorkerSet::All());
    for (int s = 0; s < kMaxWorkers; ++s) {
      ASSERT_EQ(depths[static_cast<size_t>(s)], oracle.Depth(s, chain)) << "step " << step << " worker " << s;
    }
  }
}

TEST(WorkerPrefixes, EveryDepthOfManyWorkersEqualsASetOfSets) {
  for (const int workers : {4, 64, 1024}) {
    WorkerPrefixes index(8 << 20);
    Oracle oracle;
    HeadsAtRandom(index, oracle, static_cast<uint64_t>(workers), workers);
    EXPECT_GT(index.shared_sets(), workers > 4 ? 10 : 0) << workers;
    for (int slot = 0; slot < kMaxWorkers; ++slot) index.Clear(slot);
    EXPECT_EQ(index.size_units(), 0);
    EXPECT_EQ(index.shared_sets(), 0) << "a set that no unit has is free";
  }
}

/// Who holds each unit of a chain.
using HoldersByUnit = std::vector<WorkerSet>;

// As the index reads a chain: at both ends, and between them by halving, whatever holes are in it.
void ReadByHalving(const HoldersByUnit& chain, size_t low, size_t high, const WorkerSet& at_low,
                   const WorkerSet& at_high, WorkerPrefixes::Depths& depths) {
  WorkerSet leave = at_low;
  leave -= at_high;
  if (leave.Empty()) return;
  if (high - low == 1) {
    leave.ForEach([&](int slot) { depths[static_cast<size_t>(slot)] = static_cast<uint32_t>(low + 1); });
    return;
  }
  const size_t middle = low + (high - low) / 2;
  WorkerSet at_middle = chain[middle];
  at_middle &= at_low;
  at_middle |= at_high;
  ReadByHalving(chain, low, middle, at_low, at_middle, depths);
  ReadByHalving(chain, middle, high, at_middle, at_high, depths);
}

TEST(WorkerPrefixes, ChainsWithHolesAreReadByHalving) {
  std::mt19937_64 random(6);
  for (int round = 0; round < 300; ++round) {
    WorkerPrefixes index(1 << 20);
    std::vector<uint64_t> keys(2 + random() % 60);
    for (uint64_t& key : keys) key = random();
    HoldersByUnit chain(keys.size());
    const int workers = 1 + static_cast<int>(random() % 12);
    for (int worker = 0; worker < workers; ++worker) {
      const int slot = 80 * worker;
      for (size_t i = 0; i < keys.size(); ++i) {
        if (random() % 8 == 0) continue;
        index.Store(slot, {&keys[i], 1});
        chain[i].Add(slot);
      }
    }
    WorkerSet eligible = WorkerSet::All();
    if (random() % 2 == 0) eligible.Remove(0);
    WorkerSet first = chain.front();
    first &= eligible;
    WorkerSet whole = chain.back();
    whole &= first;
    WorkerPrefixes::Depths expected{};
    whole.ForEach([&](int slot) { expected[static_cast<size_t>(slot)] = static_cast<uint32_t>(keys.size()); });
    if (!first.Empty()) ReadByHalving(chain, 0, keys.size() - 1, first, whole, expected);
    EXPECT_EQ(index.Match(keys, eligible), expected) << "round " << round;
  }
}

TEST(HolderSets, WithoutRoomForASetLessIsKnownAndNothingFalse) {
  std::mt19937_64 random(7);
  HolderSets sets(4096);
  std::vector<HolderSets::Word> words(100, 0);
  std::vector<std::set<int>> truth(words.size());
  for (int step = 0; step < 50000; ++step) {
    const size_t unit = random() % words.size();
    const int slot = static_cast<int>(random() % 40) * 26;
    if (random() % 3 != 0) {
      words[unit] = sets.With(words[unit], slot);
      truth[unit].insert(slot);
    } else {
      words[unit] = sets.Without(words[unit], slot);
      truth[unit].erase(slot);
    }
    sets.Of(words[unit]).ForEach([&](int s) { ASSERT_TRUE(truth[unit].contains(s)) << "step " << step; });
  }
  EXPECT_GT(sets.shortened(), 1000);
  EXPECT_GT(sets.size(), 10u);
  EXPECT_LE(sets.size_bytes(), 4096);
  for (const HolderSets::Word word : words) sets.Release(word);
  EXPECT_EQ(sets.size(), 0u);
}

// The last change is remembered for the units that follow; what it led to may be gone by then.
TEST(HolderSets, ASetThatIsGoneIsNotRemembered) {
  HolderSets sets(1 << 16);
  const auto of = [&](std::initializer_list<int> slots) {
    HolderSets::Word word = 0;
    for (const int slot : slots) word = sets.With(word, slot);
    return word;
  };
  sets.Release(of({0, 1, 2, 3}));
  const HolderSets::Word again = of({0, 1, 2, 3});
  const HolderSets::Word other = of({5, 6, 7, 8});
  EXPECT_EQ(sets.Of(again), (WorkerSet{0, 1, 2, 3}));
  EXPECT_EQ(sets.Of(other), (WorkerSet{5, 6, 7, 8}));
}

HolderSets::Word Holding(HolderSets& sets, std::initializer_list<int> slots) {
  HolderSets::Word word = 0;
  for (const int slot : slots) word = sets.With(word, slot);
  return word;
}

TEST(HolderSets, HoldersAreOneSetInWhateverOrderTheyCame) {
  HolderSets sets(1 << 16);
  const HolderSets::Word up = Holding(sets, {0, 1, 2, 3, 4, 5}), down = Holding(sets, {5, 4, 3, 2, 1, 0});
  EXPECT_EQ(up, down);
  EXPECT_EQ(sets.size(), 1u);
  const HolderSets::Word less = sets.Without(up, 5);
  EXPECT_EQ(less, Holding(sets, {1, 0, 4, 3, 2}));
  EXPECT_EQ(sets.size(), 2u);
}

// There is room for two sets.
TEST(HolderSets, WithoutRoomWhoComesIsNotKnownAndOfWhoStaysThreeAre) {
  HolderSets sets(400);
  const HolderSets::Word five = Holding(sets, {0, 1, 2, 4, 5}), same = Holding(sets, {0, 1, 2, 4, 5});
  const HolderSets::Word others = Holding(sets, {6, 7, 8, 9});
  ASSERT_EQ(sets.size(), 2u);
  ASSERT_EQ(sets.shortened(), 0);
  EXPECT_EQ(sets.With(five, 6), five);
  EXPECT_EQ(sets.Of(five), (WorkerSet{0, 1, 2, 4, 5}));
  EXPECT_EQ(sets.shortened(), 1);
  const HolderSets::Word left = sets.Without(five, 5);
  EXPECT_EQ(sets.Of(left), (WorkerSet{0, 1, 2})) << "four stay";
  EXPECT_EQ(sets.shortened(), 2);
  EXPECT_EQ(sets.Of(same), (WorkerSet{0, 1, 2, 4, 5}));
  EXPECT_EQ(sets.Of(sets.With(same, 6)), (WorkerSet{0, 1, 2, 4, 5, 6})) << "in the place of its own set";
  for (const HolderSets::Word word : {left, others}) sets.Release(word);
  EXPECT_EQ(sets.size(), 1u);
}

// There is room for two sets, so that the next one takes the place of that which the last change came from.
TEST(HolderSets, WhatTheLastChangeCameFromIsForgottenWithItsSet) {
  HolderSets sets(400);
  const HolderSets::Word one = Holding(sets, {0, 1, 2, 4}), same = Holding(sets, {0, 1, 2, 4});
  const HolderSets::Word with_five = sets.With(one, 5);
  const HolderSets::Word with_six = sets.With(same, 6);
  ASSERT_EQ(sets.Of(with_six), (WorkerSet{0, 1, 2, 4, 6}));
  EXPECT_EQ(sets.Of(sets.With(with_six, 5)), (WorkerSet{0, 1, 2, 4, 5, 6}));
  EXPECT_EQ(sets.Of(with_five), (WorkerSet{0, 1, 2, 4, 5}));
}

// Every unit has the same 1,000 holders: one set.
TEST(WorkerPrefixes, UnitsWithTheSameHoldersShareOneSet) {
  WorkerPrefixes index(1 << 20);
  const Keys chain = Chain(8, 100);
  for (int slot = 0; slot < 1000; ++slot) index.Store(slot, chain);
  EXPECT_EQ(index.shared_sets(), 1);
  index.Remove(500, Keys(chain.begin() + 50, chain.end()));
  EXPECT_EQ(index.shared_sets(), 2);
  const auto depths = index.Match(chain, WorkerSet::All());
  EXPECT_EQ(depths[999], 100u);
  EXPECT_EQ(depths[500], 50u);
  EXPECT_EQ(depths[1000], 0u);
}

}  // namespace
}  // namespace baton::router
