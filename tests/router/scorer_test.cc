#include <gtest/gtest.h>

#include "router/policy/load_share.h"
#include "router/policy/policies.h"
#include "router/policy/predicted_time_cost.h"

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

// Every worker alone: what there is without a handoff.
size_t Choose(Scorer& scorer, const std::vector<Candidate>& workers, uint32_t tokens) {
  const RouteQuestion question{workers, tokens, nullptr};
  return scorer.Choose(question, OptionsOf(question));
}
std::vector<Cost> Table(const Scorer& scorer, const std::vector<Candidate>& workers, uint32_t tokens, size_t* chosen,
                        const HandoffTerms* terms = nullptr) {
  const RouteQuestion question{workers, tokens, terms};
  return scorer.Table(question, OptionsOf(question), chosen);
}

TEST(PredictedTime, AHitBeatsAShortQueueUntilTheQueueCostsMore) {
  auto scorer = MakePredictedTime(1);
  std::vector<Candidate> workers = {Worker(0), Worker(1)};
  workers[1].cached_tokens = 900;
  workers[1].queued_tokens = 1000;
  EXPECT_EQ(Choose(*scorer, workers, 1000), 1u) << "1,000 ms of queue against 2 · 900 ms of prefill";
  workers[1].queued_tokens = 2000;
  EXPECT_EQ(Choose(*scorer, workers, 1000), 0u);
}

TEST(PredictedTime, CostIsTheSumOfItsTermsInMilliseconds) {
  auto scorer = MakePredictedTime(1);
  std::vector<Candidate> workers = {Worker(0)};
  workers[0].queued_tokens = 500;
  workers[0].cached_tokens = 100;
  workers[0].running = 8;
  size_t chosen = 9;
  const std::vector<Cost> table = Table(*scorer, workers, 600, &chosen);
  ASSERT_EQ(table.size(), 1u);
  EXPECT_EQ(chosen, 0u);
  EXPECT_DOUBLE_EQ(table[0].queue_ms, 500);
  EXPECT_DOUBLE_EQ(table[0].prefill_ms, 2 * 500);
  EXPECT_DOUBLE_EQ(table[0].decode_slowdown_ms, 64 * 10 / 2.0) << "the batch is half full";
  EXPECT_DOUBLE_EQ(table[0].stall_ms, 8 * 40) << "each of the answers waits for it, as long as four steps at most";
  EXPECT_DOUBLE_EQ(table[0].pressure_ms, 0);
  EXPECT_DOUBLE_EQ(table[0].total_ms, 2140);
}

TEST(PredictedTime, APromptStallsTheFewestAnswers) {
  std::vector<Candidate> workers = {Worker(0), Worker(1)};
  workers[0].running = 2;
  workers[1].prefill_tokens_per_s = 985;  // a little slower, as far as is known
  EXPECT_EQ(Choose(*MakePredictedTime(5), workers, 1000), 1u);
  workers[0].cached_tokens = 900;
  EXPECT_EQ(Choose(*MakePredictedTime(5), workers, 1000), 0u) << "100 tokens stall them little";
}

TEST(PredictedTime, AWhollyCachedPromptCostsOneToken) {
  auto scorer = MakePredictedTime(1);
  std::vector<Candidate> workers = {Worker(0)};
  workers[0].cached_tokens = 600;
  size_t chosen = 9;
  EXPECT_DOUBLE_EQ(Table(*scorer, workers, 600, &chosen)[0].prefill_ms, 2 * 1);
}

TEST(PredictedTime, SequencesBeyondTheBatchCostWholeSteps) {
  auto scorer = MakePredictedTime(1);
  std::vector<Candidate> workers = {Worker(0), Worker(1)};
  workers[0].running = 15;
  workers[1].running = 17;
  size_t chosen = 9;
  const std::vector<Cost> table = Table(*scorer, workers, 10, &chosen);
  EXPECT_DOUBLE_EQ(table[0].decode_slowdown_ms, 64 * 10 * 15 / 16.0) << "the batch is just full";
  EXPECT_DOUBLE_EQ(table[1].decode_slowdown_ms, 64 * 10 + 10 * 8 * 2) << "two must end first";
}

