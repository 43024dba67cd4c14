// The policies that take the worker that decodes first: least-loaded, power-of-two, longest-prefix and session.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <set>
#include <string>

#include "common/str_cat.h"
#include "router/policy/policies.h"

namespace baton::router {
namespace {

Candidate NamedWorker(int slot, WorkerRole role = WorkerRole::kBoth) {
  static const auto* names = [] {
    auto* all = new std::vector<std::string>;
    for (int i = 0; i < 64; ++i) all->push_back(StrCat("worker-", i));
    return all;
  }();
  Candidate c;
  c.id = WorkerId{slot, static_cast<uint64_t>(slot) + 1};
  c.role = role;
  c.name = (*names)[static_cast<size_t>(slot)];
  c.max_num_seqs = 16;
  c.prefill_tokens_per_s = 1000;
  c.decode_step_ms = 10;
  return c;
}
std::vector<Candidate> Workers(int n) {
  std::vector<Candidate> out;
  for (int i = 0; i < n; ++i) out.push_back(NamedWorker(i));
  return out;
}
/// Two that prefill (0, 1) and two that decode (2, 3).
std::vector<Candidate> TwoNamedOfEach() {
  return {NamedWorker(0, WorkerRole::kPrefill), NamedWorker(1, WorkerRole::kPrefill),
          NamedWorker(2, WorkerRole::kDecode), NamedWorker(3, WorkerRole::kDecode)};
}
HandoffTerms EvenTerms() {
  return {4, 0, [](size_t, size_t) { return 1e5; }, 1e5};
}
size_t Alone(Scorer& scorer, const std::vector<Candidate>& workers, std::string_view session = "") {
  return scorer.Answer({workers, 1000, nullptr, {}, session})->worker;
}
/// Who prefills, who decodes.
std::pair<size_t, size_t> Pair(Scorer& scorer, const std::vector<Candidate>& workers, std::string_view session = "") {
  const HandoffTerms terms = EvenTerms();
  const auto answer = scorer.Answer({workers, 1000, &terms, {}, session});
  return {answer->prefill.value(), answer->worker};
}

TEST(LeastLoaded, CountsRequestsByTheBatchAndPromptsByTheirTime) {
  auto scorer = MakeLeastLoaded();
  std::vector<Candidate> workers = Workers(2);
  workers[0].running = 4, workers[1].running = 6;
  EXPECT_EQ(Alone(*scorer, workers), 0u);
  workers[1].max_num_seqs = 64;
  EXPECT_EQ(Alone(*scorer, workers), 1u) << "six of 64 are less than four of 16";
  workers = TwoNamedOfEach();
  workers[0].queued_tokens = 900, workers[1].queued_tokens = 1000;
  workers[2].running = 3, workers[3].running = 2;
  EXPECT_EQ(Pair(*scorer, workers), std::pair(size_t{0}, size_t{3}));
  workers[1].prefill_tokens_per_s = 2000;
  EXPECT_EQ(Pair(*scorer, workers), std::pair(size_t{1}, size_t{3})) << "1,000 tokens at 2,000/s are sooner over";
}

TEST(LeastLoaded, EqualsGoInTurnAndCachesDoNotCount) {
  auto scorer = MakeLeastLoaded();
  std::vector<Candidate> workers = Workers(3);
  workers[1].cached_tokens = 999;
  std::array<int, 3> taken{};
  for (int i = 0; i < 30; ++i) ++taken[Alone(*scorer, workers)];
  EXPECT_EQ(taken, (std::array{10, 10, 10}));
}

TEST(PowerOfTwo, TheMostLoadedOneIsNeverTakenAndTheRestEvenly) {
  auto scorer = MakePowerOfTwo();
  std::vector<Candidate> workers = Workers(5);
  workers[3].running = 9;
  std::array<int, 5> taken{};
  for (int i = 0; i < 4000; ++i) ++taken[Alone(*scorer, workers)];
  EXPECT_EQ(taken[3], 0) << "one of the two that are drawn is another";
  for (const size_t i : {0, 1, 2, 4}) {
    EXPECT_GT(taken[i], 850) << i;
    EXPECT_LT(taken[i], 1150) << i;
  }
}

TEST(PowerOfTwo, IsNotTheLeastLoadedOfAll) {
  auto scorer = MakePowerOfTwo();
  std::vector<Candidate> workers = Workers(8);
  for (size_t i = 1; i < 8; ++i) workers[i].running = 1;
  int idle = 0;
  for (int i = 0; i < 1000; ++i) idle += Alone(*scorer, workers) == 0;
  EXPECT_NEAR(idle, 250, 60) << "it is one of two drawn from eight";
}

TEST(LongestPrefix, TakesWhoHoldsMostOnBothSides) {
  auto scorer = MakeLongestPrefix();
  std::vector<Candidate> workers = TwoNamedOfEach();
  workers[1].cached_tokens = 512, workers[1].queued_tokens = 5000;
  workers[2].cached_tokens = 640, workers[2].running = 15;
  EXPECT_EQ(Pair(*scorer, workers), std::pair(size_t{1}, size_t{2}));
  workers[0].cached_tokens = 512;
  workers[3].cached_tokens = 640;
  EXPECT_EQ(Pair(*scorer, workers), std::pair(size_t{0}, size_t{3})) << "of equals the less loaded";
}

TEST(LongestPrefix, WhatEverybodySharesDrawsNobody) {
  auto scorer = MakeLongestPrefix();
  std::vector<Candidate> workers = Workers(2);
  workers[0].running = 1;
  workers[0].cached_tokens = 500;
  EXPECT_EQ(Alone(*scorer, workers), 1u) << "half of a prompt of 1,000 is no hit";
  workers[0].cached_tokens = 501;
  EXPECT_EQ(Alone(*scorer, workers), 0u);
}

TEST(LongestPrefix, LoadsFarApartDecide) {
  auto scorer = MakeLongestPrefix();
  std::vector<Candidate> workers = Workers(2);
  workers[0].cached_tokens = 900;
  workers[0].running = 42, workers[1].running = 10;
  EXPECT_EQ(Alone(*scorer, workers), 0u) << "32 apart";
  workers[0].running = 43;
  EXPECT_EQ(Alone(*scorer, workers), 1u);
  workers[0].running = 440, workers[1].running = 400;
  EXPECT_EQ(Alone(*scorer, workers), 0u) << "1.1 times as many";
  workers[0].running = 441;
  EXPECT_EQ(Alone(*scorer, workers), 1u);
}

TEST(BySession, ASessionStaysAndOnlyTheSessionsOfOneThatLeavesMove) {
  auto scorer = MakeBySession(1);
  const std::vector<Candidate> all = Workers(8);
  std::map<std::string, std::string_view> before;
  std::map<std::string_view, int> share;
  for (int s = 0; s < 1000; ++s) {
    const std::string session = StrCat("session ", s);
    before[session] = all[Alone(*scorer, all, session)].name;
    ++share[before[session]];
  }
  for (const Candidate& c : all) EXPECT_NEAR(share[c.name], 125, 45) << c.name;
  std::vector<Candidate> fewer = all;
  std::reverse(fewer.begin(), fewer.end());  // another order, other slots, other load, another router
  std::erase_if(fewer, [](const Candidate& c) { return c.name == "worker-5"; });
  for (Candidate& c : fewer) c.id.index += 7, c.running = c.id.index;
  auto other = MakeBySession(1);
  for (const auto& [session, name] : before) {
    const std::string_view now = fewer[Alone(*other, fewer, session)].name;
    if (name == "worker-5") {
      EXPECT_NE(now, name);
    } else {
      EXPECT_EQ(now, name) << session;
    }
  }
}

TEST(BySession, BothSidesOfAPairStay) {
  auto scorer = MakeBySession(1);
  std::vector<Candidate> workers = TwoNamedOfEach();
  std::set<std::pair<size_t, size_t>> seen;
  for (int s = 0; s < 64; ++s) {
    const std::string session = StrCat(s);
    const auto first = Pair(*scorer, workers, session);
    workers[first.first].queued_tokens += 100;
    EXPECT_EQ(Pair(*scorer, workers, session), first);
    seen.insert(first);
  }
  EXPECT_EQ(seen.size(), 4u);
}

TEST(BySession, WithoutASessionByPredictedTime) {
  auto scorer = MakeBySession(1);
  std::vector<Candidate> workers = Workers(3);
  workers[0].queued_tokens = workers[2].queued_tokens = 100;
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Alone(*scorer, workers), 1u);
}

TEST(StagedPolicies, ATableShowsPredictedCostsMarksTheChoiceAndTakesNoTurn) {
  auto scorer = MakeLeastLoaded(1);
  const std::vector<Candidate> workers = Workers(2);
  const RouteQuestion question{workers, 1000, nullptr};
  size_t chosen = 9, again = 9;
  const std::vector<Cost> table = scorer->Table(question, OptionsOf(question), &chosen);
  ASSERT_EQ(table.size(), 2u);
  EXPECT_DOUBLE_EQ(table[0].prefill_ms, 2000);
  scorer->Table(question, OptionsOf(question), &again);
  EXPECT_EQ(again, chosen);
  EXPECT_EQ(Alone(*scorer, workers), chosen);
}

// With more than 256 pairs the options are not written out: the choice is the one among them all the same.
TEST(StagedPolicies, AmongManyPairsTheChoiceIsAsAmongAllOptions) {
  std::mt19937_64 random(7);
  const auto below = [&random](uint64_t n) { return static_cast<int32_t>(random() % n); };
  for (int round = 0; round < 300; ++round) {
    std::vector<Candidate> workers;
    constexpr std::string_view kNumerics[] = {"a", "b", "c"};
    const auto kinds = static_cast<uint64_t>(1 + below(3)), versions = static_cast<uint64_t>(1 + below(3));
    for (int i = 0; i < 42; ++i) {
      Candidate c = NamedWorker(i, i % 14 == 0  ? WorkerRole::kBoth
                                   : i % 2 == 0 ? WorkerRole::kPrefill
                                                : WorkerRole::kDecode);
      c.numerics = kNumerics[below(kinds)];
      c.kv_protocol = {4, static_cast<uint32_t>(4 + below(versions))};
      if (below(versions) == 2) c.kv_protocol = {6, 6};
      c.running = 17 * below(4), c.queued_tokens = 100 * below(3);
      c.cached_tokens = static_cast<uint32_t>(16 * below(4));  // of 52
      workers.push_back(c);
    }
    HandoffTerms terms = EvenTerms();
    terms.local_prefill_max_tokens = below(2) == 0 ? 0 : 20;
    const NumericsRule rule{below(2) == 0 ? "" : kNumerics[below(3)], below(3) == 0};
    const RouteQuestion question{workers, 52, &terms, rule, "some session"};
    ASSERT_TRUE(ManyPairs(question));
    const std::vector<RouteOption> options = OptionsOf(question);
    for (const auto make : {MakeLeastLoaded, MakeLongestPrefix, MakePowerOfTwo, MakeBySession}) {
      const auto answer = make(1)->Answer(question);
      ASSERT_EQ(answer.has_value(), !options.empty()) << round;
      if (!answer) continue;
      EXPECT_EQ(*answer, options[make(1)->Choose(question, options)]) << round;
    }
  }
}

}  // namespace
}  // namespace baton::router
