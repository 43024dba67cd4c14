#include "router/policy/scorer.h"

#include <gtest/gtest.h>

#include "router/policy/break_even.h"
#include "router/policy/load_ticket.h"

namespace baton::router {
namespace {

Candidate Worker(int slot) {
  Candidate c;
  c.id = WorkerId{slot, static_cast<uint64_t>(slot) + 1};
  c.max_num_seqs = 16;
  c.prefill_tokens_per_s = 1000;
  c.decode_step_ms = 10;
  return c;
}

TEST(PredictedTime, AHitBeatsAShortQueueUntilTheQueueCostsMore) {
  auto scorer = MakePredictedTime(1);
  std::vector<Candidate> workers = {Worker(0), Worker(1)};
  workers[1].cached_tokens = 900;
  workers[1].queued_tokens = 1000;
  EXPECT_EQ(scorer->Choose(workers, 1000), 1u) << "1,000 ms of queue against 2 · 900 ms of prefill";
  workers[1].queued_tokens = 2000;
  EXPECT_EQ(scorer->Choose(workers, 1000), 0u);
}

TEST(PredictedTime, CostIsTheSumOfItsTermsInMilliseconds) {
  auto scorer = MakePredictedTime(1);
  std::vector<Candidate> workers = {Worker(0)};
  workers[0].queued_tokens = 500;
  workers[0].cached_tokens = 100;
  workers[0].running = 8;
  size_t chosen = 9;
  const std::vector<Cost> table = scorer->Table(workers, 600, &chosen);
  ASSERT_EQ(table.size(), 1u);
  EXPECT_EQ(chosen, 0u);
  EXPECT_DOUBLE_EQ(table[0].queue_ms, 500);
  EXPECT_DOUBLE_EQ(table[0].prefill_ms, 2 * 500);
  EXPECT_DOUBLE_EQ(table[0].decode_slowdown_ms, 5);
  EXPECT_DOUBLE_EQ(table[0].pressure_ms, 0);
  EXPECT_DOUBLE_EQ(table[0].total_ms, 1505);
}

TEST(PredictedTime, SequencesBeyondTheBatchCostWholeSteps) {
  auto scorer = MakePredictedTime(1);
  std::vector<Candidate> workers = {Worker(0), Worker(1)};
  workers[0].running = 15;
  workers[1].running = 17;
  size_t chosen = 9;
  const std::vector<Cost> table = scorer->Table(workers, 10, &chosen);
  EXPECT_DOUBLE_EQ(table[0].decode_slowdown_ms, 10 * 15 / 16.0) << "the batch is just full";
  EXPECT_DOUBLE_EQ(table[1].decode_slowdown_ms, 10 * (17 / 16.0 + 8 * 2)) << "two must end first";
}

TEST(PredictedTime, LambdaWeighsTheWorkARequestBrings) {
  std::vector<Candidate> workers = {Worker(0), Worker(1)};
  workers[1].cached_tokens = 1000;
  workers[1].queued_tokens = 1500;
  EXPECT_EQ(MakePredictedTime(0)->Choose(workers, 1000), 0u);
  EXPECT_EQ(MakePredictedTime(2)->Choose(workers, 1000), 1u);
}

TEST(PredictedTime, AFasterWorkerAFullerBatchAndScarceBlocksCount) {
  auto scorer = MakePredictedTime(1);
  std::vector<Candidate> workers = {Worker(0), Worker(1)};
  workers[1].prefill_tokens_per_s = 4000;
  EXPECT_EQ(scorer->Choose(workers, 1000), 1u);
  workers = {Worker(0), Worker(1)};
  workers[0].running = 16;
  EXPECT_EQ(scorer->Choose(workers, 10), 1u);
  workers = {Worker(0), Worker(1)};
  workers[1].kv_used_fraction = 1;
  for (int i = 0; i < 4; ++i) EXPECT_EQ(scorer->Choose(workers, 1000), 0u);
}

TEST(PredictedTime, TiesGoInTurn) {
  auto scorer = MakePredictedTime(1);
  const std::vector<Candidate> workers = {Worker(0), Worker(1), Worker(2)};
  std::vector<int> taken(3);
  for (int i = 0; i < 300; ++i) ++taken[scorer->Choose(workers, 100)];
  EXPECT_EQ(taken, (std::vector<int>{100, 100, 100}));
}

TEST(PredictedTime, ATableTakesNoTurn) {
  auto scorer = MakePredictedTime(1);
  const std::vector<Candidate> workers = {Worker(0), Worker(1)};
  size_t shown = 0;
  scorer->Table(workers, 100, &shown);
  scorer->Table(workers, 100, &shown);
  EXPECT_EQ(scorer->Choose(workers, 100), shown);
}

TEST(PredictedTime, UnknownRatesStillGiveAnOrder) {
  auto scorer = MakePredictedTime(1);
  std::vector<Candidate> workers = {Candidate{WorkerId{0, 1}}, Candidate{WorkerId{1, 2}}};
  workers[0].queued_tokens = 100;
  EXPECT_EQ(scorer->Choose(workers, 10), 1u);
}

TEST(RoundRobin, GoesBySlotEvenWhenWorkersComeAndGo) {
  auto scorer = MakeRoundRobin();
  const std::vector<Candidate> all = {Worker(2), Worker(0), Worker(1)};
  const std::vector<Candidate> two = {Worker(0), Worker(2)};
  auto slot = [&](const std::vector<Candidate>& from) { return from[scorer->Choose(from, 1)].id.slot; };
  EXPECT_EQ(slot(all), 0);
  EXPECT_EQ(slot(all), 1);
  EXPECT_EQ(slot(two), 2);
  EXPECT_EQ(slot(two), 0);
  size_t shown = 0;
  EXPECT_EQ(scorer->Table(all, 1, &shown).size(), 3u);
  EXPECT_EQ(all[shown].id.slot, 1);
  EXPECT_EQ(slot(all), 1);
  EXPECT_EQ(slot(all), 2);
  EXPECT_EQ(slot(all), 0) << "the lowest slot after the highest, wherever it is listed";
}

TEST(MakeScorer, AnUnknownPolicyNamesWhatThereIs) {
  const auto made = MakeScorer("best", 1);
  ASSERT_FALSE(made.ok());
  EXPECT_NE(std::string(made.status().message()).find("round-robin"), std::string::npos);
}

TEST(LoadTicket, GivesBackExactlyWhatItTook) {
  auto load = std::make_shared<OutstandingLoad>();
  {
    LoadTicket first(load, 100);
    LoadTicket second(load, 50);
    EXPECT_EQ(load->uncached_tokens, 150);
    first.PrefillDone();
    first.PrefillDone();
    EXPECT_EQ(load->uncached_tokens, 50);
    EXPECT_EQ(load->requests, 2);
    second = std::move(first);
    EXPECT_EQ(load->uncached_tokens, 0);
    EXPECT_EQ(load->requests, 1);
  }
  EXPECT_EQ(load->uncached_tokens, 0);
  EXPECT_EQ(load->requests, 0);
}

TEST(BreakEven, IsWhereTheHandoffsFixedCostIsGained) {
  EXPECT_EQ(BreakEvenTokens(1000, 1e6, 4), 4u) << "1 ms a token here, nearly nothing on the way";
  EXPECT_EQ(BreakEvenTokens(1000, 2000, 4), 8u) << "the transfer takes half of what computing takes";
  EXPECT_EQ(BreakEvenTokens(100000, 1e6, 4), 64u) << "cheap to compute: the most there is";
  EXPECT_EQ(BreakEvenTokens(1000, 1000, 4), 64u) << "a transfer that gains nothing";
  EXPECT_EQ(BreakEvenTokens(0, 1e6, 4), 0u) << "not known yet";
}

}  // namespace
}  // namespace baton::router