TEST(PredictedTime, LambdaWeighsTheWorkARequestBrings) {
  std::vector<Candidate> workers = {Worker(0), Worker(1)};
  workers[1].cached_tokens = 1000;
  workers[1].queued_tokens = 1500;
  EXPECT_EQ(Choose(*MakePredictedTime(0), workers, 1000), 0u);
  EXPECT_EQ(Choose(*MakePredictedTime(2), workers, 1000), 1u);
}

TEST(PredictedTime, AFasterWorkerAFullerBatchAndScarceBlocksCount) {
  auto scorer = MakePredictedTime(1);
  std::vector<Candidate> workers = {Worker(0), Worker(1)};
  workers[1].prefill_tokens_per_s = 4000;
  EXPECT_EQ(Choose(*scorer, workers, 1000), 1u);
  workers = {Worker(0), Worker(1)};
  workers[0].running = 16;
  EXPECT_EQ(Choose(*scorer, workers, 10), 1u);
  workers = {Worker(0), Worker(1)};
  workers[1].kv_used_fraction = 1;
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Choose(*scorer, workers, 1000), 0u);
}

TEST(PredictedTime, TiesGoInTurn) {
  auto scorer = MakePredictedTime(1);
  const std::vector<Candidate> workers = {Worker(0), Worker(1), Worker(2)};
  std::vector<int> taken(3);
  for (int i = 0; i < 300; ++i) ++taken[Choose(*scorer, workers, 100)];
  EXPECT_EQ(taken, (std::vector<int>{100, 100, 100}));
}

TEST(PredictedTime, ATableTakesNoTurn) {
  auto scorer = MakePredictedTime(1);
  const std::vector<Candidate> workers = {Worker(0), Worker(1)};
  size_t shown = 0;
  Table(*scorer, workers, 100, &shown);
  Table(*scorer, workers, 100, &shown);
  EXPECT_EQ(Choose(*scorer, workers, 100), shown);
}

TEST(PredictedTime, UnknownRatesStillGiveAnOrder) {
  auto scorer = MakePredictedTime(1);
  std::vector<Candidate> workers = {Candidate{WorkerId{0, 1}}, Candidate{WorkerId{1, 2}}};
  workers[0].queued_tokens = 100;
  EXPECT_EQ(Choose(*scorer, workers, 10), 1u);
}

TEST(RoundRobin, GoesBySlotEvenWhenWorkersComeAndGo) {
  auto scorer = MakeRoundRobin();
  const std::vector<Candidate> all = {Worker(2), Worker(0), Worker(1)};
  const std::vector<Candidate> two = {Worker(0), Worker(2)};
  auto slot = [&](const std::vector<Candidate>& from) { return from[Choose(*scorer, from, 1)].id.index; };
  EXPECT_EQ(slot(all), 0);
  EXPECT_EQ(slot(all), 1);
  EXPECT_EQ(slot(two), 2);
  EXPECT_EQ(slot(two), 0);
  size_t shown = 0;
  EXPECT_EQ(Table(*scorer, all, 1, &shown).size(), 3u);
  EXPECT_EQ(all[shown].id.index, 1);
  EXPECT_EQ(slot(all), 1);
  EXPECT_EQ(slot(all), 2);
  EXPECT_EQ(slot(all), 0) << "the lowest slot after the highest, wherever it is listed";
}

TEST(MakeScorer, AnUnknownPolicyNamesWhatThereIs) {
  const auto made = MakeScorer("best", 1);
  ASSERT_FALSE(made.ok());
  EXPECT_NE(std::string(made.status().message()).find("round-robin"), std::string::npos);
}

TEST(LoadShare, GivesBackExactlyWhatItTook) {
  FakeClock clock;
  auto load = std::make_shared<OutstandingLoad>(clock);
  {
    LoadShare first(load, 100, 120);
    LoadShare second(load, 50, 50);
    EXPECT_EQ(load->QueuedTokens(0), 150);
    EXPECT_EQ(load->PromptTokens(), 170);
    first.PrefillDone();
    first.PrefillDone();
    EXPECT_EQ(load->QueuedTokens(0), 50);
    EXPECT_EQ(load->PromptTokens(), 50);
    EXPECT_EQ(load->requests(), 2);
    second = std::move(first);
    EXPECT_EQ(load->QueuedTokens(0), 0);
    EXPECT_EQ(load->requests(), 1);
    LoadShare third(load, 7), moved(std::move(third));
    EXPECT_EQ(load->QueuedTokens(0), 7);
  }
  EXPECT_EQ(load->QueuedTokens(0), 0);
  EXPECT_EQ(load->PromptTokens(), 0);
  EXPECT_EQ(load->requests(), 0);
}

