#include "engine/cache/block_pool.h"

#include <gtest/gtest.h>

#include <random>

namespace baton::engine {
namespace {

struct Evictions : EvictionListener {
  std::vector<BlockId> blocks;
  void OnEvicted(int32_t, BlockId block) override { blocks.push_back(block); }
};

TEST(BlockPool, DroppedTableReturnsItsBlocks) {
  BlockPool pool(0, 8, 16, MakeLruPolicy(8), nullptr);
  {
    BlockTable table(pool);
    EXPECT_TRUE(pool.Append(table, 5));
    EXPECT_EQ(pool.used_blocks(), 5);
    BlockTable moved = std::move(table);
    EXPECT_EQ(pool.used_blocks(), 5);
  }
  EXPECT_EQ(pool.used_blocks(), 0);
  EXPECT_EQ(pool.total_owners(), 0);
}

TEST(BlockPool, AppendIsAllOrNothing) {
  BlockPool pool(0, 4, 16, MakeLruPolicy(4), nullptr);
  BlockTable a(pool), b(pool);
  ASSERT_TRUE(pool.Append(a, 3));
  EXPECT_FALSE(pool.Append(b, 2));
  EXPECT_EQ(b.size(), 0);
  EXPECT_TRUE(pool.Append(b, 1));
}

TEST(BlockPool, PinIsAnOwnerSoThePinnedBlockOutlivesItsSequence) {
  BlockPool pool(0, 4, 16, MakeLruPolicy(4), nullptr);
  BlockTable sequence(pool);
  ASSERT_TRUE(pool.Append(sequence, 2));
  BlockTable pin = sequence.Share();
  EXPECT_EQ(pool.total_owners(), 4);
  sequence.Clear();
  EXPECT_EQ(pool.used_blocks(), 2);
  EXPECT_EQ(pool.total_owners(), 2);
  pin.Clear();
  pool.CheckInvariants();
}

TEST(BlockPool, ATableThatOnlyReadsStillOnlyReadsWhenItHasMoved) {
  BlockPool pool(0, 4, 16, MakeLruPolicy(4), nullptr);
  BlockTable writes(pool), reads(pool);
  ASSERT_TRUE(pool.Append(writes, 1));
  const BlockId block = writes.blocks()[0];
  reads = writes.ShareToRead();
  EXPECT_EQ(pool.writers(block), 1);
  BlockTable moved(std::move(reads));
  BlockTable shared = moved.Share();
  EXPECT_EQ(pool.owners(block), 3);
  EXPECT_EQ(pool.writers(block), 1);
  moved.Clear();
  shared.Clear();
  EXPECT_EQ(pool.owners(block), 1);
  EXPECT_EQ(pool.writers(block), 1);
}

TEST(BlockPool, ATableThatHadNoPoolGivesTheBlocksBackThatItWasGiven) {
  BlockPool pool(0, 4, 16, MakeLruPolicy(4), nullptr);
  BlockTable table(pool), given;
  ASSERT_TRUE(pool.Append(table, 3));
  EXPECT_EQ(given.group(), -1);
  given = std::move(table);
  EXPECT_EQ(given.group(), 0);
  EXPECT_EQ(pool.used_blocks(), 3);
  given.Clear();
  EXPECT_EQ(pool.used_blocks(), 0);
}

TEST(BlockPool, AClearedTableIsAsANewOne) {
  BlockPool pool(0, 4, 16, MakeLruPolicy(4), nullptr);
  BlockTable table(pool);
  ASSERT_TRUE(pool.Append(table, 3));
  pool.ReleaseFront(table, 2);
  table.Clear();
  EXPECT_EQ(table.owned(), 0);
  ASSERT_TRUE(pool.Append(table, 2));
  EXPECT_EQ(table.owned(), 2);
  table.Clear();
  EXPECT_EQ(pool.used_blocks(), 0) << "none of them was taken for one behind the window";
}

TEST(EvictionDeathTest, ABlockThatIsNotHeldIsNotRemoved) {
  const auto policy = MakeLruPolicy(2);
  policy->Insert(1);
  policy->Remove(1);
  EXPECT_EQ(policy->size(), 0);
  EXPECT_DEATH(policy->Remove(1), "block 1 is not held");
  policy->Insert(1);
  EXPECT_EQ(policy->TakeVictim(), 1);
}

TEST(BlockPool, CachedBlocksStayReadableAndTheOldestTailGoesFirst) {
  Evictions evictions;
  BlockPool pool(0, 4, 16, MakeLruPolicy(4), &evictions);
  BlockTable old(pool), young(pool);
  ASSERT_TRUE(pool.Append(old, 2));
  ASSERT_TRUE(pool.Append(young, 2));
  const std::vector<BlockId> first(old.blocks().begin(), old.blocks().end());
  for (const BlockId b : old.blocks()) pool.SetCached(b, true);
  for (const BlockId b : young.blocks()) pool.SetCached(b, true);
  old.Clear();
  young.Clear();
  EXPECT_EQ(pool.cached_free_blocks(), 4);
  BlockTable again(pool), fresh(pool);
  pool.AppendShared(again, first[0]);  // a hit
  ASSERT_TRUE(pool.Append(fresh, 1));
  EXPECT_EQ(evictions.blocks, std::vector<BlockId>{first[1]});
  EXPECT_EQ(pool.owners(first[0]), 1);
}

TEST(BlockPool, AnEvictedBlockIsNoLongerCached) {
  Evictions evictions;
  BlockPool pool(0, 1, 16, MakeLruPolicy(1), &evictions);
  BlockTable table(pool);
  ASSERT_TRUE(pool.Append(table, 1));
  pool.SetCached(0, true);
  table.Clear();
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(pool.Append(table, 1));
    table.Clear();
    EXPECT_EQ(pool.cached_free_blocks(), 0);
    EXPECT_EQ(pool.available_blocks(), 1);
  }
  EXPECT_EQ(evictions.blocks, std::vector<BlockId>{0}) << "evicted once, free after that";
}

TEST(BlockPool, DetachGivesAPrivateBlockAndKeepsTheSourceOwned) {
  BlockPool pool(0, 3, 16, MakeLruPolicy(3), nullptr);
  BlockTable a(pool);
  ASSERT_TRUE(pool.Append(a, 1));
  BlockTable b = a.Share();
  std::optional<BlockTable> source = pool.Detach(b, 0);
  ASSERT_TRUE(source.has_value());
  EXPECT_NE(a.blocks()[0], b.blocks()[0]);
  EXPECT_EQ(source->blocks()[0], a.blocks()[0]);
  EXPECT_EQ(pool.owners(a.blocks()[0]), 2);
}

TEST(BlockPool, BlocksBehindTheWindowComeBackAndKeepTheirPlace) {
  BlockPool pool(0, 4, 16, MakeLruPolicy(4), nullptr);
  BlockTable table(pool);
  ASSERT_TRUE(pool.Append(table, 4));
  pool.ReleaseFront(table, 3);
  EXPECT_EQ(table.size(), 4);
  EXPECT_EQ(table.owned(), 1);
  EXPECT_EQ(table.blocks()[2], kNoBlock);
  EXPECT_EQ(pool.available_blocks(), 3);
}

TEST(BlockPoolDeathTest, DestroyingAPoolWithOwnersIsOurBug) {
  EXPECT_DEATH(
      {
        auto pool = std::make_unique<BlockPool>(0, 2, 16, MakeLruPolicy(2), nullptr);
        BlockTable table(*pool);
        (void)pool->Append(table, 1);
        pool.reset();
      },
      "still have owners");
}

TEST(BlockPool, RandomOperationsKeepOwnersAndBlocksInBalance) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::mt19937_64 rng(seed);
    BlockPool pool(0, 24, 16, MakeLruPolicy(24), nullptr);
    std::vector<BlockTable> tables;
    for (int i = 0; i < 600; ++i) {
      const size_t pick = tables.empty() ? 0 : rng() % tables.size();
      switch (rng() % 6) {
        case 0:
        case 1: {
          BlockTable& t = tables.emplace_back(pool);
          const auto count = static_cast<int32_t>(rng() % 6);
          const bool fits = pool.available_blocks() >= count;
          EXPECT_EQ(pool.Append(t, count), fits);
          break;
        }
        case 2:
          if (!tables.empty()) tables.push_back(tables[pick].Share());
          break;
        case 3:
          if (!tables.empty()) tables.erase(tables.begin() + static_cast<ptrdiff_t>(pick));
          break;
        case 4:
          if (!tables.empty() && tables[pick].owned() > 0) {
            pool.SetCached(tables[pick].blocks().back(), rng() % 2 == 0);
            pool.Detach(tables[pick], tables[pick].size() - 1);
          }
          break;
        default:
          if (!tables.empty()) pool.ReleaseFront(tables[pick], tables[pick].size() / 2);
      }
      pool.CheckInvariants();
      int64_t owners = 0;
      for (const BlockTable& t : tables) owners += t.owned();
      ASSERT_EQ(owners, pool.total_owners());
    }
  }
}

}  // namespace
}  // namespace baton::engine
