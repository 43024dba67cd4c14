#include "engine/cache/kv_cache.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "sim/fake_model.h"

namespace baton::engine {
namespace {

std::vector<int32_t> Tokens(int32_t n, int32_t first = 0) {
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

/// How much of `tokens` a prompt finds published.
int32_t Found(KvCache& cache, const std::vector<int32_t>& tokens, int32_t max_tokens) {
  return cache.Match("", "", tokens, max_tokens).tokens;
}

class KvCacheTest : public ::testing::Test {
 protected:
  KvCache Make(const KvLayout& layout, std::vector<int32_t> blocks) {
    return KvCache(layout, std::move(blocks), hasher_, {});
  }
  // Computes and publishes `tokens`, then lets go.
  void Fill(KvCache& cache, const std::vector<int32_t>& tokens, std::string_view salt = "") {
    SequenceKv kv = cache.Start(salt, "");
    ASSERT_TRUE(cache.Grow(kv, static_cast<int32_t>(tokens.size())));
    cache.Publish(kv, tokens, static_cast<int32_t>(tokens.size()));
    cache.ReleaseBehindWindow(kv, static_cast<int32_t>(tokens.size()));
  }
  // A prompt of 112 tokens whose KV came from elsewhere, but for what lies behind its window.
  static SequenceKv HandedOver(KvCache& cache) {
    SequenceKv kv = cache.Start("", "");
    cache.SkipBehindWindow(kv, 112);
    EXPECT_TRUE(cache.Grow(kv, 113));
    kv.handed_over_tokens = 112;
    cache.Publish(kv, Tokens(112), 112);
    return kv;
  }
  PrefixHasher hasher_{HashKey{}};
};

TEST_F(KvCacheTest, PublishedUnitsAreFoundAndTheOpenUnitIsNot) {
  KvCache cache = Make(FakeLayout(), {32});
  Fill(cache, Tokens(70));
  PrefixMatch hit = cache.Match("", "", Tokens(100), 99);
  EXPECT_EQ(hit.tokens, 64);
  EXPECT_EQ(hit.kv.tables[0].size(), 4);
  EXPECT_EQ(cache.pool(0).used_blocks(), 4);
  EXPECT_EQ(cache.Match("", "", Tokens(64), 63).tokens, 48);
  cache.CheckInvariants();
}

TEST_F(KvCacheTest, OtherSaltOrOtherTokensFindNothing) {
  KvCache cache = Make(FakeLayout(), {32});
  Fill(cache, Tokens(64), "tenant a");
  EXPECT_EQ(cache.Match("tenant a", "", Tokens(65), 64).tokens, 64);
  EXPECT_EQ(cache.Match("tenant b", "", Tokens(65), 64).tokens, 0);
  EXPECT_EQ(cache.Match("tenant a", "adapter", Tokens(65), 64).tokens, 0);
  std::vector<int32_t> other = Tokens(65);
  other[20] += 1;
  EXPECT_EQ(cache.Match("tenant a", "", other, 64).tokens, 16);
}

TEST_F(KvCacheTest, AHitIsVerifiedAgainstTokenIds) {
  PrefixIndex index({8}, {1}, 0);
  const PrefixHash root{1, 1}, collision{2, 2};
  PrefixCursor start = index.Root(root);
  PrefixCursor node = index.FindOrMake(start, collision, Tokens(16));
  ASSERT_TRUE(index.Attach(node.node(), 0, 3));
  EXPECT_EQ(index.Find(start.node(), collision, Tokens(16)), node.node());
  EXPECT_EQ(index.Find(start.node(), collision, Tokens(16, 1)), kNoNode);
  EXPECT_EQ(index.Find(node.node(), collision, Tokens(16)), kNoNode);  // the same unit after another prefix
  EXPECT_TRUE(index.FindOrMake(start, collision, Tokens(16, 1)).empty());
}

TEST_F(KvCacheTest, EveryTokenOfAUnitIsCompared) {
  PrefixIndex index({8}, {1}, 0);
  const PrefixHash root{1, 1}, collision{2, 2};
  PrefixCursor start = index.Root(root);
  PrefixCursor node = index.FindOrMake(start, collision, Tokens(16));
  for (size_t at = 0; at < kUnitTokens; ++at) {
    std::vector<int32_t> other = Tokens(16);
    other[at] += 1000;
    EXPECT_EQ(index.Find(start.node(), collision, other), kNoNode) << "token " << at << " differs";
    EXPECT_TRUE(index.FindOrMake(start, collision, other).empty()) << "token " << at << " differs";
  }
  EXPECT_EQ(index.Find(start.node(), collision, Tokens(16)), node.node());
}

TEST_F(KvCacheTest, ARootIsNoUnitAndAUnitIsNoRoot) {
  PrefixIndex index({8}, {1}, 0);
  const PrefixHash root{1, 1}, unit{2, 2};
  PrefixCursor start = index.Root(root);
  PrefixCursor node = index.FindOrMake(start, unit, Tokens(16));
  EXPECT_EQ(index.Root(root).node(), start.node());
  EXPECT_TRUE(index.Root(unit).empty()) << "a collision publishes nothing";
  EXPECT_EQ(index.units(start.node()), 0);
  EXPECT_EQ(index.units(node.node()), 1);
}

TEST_F(KvCacheTest, EvictionTakesTheBlockOutOfTheIndexAndTellsTheRouter) {
  KvCache cache = Make(FakeLayout(), {4});
  Fill(cache, Tokens(64));
  KvEvents stored = cache.TakeEvents();
  ASSERT_EQ(stored.events.size(), 4u);
  EXPECT_EQ(stored.events[1].parent, stored.events[0].hash);
  EXPECT_EQ(stored.events[3].unit_index, 3);
  EXPECT_EQ(cache.Snapshot(), stored.events);
  SequenceKv other = cache.Start("", "");
  ASSERT_TRUE(cache.Grow(other, 32));
  const KvEvents removed = cache.TakeEvents();
  ASSERT_EQ(removed.events.size(), 2u);
  EXPECT_EQ(removed.events[0].kind, KvEvent::Kind::kRemoved);
  EXPECT_EQ(removed.events[0].hash, stored.events[3].hash);  // the tail first
  EXPECT_EQ(Found(cache, Tokens(65), 64), 32);
  cache.CheckInvariants();
}

TEST_F(KvCacheTest, ABlockThatWasEvictedAndNotPublishedAgainIsAFreeBlockLikeAnyOther) {
  KvCache cache = Make(FakeLayout(), {4});
  Fill(cache, Tokens(64));
  EXPECT_EQ(cache.pool(0).cached_free_blocks(), 4);
  SequenceKv other = cache.Start("", "");
  ASSERT_TRUE(cache.Grow(other, 32));
  other.Clear();
  EXPECT_EQ(cache.pool(0).cached_free_blocks(), 2) << "what nobody can find again is not cached";
  cache.TakeEvents();
  ASSERT_TRUE(cache.Grow(other = cache.Start("", ""), 32));
  EXPECT_TRUE(cache.TakeEvents().events.empty()) << "free blocks go before cached ones";
  EXPECT_EQ(Found(cache, Tokens(65), 64), 32);
  cache.CheckInvariants();
}

TEST_F(KvCacheTest, OwnedBlocksAreNeverEvicted) {
  KvCache cache = Make(FakeLayout(), {4});
  Fill(cache, Tokens(64));
  PrefixMatch pin = cache.Match("", "", Tokens(64), 64);
  SequenceKv other = cache.Start("", "");
  EXPECT_FALSE(cache.Grow(other, 16));
  EXPECT_EQ(Found(cache, Tokens(64), 64), 64);
}

TEST_F(KvCacheTest, GrowingIsAllOrNothingOverAllGroups) {
  KvCache cache = Make(FakeLayout(16, 32), {8, 2});
  SequenceKv kv = cache.Start("", "");
  EXPECT_FALSE(cache.Grow(kv, 48)) << "the second group has 2 of 3 blocks";
  EXPECT_EQ(cache.pool(0).used_blocks(), 0);
  EXPECT_TRUE(cache.Grow(kv, 32));
}

TEST_F(KvCacheTest, TwoWhoComputeTheSamePrefixKeepTheFirstOnesBlocks) {
  KvCache cache = Make(FakeLayout(), {8});
  SequenceKv a = cache.Start("", ""), b = cache.Start("", "");
  ASSERT_TRUE(cache.Grow(a, 32) && cache.Grow(b, 32));
  cache.Publish(a, Tokens(32), 32);
  cache.Publish(b, Tokens(32), 32);
  EXPECT_EQ(cache.TakeEvents().events.size(), 2u);
  PrefixMatch hit = cache.Match("", "", Tokens(33), 32);
  EXPECT_EQ(hit.kv.tables[0].blocks()[0], a.tables[0].blocks()[0]);
  b.Clear();
  EXPECT_EQ(cache.pool(0).cached_free_blocks(), 0);
  cache.CheckInvariants();
}

TEST_F(KvCacheTest, SharedBlockIsCopiedBeforeItIsWritten) {
  KvCache cache = Make(FakeLayout(), {8});
  SequenceKv a = cache.Start("", "");
  ASSERT_TRUE(cache.Grow(a, 40));
  SequenceKv b = a.Share();
  std::vector<BlockCopy> copies;
  std::vector<BlockTable> sources;
  ASSERT_TRUE(cache.MakeWritable(b, 20, 21, copies, sources));
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].src, a.tables[0].blocks()[1]);
  EXPECT_EQ(copies[0].dst, b.tables[0].blocks()[1]);
  for (const size_t others : {0, 2}) EXPECT_EQ(a.tables[0].blocks()[others], b.tables[0].blocks()[others]);
  EXPECT_EQ(cache.pool(0).owners(copies[0].src), 2) << "nobody else gets it before the copy ran";
  sources.clear();
  ASSERT_TRUE(cache.MakeWritable(a, 20, 21, copies, sources));
  EXPECT_EQ(copies.size(), 1u);  // a is alone now
}

TEST_F(KvCacheTest, WritingBehindTokensThatAreBeingReadNeedsNoCopy) {
  KvCache cache = Make(FakeLayout(64), {4});
  SequenceKv kv = cache.Start("", "");
  ASSERT_TRUE(cache.Grow(kv, 20));
  std::vector<BlockCopy> copies;
  std::vector<BlockTable> sources;
  {
    const SequenceKv reader = kv.ShareToRead();
    EXPECT_EQ(cache.pool(0).owners(0), 2);
    ASSERT_TRUE(cache.MakeWritable(kv, 20, 30, copies, sources));
    EXPECT_TRUE(copies.empty());
    kv.Clear();
    EXPECT_EQ(cache.pool(0).used_blocks(), 1) << "the reader keeps it";
    kv = reader.Share();
    EXPECT_EQ(cache.pool(0).writers(0), 0) << "who shares with a reader reads";
    kv.Clear();
  }
  EXPECT_EQ(cache.pool(0).used_blocks(), 0);
  cache.CheckInvariants();
}

TEST_F(KvCacheTest, PartOfABlockIsReusedByCopy) {
  KvCache cache = Make(FakeLayout(64), {8});
  Fill(cache, Tokens(48 + 5));
  PrefixMatch hit = cache.Match("", "", Tokens(200), 199);
  EXPECT_EQ(hit.tokens, 48);
  ASSERT_EQ(hit.copies.size(), 1u);
  EXPECT_EQ(hit.copies[0].dst, hit.kv.tables[0].blocks()[0]);
  EXPECT_EQ(cache.pool(0).owners(hit.copies[0].src), 1) << "nobody gets it before the copy ran";
  // The copy grows on and takes over: the whole block is found afterwards.
  ASSERT_TRUE(cache.Grow(hit.kv, 128));
  cache.Publish(hit.kv, Tokens(128), 128);
  EXPECT_EQ(Found(cache, Tokens(200), 199), 128);
  hit = PrefixMatch();
  EXPECT_EQ(cache.pool(0).cached_free_blocks(), 2) << "the block that the copy came from holds nothing any more";
  cache.CheckInvariants();
}

TEST_F(KvCacheTest, PartOfABlockIsLeftOutWhenNoBlockIsFreeForTheCopy) {
  KvCache cache = Make(FakeLayout(64), {2});
  Fill(cache, Tokens(64 + 48));
  PrefixMatch hit = cache.Match("", "", Tokens(200), 199);
  EXPECT_EQ(hit.tokens, 64);
  EXPECT_TRUE(hit.copies.empty());
}

TEST_F(KvCacheTest, APartThatOnlySomeGroupsHaveABlockForIsCopiedInNone) {
  KvCache cache = Make(FakeLayout(64, 200), {8, 2});
  Fill(cache, Tokens(64 + 48));
  PrefixMatch hit = cache.Match("", "", Tokens(200), 199);
  EXPECT_EQ(hit.tokens, 64);
  EXPECT_TRUE(hit.copies.empty()) << "the first group's block is free again: a copy would write into another's";
  EXPECT_TRUE(hit.copy_sources.empty());
  EXPECT_EQ(cache.pool(0).used_blocks(), 1);
}

TEST_F(KvCacheTest, WhoeverAsksForWholeBlocksGetsNoPartOfOne) {
  KvCache cache = Make(FakeLayout(64), {8});
  Fill(cache, Tokens(128 + 48));
  EXPECT_EQ(cache.Match("", "", Tokens(200), 199).tokens, 176);
  const PrefixMatch whole = cache.Match("", "", Tokens(200), 199, /*whole_blocks=*/true);
  EXPECT_EQ(whole.tokens, 128);
  EXPECT_TRUE(whole.copies.empty());
}

TEST_F(KvCacheTest, AWindowNeverHoldsMoreBlocksThanMaxBlocksOfSays) {
  for (const int32_t block : {16, 64}) {
    int32_t tight = 0;
    for (const int32_t window : {17, 32, 100}) {
      for (int32_t chunk = 1; chunk <= 96; ++chunk) {
        KvCache cache = Make(FakeLayout(block, window), {64, 64});
        SequenceKv kv = cache.Start("", "");
        int32_t most = 0;
        for (int32_t computed = 0; computed < 700; computed += chunk) {
          ASSERT_TRUE(cache.Grow(kv, computed + chunk));
          most = std::max(most, kv.tables[1].owned());
          cache.ReleaseBehindWindow(kv, (computed + chunk) / kUnitTokens * kUnitTokens);
        }
        const int32_t limit = cache.MaxBlocksOf(1, 1 << 20, chunk);
        EXPECT_LE(most, limit) << window << " in blocks of " << block << ", chunk " << chunk;
        tight += most == limit ? 1 : 0;
      }
    }
    EXPECT_GT(tight, 0) << "blocks of " << block << ": the limit is too high for every window and chunk";
  }
}

TEST_F(KvCacheTest, ASnapshotNamesWhatTheGroupOfTheEventsHolds) {
  PrefixIndex index({8, 8}, {1, 1}, /*event_group=*/1);
  const std::vector<int32_t> unit = Tokens(kUnitTokens);
  const PrefixCursor root = index.Root(hasher_.Root({"m"}));
  const PrefixCursor node = index.FindOrMake(root, hasher_.Next(index.hash(root.node()), unit), unit);
  ASSERT_TRUE(index.Attach(node.node(), 0, 3));
  EXPECT_TRUE(index.Snapshot().empty()) << "only a group of which no router hears holds it";
  ASSERT_TRUE(index.Attach(node.node(), 1, 5));
  EXPECT_EQ(index.Snapshot().size(), 1u);
  index.DetachBlock(1, 5);
  EXPECT_TRUE(index.Snapshot().empty());
  index.DetachBlock(0, 3);
}

TEST_F(KvCacheTest, RoutersHearOfTheGroupThatKeepsEverythingWhicheverItIs) {
  KvLayout layout = FakeLayout(16, 32);
  std::swap(layout.groups[0], layout.groups[1]);
  KvCache cache = Make(layout, {5, 32});
  Fill(cache, Tokens(64));
  cache.TakeEvents();
  Fill(cache, Tokens(64, 1000));  // takes blocks of the window's group from the first
  const KvEvents events = cache.TakeEvents();
  ASSERT_FALSE(events.events.empty());
  for (const KvEvent& event : events.events) EXPECT_EQ(event.kind, KvEvent::Kind::kStored);
}

TEST_F(KvCacheTest, WindowGroupReleasesBlocksAndAHitNeedsOnlyTheWindow) {
  KvCache cache = Make(FakeLayout(16, 32), {32, 5});
  SequenceKv kv = cache.Start("", "");
  for (int32_t end = 16; end <= 160; end += 16) {
    ASSERT_TRUE(cache.Grow(kv, end)) << end;
    cache.Publish(kv, Tokens(160), end);
    cache.ReleaseBehindWindow(kv, end);
  }
  EXPECT_EQ(kv.tables[1].owned(), 2);
  const KvEvents events = cache.TakeEvents();
  EXPECT_EQ(events.events.size(), 10u) << "five blocks of the window group were evicted, of which no router hears";
  for (const KvEvent& event : events.events) EXPECT_EQ(event.kind, KvEvent::Kind::kStored);
  kv.Clear();
  PrefixMatch hit = cache.Match("", "", Tokens(170), 169);
  EXPECT_EQ(hit.tokens, 160);
  EXPECT_EQ(hit.kv.tables[0].owned(), 10);
  EXPECT_EQ(hit.kv.tables[1].owned(), 2);
  EXPECT_EQ(hit.kv.tables[1].size(), 10);
  // The window of an early position is long evicted.
  EXPECT_EQ(Found(cache, Tokens(40), 39), 0);
  cache.CheckInvariants();
}

TEST_F(KvCacheTest, APartOfAWindowThatWasNotHandedOverIsNotFound) {
  KvCache cache = Make(FakeLayout(64, 32), {8, 8});
  SequenceKv kv = HandedOver(cache);
  EXPECT_EQ(Found(cache, Tokens(113), 112), 112);
  EXPECT_EQ(Found(cache, Tokens(113), 96), 0) << "positions 65 to 79 never came, though their block is there";
  kv.Clear();
  cache.CheckInvariants();
}

// The window of 33 begins at position 80 for the token 112: the unit before it ends there.
TEST_F(KvCacheTest, AUnitThatEndsWhereTheWindowBeginsDidNotCome) {
  KvCache cache = Make(FakeLayout(64, 33), {8, 8});
  SequenceKv kv = HandedOver(cache);
  EXPECT_EQ(Found(cache, Tokens(113), 112), 112);
  EXPECT_EQ(Found(cache, Tokens(113), 96), 0) << "position 96 sees 64 to 79, which never came";
}

TEST_F(KvCacheTest, WhoSharesWhatWasHandedOverKnowsThatAPartNeverCame) {
  KvCache cache = Make(FakeLayout(64, 32), {8, 8});
  SequenceKv kv = cache.Start("", "");
  cache.SkipBehindWindow(kv, 112);
  ASSERT_TRUE(cache.Grow(kv, 113));
  kv.handed_over_tokens = 112;
  SequenceKv shared = kv.Share();
  cache.Publish(shared, Tokens(112), 112);
  EXPECT_EQ(Found(cache, Tokens(113), 112), 112);
  EXPECT_EQ(Found(cache, Tokens(113), 96), 0);
  shared.Clear();
  EXPECT_EQ(shared.handed_over_tokens, 0) << "as a new one";
  EXPECT_TRUE(shared.cursor.empty());
  EXPECT_EQ(cache.pool(0).used_blocks(), 2) << "of the one it was shared from";
}

TEST_F(KvCacheTest, WhatIsSkippedIsGivenBackToo) {
  KvCache cache = Make(FakeLayout(16, 32), {16, 16});
  SequenceKv kv = cache.Start("", "");
  ASSERT_TRUE(cache.Grow(kv, 96));
  EXPECT_EQ(kv.tables[1].owned(), 6);
  cache.SkipBehindWindow(kv, 96);
  EXPECT_EQ(kv.tables[1].owned(), 2) << "position 96 sees 65 to 95";
  cache.SkipBehindWindow(kv, 160);
  EXPECT_EQ(kv.tables[1].owned(), 0);
  ASSERT_TRUE(cache.Grow(kv, 161));
  EXPECT_EQ(kv.tables[1].owned(), 3) << "128 to 160";
  EXPECT_EQ(kv.tables[1].size(), kv.tables[0].size());
}

TEST_F(KvCacheTest, AUnitWhoseOwnPartCameElsewhereIsNoWholeBlock) {
  KvCache cache = Make(FakeLayout(32, 20), {8, 8});
  Fill(cache, Tokens(16));
  SequenceKv kv = cache.Start("", "");
  cache.SkipBehindWindow(kv, 40);
  ASSERT_TRUE(cache.Grow(kv, 41));
  kv.handed_over_tokens = 40;
  cache.Publish(kv, Tokens(40), 40);
  EXPECT_EQ(Found(cache, Tokens(41), 32), 16)
      << "the window before 32 needs both units of the block, and the one handed over has the second only";
  kv.Clear();
  cache.CheckInvariants();
}

TEST_F(KvCacheTest, TheBlockOfAWindowsFirstPositionStays) {
  KvCache cache = Make(FakeLayout(16, 18), {8, 8});
  SequenceKv kv = cache.Start("", "");
  ASSERT_TRUE(cache.Grow(kv, 48));
  cache.ReleaseBehindWindow(kv, 32);
  EXPECT_EQ(kv.tables[1].owned(), 3) << "position 32 sees 15";
  cache.ReleaseBehindWindow(kv, 33);
  EXPECT_EQ(kv.tables[1].owned(), 2) << "position 33 sees 16";
}

TEST_F(KvCacheTest, AUnitIsPublishedWithItsLastToken) {
  KvCache cache = Make(FakeLayout(), {4});
  SequenceKv kv = cache.Start("", "");
  ASSERT_TRUE(cache.Grow(kv, 16));
  cache.Publish(kv, Tokens(16), 15);
  EXPECT_EQ(Found(cache, Tokens(17), 16), 0);
  cache.Publish(kv, Tokens(16), 16);
  EXPECT_EQ(Found(cache, Tokens(17), 16), 16);
}

TEST_F(KvCacheTest, HashesOfAnotherModelAreOthers) {
  std::set<std::pair<uint64_t, uint64_t>> hashes;
  for (const char* model : {"one model", "another"}) {
    KvCache cache(FakeLayout(), {4}, hasher_, {.model_digest = model});
    Fill(cache, Tokens(16));
    const KvEvents events = cache.TakeEvents();
    ASSERT_EQ(events.events.size(), 1u);
    hashes.insert({events.events[0].hash.hi, events.events[0].hash.lo});
  }
  EXPECT_EQ(hashes.size(), 2u);
}

TEST_F(KvCacheTest, EventsThatNobodyTakesEndInAGapThatIsSaid) {
  KvCache cache = Make(FakeLayout(), {1});
  for (int32_t i = 0; i < 40000; ++i) Fill(cache, Tokens(16, i));
  const KvEvents events = cache.TakeEvents();
  EXPECT_TRUE(events.gap);
  EXPECT_LT(events.events.size(), 70000u);
  Fill(cache, Tokens(16, 50000));
  EXPECT_FALSE(cache.TakeEvents().gap) << "said once";
}

TEST_F(KvCacheTest, NodesAndEventsDoNotOutliveTheirBlocks) {
  KvCache cache = Make(FakeLayout(), {8});
  for (int32_t i = 0; i < 50; ++i) Fill(cache, Tokens(64, 1000 * i));
  EXPECT_LE(cache.index().num_nodes(), 8 + 1);
  cache.CheckInvariants();
}

}  // namespace
}  // namespace baton::engine