TEST(LoadShare, TheOldestPromptShrinksAtTheWorkersRate) {
  FakeClock clock;
  auto load = std::make_shared<OutstandingLoad>(clock);
  LoadShare first(load, 1000);
  clock.Advance(std::chrono::seconds(1));
  LoadShare second(load, 500), third(load, 300);
  EXPECT_EQ(load->QueuedTokens(400), 1400);
  EXPECT_EQ(load->QueuedTokens(0), 1800) << "the rate is not known";
  clock.Advance(std::chrono::seconds(5));
  EXPECT_EQ(load->QueuedTokens(400), 800) << "it has no less than nothing left, and the next one has not begun";
  first.PrefillDone();
  EXPECT_EQ(load->QueuedTokens(400), 800);
  clock.Advance(std::chrono::seconds(1));
  EXPECT_EQ(load->QueuedTokens(400), 400);
  third.Release();
  EXPECT_EQ(load->QueuedTokens(400), 100) << "one that left from the middle changes nothing for the oldest";
  second.Release();
  EXPECT_EQ(load->QueuedTokens(400), 0);
  clock.Advance(std::chrono::seconds(9));
  LoadShare late(load, 100);
  EXPECT_EQ(load->QueuedTokens(400), 100) << "an idle worker is no head start";
}

TEST(LoadShare, OfThePromptsUnderWayTheOneThatBeginsMostAlikeCounts) {
  FakeClock clock;
  auto load = std::make_shared<OutstandingLoad>(clock);
  const auto keys = [](std::vector<uint64_t> k) { return std::make_shared<const std::vector<uint64_t>>(std::move(k)); };
  LoadShare alike(load, 10, 48, keys({1, 2, 3})), less(load, 10, 48, keys({1, 7, 8}));
  EXPECT_EQ(load->UnitsUnderWay(std::vector<uint64_t>{1, 2, 3}), 3u);
}

TEST(LoadShare, APromptUnderWayWillBeHeld) {
  FakeClock clock;
  auto load = std::make_shared<OutstandingLoad>(clock);
  const auto keys = [](std::vector<uint64_t> k) { return std::make_shared<const std::vector<uint64_t>>(std::move(k)); };
  const auto under_way = [&load](const std::vector<uint64_t>& k) { return load->UnitsUnderWay(k); };
  EXPECT_EQ(under_way({1, 2, 3}), 0u);
  LoadShare none(load, 10), short_one(load, 10, 32, keys({1, 2})), long_one(load, 10, 80, keys({1, 2, 3, 4, 5}));
  LoadShare decodes(load, 0, 96, keys({9, 8}));
  EXPECT_EQ(under_way({1, 2, 3, 4, 5, 6}), 5u);
  EXPECT_EQ(under_way({1, 2, 3, 4}), 4u);
  EXPECT_EQ(under_way({1, 2, 3, 7, 8, 9}), 3u);
  EXPECT_EQ(under_way({1}), 1u);
  for (uint32_t same = 1; same <= 5; ++same) {
    std::vector<uint64_t> other = {1, 2, 3, 4, 5, 6};
    for (size_t i = same; i < other.size(); ++i) other[i] += 100;
    EXPECT_EQ(under_way(other), same);
  }
  EXPECT_EQ(under_way({2, 3}), 0u);
  EXPECT_EQ(under_way({}), 0u);
  EXPECT_EQ(under_way({9, 8}), 0u) << "it computes no prompt";
  long_one.PrefillDone();
  EXPECT_EQ(under_way({1, 2, 3, 7}), 2u) << "what has been computed is told by events";
}

// Two prefill workers and two decode workers, as a fleet lists them.
std::vector<Candidate> TwoOfEach() {
  std::vector<Candidate> workers = {Worker(0), Worker(1), Worker(2), Worker(3)};
  workers[0].role = workers[1].role = WorkerRole::kPrefill;
  workers[2].role = workers[3].role = WorkerRole::kDecode;
  return workers;
}
// 1e6 tokens per second between all, but from 0 to 2: `slow`.
HandoffTerms Terms(double slow = 1e6) {
  return {.handoff_ms = 4, .tokens_per_s = [slow](size_t p, size_t d) { return p == 0 && d == 2 ? slow : 1e6; }};
}

