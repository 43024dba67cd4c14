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
  index.Store(63, Head(chain, 1));
  const auto depths = index.Match(chain, ~uint64_t{0});
  EXPECT_EQ(depths[0], 40u);
  EXPECT_EQ(depths[3], 100u);
  EXPECT_EQ(depths[63], 1u);
  EXPECT_EQ(depths[1], 0u);
}

TEST(WorkerPrefixes, EveryDepthOfEveryLengthIsFound) {
  const Keys chain = Chain(2, 33);
  for (size_t length = 1; length <= chain.size(); ++length) {
    for (size_t held = 0; held <= length; ++held) {
      WorkerPrefixes index(1 << 16);
      index.Store(5, Head(chain, held));
      EXPECT_EQ(index.Match(Head(chain, length), ~uint64_t{0})[5], held) << length;
    }
  }
}

TEST(WorkerPrefixes, OnlyEligibleWorkersAreCounted) {
  WorkerPrefixes index(1 << 20);
  const Keys chain = Chain(3, 10);
  index.Store(0, chain);
  index.Store(1, chain);
  const auto depths = index.Match(chain, uint64_t{1} << 1);
  EXPECT_EQ(depths[0], 0u);
  EXPECT_EQ(depths[1], 10u);
}

TEST(WorkerPrefixes, AWorkerThatLostTheHeadOfAPrefixHoldsNothingOfIt) {
  WorkerPrefixes index(1 << 20);
  const Keys chain = Chain(3, 16);
  index.Store(0, Head(chain, 12));
  index.Store(1, chain);
  index.Remove(1, Head(chain, 3));
  const auto depths = index.Match(chain, ~uint64_t{0});
  EXPECT_EQ(depths[0], 12u);
  EXPECT_EQ(depths[1], 0u) << "its later units are of no use without the first";
}

TEST(WorkerPrefixes, RemovedAndClearedUnitsAreGone) {
  WorkerPrefixes index(1 << 20);
  const Keys chain = Chain(4, 20);
  index.Store(0, chain);
  index.Store(1, chain);
  index.Remove(0, Keys(chain.begin() + 12, chain.end()));
  EXPECT_EQ(index.Match(chain, 1)[0], 12u);
  EXPECT_EQ(index.Match(chain, 2)[1], 20u);
  index.Clear(1);
  EXPECT_EQ(index.Match(chain, 2)[1], 0u);
  EXPECT_EQ(index.size_units(), 12);
  index.Clear(0);
  EXPECT_EQ(index.size_units(), 0);
}

TEST(WorkerPrefixes, MemoryHasAHardCapAndTheOldestGoesFirst) {
  constexpr int64_t kBytes = 20 * 4096;
  WorkerPrefixes index(kBytes);
  const Keys wanted = Chain(5, 200);
  index.Store(0, wanted);
  for (uint64_t i = 0; i < 200; ++i) {
    index.Store(0, Chain(1000 + i, 100));
    index.Match(wanted, 1);  // in use
  }
  EXPECT_LE(index.size_bytes(), kBytes);
  EXPECT_GT(index.evictions(), 10000);
  // The ends of the chain are what a match looks at first, so they are the freshest.
  EXPECT_GT(index.Match(wanted, 1)[0], 0u);
}

TEST(WorkerPrefixes, ZeroIsAKeyLikeAnyOther) {
  WorkerPrefixes index(1 << 16);
  index.Store(2, Keys{0, 0xffff});
  EXPECT_EQ(index.Match(Keys{0, 0xffff}, ~uint64_t{0})[2], 2u);
  index.Remove(2, Keys{0});
  EXPECT_EQ(index.Match(Keys{0, 0xffff}, ~uint64_t{0})[2], 0u);
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
    const auto depths = index.Match(Keys{probe}, ~uint64_t{0});
    for (int s = 0; s < 8; ++s) {
      const auto found = reference.find(probe);
      ASSERT_EQ(depths[s], found != reference.end() && found->second.count(s) ? 1u : 0u) << "step " << step;
    }
  }
}

}  // namespace
}  // namespace baton::router
