// What rank 0 tells another rank of a slot, and the addresses of ranks.
#include "kvtransfer/rank_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "kvtransfer/rank_numbers.h"
#include "kvtransfer/transports/landing_addresses.h"
#include "kvtransfer/transports/rank_addresses.h"

namespace baton {
namespace {

using testing::ElementsAre;

KvSide Side(int tensor, std::vector<int> stages, int block) {
  KvGroup group{.layers = {0, 1, 2, 3}, .tokens_per_block = block};
  group.planes = {{KvPlane::Name::kK, DType::kBF16, 4, 8}, {KvPlane::Name::kV, DType::kBF16, 4, 8}};
  return {.layout = {.groups = {group}}, .tensor_parallel_size = tensor, .stage_layers = std::move(stages)};
}

SlotWork Work() {
  auto plan = TransferPlan::Make(Side(2, {0, 4}, 16), Side(1, {0, 2, 4}, 32), {0, 200}, 64).value();
  SlotWork work{.peer = InRank(1, 7), .lane = {9, 2, 3}, .slot = {4, 5}};
  work.segments = {1, 2};  // of the first of its layers: positions 64 to 191
  work.plan = std::make_shared<const TransferPlan>(std::move(plan));
  work.tables = {{10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22}};
  return work;
}

/// A rank that knows the work's plan.
PlanShelf Told(const SlotWork& work) {
  PlanShelf shelf;
  EXPECT_TRUE(shelf.Add(EncodeTerms(*work.plan)).ok());
  return shelf;
}

TEST(RankCodec, RankZeroKnowsWhichPlansARankHasForgotten) {
  ToldPlans told;
  PlanShelf shelf;
  std::vector<std::shared_ptr<const TransferPlan>> plans;  // more than a shelf holds
  SlotWork work = Work();
  for (int i = 0; i < 80; ++i) {
    plans.push_back(std::make_shared<const TransferPlan>(
        TransferPlan::Make(work.plan->source(), work.plan->target(), {0, 200 + 16 * i}, 64).value()));
  }
  std::mt19937 random(1);
  int known = 0;
  for (int i = 0; i < 1500; ++i) {
    work.plan = plans[random() % plans.size()];
    if (told.Knows(work.plan->digest())) {
      ++known;
    } else {
      ASSERT_TRUE(shelf.Add(EncodeTerms(*work.plan)).ok());
    }
    const auto got = DecodeSlotWork(EncodeSlotWork(work, TransferEnd::kSource), shelf);
    ASSERT_TRUE(got.ok()) << "work " << i << ": " << got.status();
    ASSERT_EQ(got->plan->digest(), work.plan->digest());
  }
  EXPECT_GT(known, 1000);
}

TEST(RankCodec, ASlotsWorkArrivesWithItsPlanAndTheBlocksThatItNeeds) {
  const SlotWork work = Work();
  PlanShelf shelf = Told(work);
  const auto got = DecodeSlotWork(EncodeSlotWork(work, TransferEnd::kSource), shelf);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->peer, work.peer);
  EXPECT_EQ(got->lane, work.lane);
  EXPECT_EQ(got->slot, work.slot);
  EXPECT_EQ(got->segments, work.segments);
  EXPECT_EQ(got->plan->digest(), work.plan->digest());
  EXPECT_THAT(got->tables[0], ElementsAre(-1, -1, -1, -1, 14, 15, 16, 17, 18, 19, 20, 21));
}

TEST(RankCodec, BlocksAreThoseOfTheEndThatMovesThem) {
  SlotWork work = Work();
  work.tables = {{30, 31, 32, 33, 34, 35, 36}};
  PlanShelf shelf = Told(work);
  const auto got = DecodeSlotWork(EncodeSlotWork(work, TransferEnd::kTarget), shelf);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_THAT(got->tables[0], ElementsAre(-1, -1, 32, 33, 34, 35));
}

TEST(RankCodec, BlocksThatAreNotThereAreMissingAtTheRankToo) {
  SlotWork work = Work();
  work.tables = {{}};
  PlanShelf shelf = Told(work);
  EXPECT_THAT(DecodeSlotWork(EncodeSlotWork(work, TransferEnd::kSource), shelf)->tables[0], testing::IsEmpty());
}

TEST(RankCodec, WhoIsToTellThePeerAndWhatMayWaitArrives) {
  for (const bool tell : {false, true}) {
    SlotWork work = Work();
    work.tell = tell, work.may_wait = !tell;
    PlanShelf shelf = Told(work);
    const auto got = DecodeSlotWork(EncodeSlotWork(work, TransferEnd::kSource), shelf);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(got->tell, tell);
    EXPECT_EQ(got->may_wait, !tell);
  }
}

TEST(RankCodec, APlanIsMadeOnceForManySlots) {
  PlanShelf shelf = Told(Work());
  const SlotOrder order = EncodeSlotWork(Work(), TransferEnd::kSource);
  EXPECT_EQ(DecodeSlotWork(order, shelf)->plan, DecodeSlotWork(order, shelf)->plan);
}

TEST(RankCodec, WhatDoesNotFitThePlanIsRefusedWithTheNumbers) {
  const SlotOrder good = EncodeSlotWork(Work(), TransferEnd::kSource);
  const auto refused = [](const SlotOrder& order) {
    PlanShelf shelf = Told(Work());
    return std::string(DecodeSlotWork(order, shelf).status().message());
  };
  SlotOrder bad = good;
  bad.lane.lane = 4;
  EXPECT_EQ(refused(bad), "lane 4 of 4");
  bad = good;
  bad.segments.push_back(8);
  EXPECT_EQ(refused(bad), "segment 8 of 8");
  bad = good;
  bad.plan ^= 1;
  EXPECT_EQ(refused(bad), "a transfer plan that rank 0 has not told");
  bad = good;
  bad.tables[0].group = 1;
  EXPECT_EQ(refused(bad), "blocks of group 1 of 1");
  bad = good;
  bad.tables[0].first = 6;
  EXPECT_EQ(refused(bad), "blocks up to entry 14 of a table of 13 entries, of group 0");
  bad.tables[0].first = 1u << 31;
  EXPECT_EQ(refused(bad), "blocks up to entry 2147483656 of a table of 13 entries, of group 0");
}

TEST(RankCodec, APlanThatComesOutAnotherThanRankZerosIsRefused) {
  v1::TransferTerms terms = EncodeTerms(*Work().plan);
  terms.set_digest(1);
  PlanShelf shelf;
  EXPECT_THAT(std::string(shelf.Add(terms).message()), testing::HasSubstr("differs from rank 0's"));
  EXPECT_EQ(shelf.Find(1), nullptr);
}

TEST(RankFigures, ArriveAsTheyWere) {
  const RankFigures sent{.bytes = 1,
                         .slots = 2,
                         .nanoseconds = 3,
                         .waiting = 4,
                         .peers_lost = 5,
                         .refused = 6,
                         .digest_mismatches = 7,
                         .unreadable_slots = 8,
                         .self_tests_failed = 9,
                         .ways = {{"d", "ucx", "rc_mlx5", 12.5}}};
  const RankFigures got = DecodeFigures(EncodeFigures(sent));
  EXPECT_EQ((std::vector{got.bytes, got.slots, got.nanoseconds, got.waiting, got.peers_lost, got.refused,
                         got.digest_mismatches, got.unreadable_slots, got.self_tests_failed}),
            (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9}));
  ASSERT_EQ(got.ways.size(), 1u);
  EXPECT_EQ(got.ways[0].incarnation, "d");
  EXPECT_EQ(got.ways[0].transport, "ucx");
  EXPECT_EQ(got.ways[0].path, "rc_mlx5");
  EXPECT_EQ(got.ways[0].gigabytes_per_second, 12.5);
}