TEST(RouteOptions, AreWhoeverDecodesAloneAndEveryPair) {
  std::vector<Candidate> workers = TwoOfEach();
  workers.push_back(Worker(4));
  const HandoffTerms terms = Terms();
  EXPECT_EQ(
      OptionsOf({workers, 1000, &terms}),
      (std::vector<RouteOption>{{2, 0, 1e6, 4, 4}, {2, 1, 1e6, 4, 4}, {3, 0, 1e6, 4, 4}, {3, 1, 1e6, 4, 4}, {4}}));
  EXPECT_EQ(OptionsOf({workers, 1000, nullptr}), (std::vector<RouteOption>{{2}, {3}, {4}})) << "no handoff";
  workers.resize(2);
  EXPECT_TRUE(OptionsOf({workers, 1000, &terms}).empty()) << "nobody decodes";
}

TEST(RouteOptions, ADecodeWorkerServesAloneWhatBreaksEvenWithEveryPrefillWorker) {
  std::vector<Candidate> workers = TwoOfEach();
  workers[3].cached_tokens = 997;
  const auto alone = [&](const HandoffTerms& terms) {
    std::vector<size_t> out;
    for (const RouteOption& o : OptionsOf({workers, 1000, &terms})) {
      if (!o.prefill) out.push_back(o.worker);
    }
    return out;
  };
  EXPECT_EQ(alone(Terms()), std::vector<size_t>{3}) << "3 tokens lack, 4 break even";
  workers[3].cached_tokens = 996;
  EXPECT_EQ(alone(Terms()), std::vector<size_t>{3}) << "4 lack: it just breaks even";
  workers[3].cached_tokens = 995;
  EXPECT_EQ(alone(Terms()), std::vector<size_t>{});
  workers[3].cached_tokens = 997;
  workers[2].cached_tokens = 994;
  EXPECT_EQ(alone(Terms(2000)), std::vector<size_t>{3}) << "6 lack: 8 break even with worker 0, 4 with worker 1";
  HandoffTerms last_is_slow = Terms();
  last_is_slow.tokens_per_s = [](size_t p, size_t d) { return p == 1 && d == 2 ? 2000 : 1e6; };
  EXPECT_EQ(alone(last_is_slow), std::vector<size_t>{3}) << "nor when the last one breaks even";
  HandoffTerms fixed = Terms();
  fixed.local_prefill_max_tokens = 0;
  EXPECT_EQ(alone(fixed), std::vector<size_t>{});
  fixed.local_prefill_max_tokens = 1000;
  EXPECT_EQ(alone(fixed), (std::vector<size_t>{2, 3}));
}

TEST(RouteOptions, EqualNumericsComeFirstWhereThereIsAChoice) {
  std::vector<Candidate> workers = TwoOfEach();
  workers[0].numerics = workers[2].numerics = "a", workers[1].numerics = "b", workers[3].numerics = "c";
  workers.push_back(Worker(4));
  workers[4].numerics = "b";
  const HandoffTerms terms = Terms();
  const auto pairs = [&](const NumericsRule& rule) {
    std::vector<std::pair<size_t, size_t>> out;
    for (const RouteOption& o : OptionsOf({workers, 1000, &terms, rule}))
      out.emplace_back(o.prefill.value_or(9), o.worker);
    return out;
  };
  using Pairs = std::vector<std::pair<size_t, size_t>>;
  EXPECT_EQ(pairs({}), (Pairs{{0, 2}, {0, 3}, {1, 3}, {9, 4}})) << "worker 3 has nobody of its own";
  EXPECT_EQ(pairs({"", true}), (Pairs{{0, 2}, {9, 3}, {9, 4}})) << "and so computes alone";
  EXPECT_EQ(pairs({"b", false}), (Pairs{{9, 4}}));
  EXPECT_EQ(pairs({"c", false}), pairs({})) << "worker 3 alone is no option, nobody else has these bits";
  EXPECT_EQ(pairs({"c", true}), (Pairs{{9, 3}}));
  EXPECT_EQ(pairs({"d", true}), Pairs{});
}