TEST(RankErrors, ArriveAsTheyWere) {
  for (const absl::Status& error : {absl::DataLossError("unit 5"), absl::UnavailableError("")})
    EXPECT_EQ(DecodeRankError(EncodeRankError(error)), error);
}

TEST(RankNumbers, SayTheRankAndTheMemory) {
  EXPECT_EQ(RankOf(InRank(255, 1)), 255);
  const uint32_t memory = FirstMemoryOf(65535) + 4095;
  const WriterId writer = WriterIn(memory, (uint64_t{1} << 36) - 1);
  EXPECT_EQ(RankOf(writer), 65535);
  EXPECT_EQ(MemoryOfWriter(writer), memory);
  EXPECT_EQ(PeerOfWriter(writer), (uint64_t{1} << 36) - 1);
  EXPECT_EQ(RankOfMemory(memory), 65535);
}

TEST(RankAddresses, OfOneRankAreItsOwnAndOfSeveralSayHowTheyAreCut) {
  EXPECT_EQ(RankAddresses{.ranks = {"kv1|m|tcp:1"}}.Pack(), "kv1|m|tcp:1");
  EXPECT_THAT(RankAddresses::Parse("kv1|m|tcp:1")->ranks, ElementsAre("kv1|m|tcp:1"));
  const RankAddresses two{2, {0, 3, 4}, {"a", "b", "c", "d"}};
  const auto got = RankAddresses::Parse(two.Pack());
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->tensor_parallel_size, 2);
  EXPECT_THAT(got->stage_layers, ElementsAre(0, 3, 4));
  EXPECT_THAT(got->ranks, ElementsAre("a", "b", "c", "d"));
}

TEST(RankAddresses, WhatDoesNotFitTogetherIsRefused) {
  for (const char* text : {"kvranks1", "kvranks1\n2\n0,4\na", "kvranks1\nx\n0,4\na\nb", "kvranks1\n0\n0,4\na",
                           "kvranks1\n2\n0,y\na\nb", "kvranks1\n1025\n0,4\na"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(RankAddresses::Parse(text).status())) << text;
  }
}

TEST(RankAddresses, OfMoreRanksThanAnyClusterHasAreRefused) {
  RankAddresses many{1024, {0, 1, 2, 3, 4, 5}, {}};
  many.ranks.resize(5 * 1024, "a");
  EXPECT_THAT(std::string(RankAddresses::Parse(many.Pack()).status().message()),
              testing::HasSubstr("5120 ranks, at most 4096"));
  EXPECT_EQ(std::string(RankAddresses::Parse("kvranks1" + std::string(1 << 24, '\n')).status().message()),
            "landing addresses of several ranks: 16777214 ranks, at most 4096");
}

TEST(LandingAddresses, ByMoreWaysThanAnyWorkerHasAreRefused) {
  LandingAddresses many{"m", std::vector<std::string>(65, "tcp:127.0.0.1:1")};
  EXPECT_EQ(std::string(LandingAddresses::Parse(many.Pack()).status().message()),
            "landing addresses by 65 ways, at most 64");
  many.addresses.pop_back();
  EXPECT_EQ(LandingAddresses::Parse(many.Pack())->addresses, many.addresses);
}

}  // namespace
}  // namespace baton