TEST(PredictedTime, APairIsChosenAsOne) {
  std::vector<Candidate> workers = TwoOfEach();
  workers[1].queued_tokens = 300;  // 300 ms more than worker 0
  workers[3].running = 4;          // 64 tokens take 160 ms more than with worker 2
  const auto pair = [&](double slow) {
    const HandoffTerms terms = Terms(slow);
    const RouteOption o = MakePredictedTime(1)->Answer({workers, 1000, &terms}).value();
    return std::pair{o.prefill.value_or(99), o.worker};
  };
  EXPECT_EQ(pair(1e6), (std::pair<size_t, size_t>{0, 2}));
  EXPECT_EQ(pair(2000), (std::pair<size_t, size_t>{0, 3})) << "500 ms of transfer against 1 ms and 160 ms of decodes";
  workers[3].running = 20;  // a full batch takes 640 ms, and 5 sequences must end: 400 ms
  EXPECT_EQ(pair(1e6), (std::pair<size_t, size_t>{0, 2}));
  EXPECT_EQ(pair(2000), (std::pair<size_t, size_t>{1, 2})) << "neither the best prefill worker nor the best path alone";
}

TEST(PredictedTime, APairsCostHasTheTermsOfBoth) {
  std::vector<Candidate> workers = TwoOfEach();
  workers[0].queued_tokens = 100, workers[0].cached_tokens = 400, workers[0].running = 9;
  workers[2].queued_tokens = 700, workers[2].cached_tokens = 500, workers[2].running = 8;
  const HandoffTerms terms = Terms(1e5);
  size_t chosen = 9;
  const Cost cost = Table(*MakePredictedTime(1), workers, 1000, &chosen, &terms)[0];
  EXPECT_DOUBLE_EQ(cost.queue_ms, 100);
  EXPECT_DOUBLE_EQ(cost.prefill_ms, 2 * 600);
  EXPECT_DOUBLE_EQ(cost.transfer_ms, 5) << "of the 500 tokens that the decode worker lacks";
  EXPECT_DOUBLE_EQ(cost.handoff_ms, 4);
  EXPECT_DOUBLE_EQ(cost.decode_slowdown_ms, 320)
      << "of the decode worker; prompts in its queue do not wait for a transfer";
  EXPECT_DOUBLE_EQ(cost.stall_ms, 0) << "no answers run on a prefill worker";
  EXPECT_DOUBLE_EQ(cost.total_ms, 100 + 1200 + 5 + 4 + 320);
  workers[0].kv_used_fraction = 0.95, workers[2].kv_used_fraction = 1;
  const Cost full = Table(*MakePredictedTime(1), workers, 1000, &chosen, &terms)[0];
  EXPECT_NEAR(full.pressure_ms, 1010 / 2.0 + 1010, 1e-6) << "scarce blocks count on both sides";
  EXPECT_NEAR(full.total_ms, cost.total_ms + full.pressure_ms, 1e-6);
}

TEST(PredictedTime, AWorkerAloneIsBesideThePairs) {
  std::vector<Candidate> workers = TwoOfEach();
  workers.push_back(Worker(4));
  const HandoffTerms terms = Terms();
  const RouteQuestion question{workers, 1000, &terms};
  const std::vector<RouteOption> options = OptionsOf(question);
  auto scorer = MakePredictedTime(1);
  EXPECT_EQ(options[scorer->Choose(question, options)], RouteOption{4}) << "no handoff, no transfer";
  workers[4].queued_tokens = 100;
  EXPECT_TRUE(options[scorer->Choose(question, options)].prefill.has_value());
}

TEST(PredictedTime, TiesOfPairsGoInTurnOnBothSides) {
  const std::vector<Candidate> workers = TwoOfEach();
  const HandoffTerms terms = Terms();
  const RouteQuestion question{workers, 1000, &terms};
  const std::vector<RouteOption> options = OptionsOf(question);
  for (auto& scorer : {MakePredictedTime(1), MakeRoundRobin()}) {
    std::vector<int> taken(4);
    for (int i = 0; i < 40; ++i) {
      const RouteOption& o = options[scorer->Choose(question, options)];
      ++taken[o.worker], ++taken[o.prefill.value()];
    }
    EXPECT_EQ(taken, (std::vector<int>{20, 20, 20, 20}));
  }
}

TEST(RoundRobin, TakesADecodeWorkerAloneWhereThatIsAnOption) {
  std::vector<Candidate> workers = TwoOfEach();
  workers[3].cached_tokens = 999;
  const HandoffTerms terms = Terms();
  const RouteQuestion question{workers, 1000, &terms};
  const std::vector<RouteOption> options = OptionsOf(question);
  auto scorer = MakeRoundRobin();
  const auto next = [&] { return options[scorer->Choose(question, options)]; };
  EXPECT_EQ(next(), (RouteOption{2, 0, 1e6, 4, 4}));
  EXPECT_EQ(next(), RouteOption{3});
  EXPECT_EQ(next(), (RouteOption{2, 1, 1e6, 4, 4}));
}

TEST(BreakEven, IsWhereTheHandoffsFixedCostIsGained) {
  EXPECT_EQ(BreakEvenTokens(1000, 1e6, 4), 4u) << "1 ms a token here, nearly nothing on the way";
  EXPECT_EQ(BreakEvenTokens(1000, 2000, 4), 8u) << "the transfer takes half of what computing takes";
  EXPECT_EQ(BreakEvenTokens(100000, 1e6, 4), 64u) << "cheap to compute: the most there is";
  EXPECT_EQ(BreakEvenTokens(1000, 1000, 4), 64u) << "a transfer that gains nothing";
  EXPECT_EQ(BreakEvenTokens(0, 1e6, 4), 0u) << "not known yet";
}

TEST(PredictedCost, AWorkerThatHasComputedNothingIsTakenToBeAsFastAsTheOthers) {
  std::vector<Candidate> candidates(3);
  candidates[0].prefill_tokens_per_s = 40'000;
  candidates[2].prefill_tokens_per_s = 60'000;
  GuessUnknownRates(absl::MakeSpan(candidates));
  EXPECT_EQ(candidates[0].prefill_tokens_per_s, 40'000);
  EXPECT_EQ(candidates[1].prefill_tokens_per_s, 50'000);
  candidates[0].decode_step_ms = 8;
  GuessUnknownRates(absl::MakeSpan(candidates));
  EXPECT_EQ(candidates[2].decode_step_ms, 8);
  std::vector<Candidate> nobody(2);
  GuessUnknownRates(absl::MakeSpan(nobody));
  EXPECT_EQ(nobody[0].prefill_tokens_per_s, 0);
}

TEST(PredictedTime, DecodeWorkersThatHaveNotTakenAStepYetShareWhatComes) {
  std::vector<Candidate> workers = TwoOfEach();
  for (Candidate& c : workers) c.decode_step_ms = 0, c.max_num_seqs = 256;
  HandoffTerms terms = Terms();
  // One path was measured at less than half of the other's rate, as first tries often are.
  terms.tokens_per_s = [](size_t, size_t d) { return d == 2 ? 3e6 : 1e6; };
  const RouteQuestion question{workers, 400, &terms};
  const std::vector<RouteOption> options = OptionsOf(question);
  auto scorer = MakePredictedTime(1);
  for (int i = 0; i < 8; ++i) ++workers[options[scorer->Choose(question, options)].worker].running;
  EXPECT_GE(workers[3].running, 3);
  EXPECT_GE(workers[2].running, 3);
}

TEST(RouteOptions, APairSharesAVersionOfTheKvProtocolAndWhoHasNonePrefillsItself) {
  std::vector<Candidate> workers = {Worker(0), Worker(1), Worker(2), Worker(3)};
  workers[0].role = workers[1].role = WorkerRole::kPrefill;
  workers[2].role = workers[3].role = WorkerRole::kDecode;
  workers[1].kv_protocol = {5, 6}, workers[2].kv_protocol = {6, 7}, workers[3].kv_protocol = {8, 8};
  workers[1].numerics = "other";
  const HandoffTerms terms{4, 0, [](size_t, size_t) { return 1e6; }};
  const std::vector<RouteOption> options = OptionsOf({workers, 1000, &terms});
  ASSERT_EQ(options.size(), 2u);
  EXPECT_EQ(options[0].worker, 2u);
  EXPECT_EQ(options[0].prefill, 1u) << "those that share none are no reason to leave it out for its numerics";
  EXPECT_EQ(options[1].worker, 3u);
  EXPECT_FALSE(options[1].prefill) << "it is alone";
}

}  // namespace
}  // namespace baton::router
