// The cheapest option without a cost for each pair is the one that a cost for each pair gives.
#include "router/policy/predicted_time_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "router/policy/policies.h"
#include "router/policy/predicted_time_cost.h"

namespace baton::router {
namespace {

constexpr double kLambda = 1;

/// Candidates, and the paths between those that have met.
struct World {
  std::vector<Candidate> workers;
  std::vector<std::vector<MetPeer>> met;
  double unmet_tokens_per_s = 1e5;
  int64_t local_prefill_max_tokens = -1;

  // Refers to this world.
  HandoffTerms Terms() const {
    const auto rate = [this](size_t p, size_t d) {
      const auto found = std::ranges::find(met[p], d, &MetPeer::decode);
      return found == met[p].end() ? unmet_tokens_per_s : found->tokens_per_s;
    };
    return {4, local_prefill_max_tokens, rate, unmet_tokens_per_s,
            [this](size_t p) { return absl::MakeConstSpan(met[p]); }};
  }
  double CostMs(const RouteOption& option, uint32_t tokens) const {
    return PredictedCost(workers, option, tokens, kLambda).total_ms;
  }
};

// Few different values, so that costs are often equal.
World RandomWorld(std::mt19937_64& random, size_t workers) {
  const auto below = [&random](uint64_t n) { return static_cast<int32_t>(random() % n); };
  World world;
  const int numerics = 1 + below(3), versions = 1 + below(4);
  for (size_t i = 0; i < workers; ++i) {
    Candidate c;
    c.id = {static_cast<int32_t>(i)};
    constexpr WorkerRole kRoles[] = {WorkerRole::kPrefill, WorkerRole::kPrefill, WorkerRole::kDecode,
                                     WorkerRole::kDecode, WorkerRole::kBoth};
    c.role = kRoles[below(world.workers.size() % 3 == 0 ? 5 : 4)];
    constexpr std::string_view kNumerics[] = {"a", "b", "c"};
    c.numerics = kNumerics[below(static_cast<uint64_t>(numerics))];
    constexpr ProtocolVersions kSpoken[] = {{4, 4}, {4, 5}, {5, 5}, {5, 6}};
    c.kv_protocol = kSpoken[below(static_cast<uint64_t>(versions))];
    c.queued_tokens = 100 * below(4);
    c.running = 4 * below(6);
    c.max_num_seqs = 16;
    c.kv_used_fraction = below(8) == 0 ? 0.95 : 0.2;
    c.prefill_tokens_per_s = below(4) == 0 ? 0 : 1000 * (1 + below(3));
    c.decode_step_ms = 10;
    c.cached_tokens = static_cast<uint32_t>(below(3) == 0 ? 16 * below(13) : 0);
    world.workers.push_back(c);
  }
  world.met.resize(workers);
  for (size_t p = 0; p < workers; ++p) {
    for (size_t d = 0; d < workers; ++d) {
      if (world.workers[p].role != WorkerRole::kPrefill || world.workers[d].role != WorkerRole::kDecode) continue;
      if (below(3) != 0) continue;
      world.met[p].push_back({d, 1e4 * (1 + below(20))});
    }
  }
  if (below(4) == 0) world.local_prefill_max_tokens = 16 * below(5);
  return world;
}

TEST(CheapestOption, IsTheLeastOfAllOptions) {
  int pairs = 0, alone = 0, none = 0;
  for (uint64_t seed = 1; seed <= 4000; ++seed) {
    std::mt19937_64 random(seed);
    const World world = RandomWorld(random, 1 + random() % 40);
    const HandoffTerms terms = world.Terms();
    RouteQuestion question{world.workers, static_cast<uint32_t>(1 + random() % 200), &terms};
    constexpr std::string_view kSoFar[] = {"", "", "a", "b", "d"};
    question.numerics = {kSoFar[random() % 5], random() % 4 == 0};
    const std::vector<RouteOption> options = OptionsOf(question);
    const auto chosen = CheapestOption(question, kLambda, random() % 1000);
    ASSERT_EQ(chosen.has_value(), !options.empty()) << "seed " << seed;
    none += options.empty() ? 1 : 0;
    if (!chosen) continue;
    ASSERT_TRUE(std::ranges::find(options, *chosen) != options.end())
        << "seed " << seed << ": worker " << chosen->worker << " with " << chosen->prefill.value_or(999);
    double least = world.CostMs(options[0], question.prompt_tokens);
    for (const RouteOption& o : options) least = std::min(least, world.CostMs(o, question.prompt_tokens));
    ASSERT_EQ(world.CostMs(*chosen, question.prompt_tokens), least) << "seed " << seed;
    (chosen->prefill ? pairs : alone) += 1;
  }
  EXPECT_GT(pairs, 500);
  EXPECT_GT(alone, 500);
  EXPECT_GT(none, 50);
}

TEST(CheapestOption, InALargeFleetItCostsNoMoreThanItsTransferAboveTheLeast) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    const World world = RandomWorld(random, 400);
    const HandoffTerms terms = world.Terms();
    const RouteQuestion question{world.workers, 200, &terms};
    const auto chosen = CheapestOption(question, kLambda, random());
    ASSERT_TRUE(chosen.has_value());
    double least = world.CostMs(*chosen, 200);
    const Cost cost = PredictedCost(world.workers, *chosen, 200, kLambda);
    for (const RouteOption& o : OptionsOf(question)) least = std::min(least, world.CostMs(o, 200));
    EXPECT_LE(cost.total_ms - cost.transfer_ms, least) << "seed " << seed;
  }
}

// Of equal ones, too, the one that was chosen until 2026-11-29, when the search began to cost the parts of a pair once.
TEST(CheapestOption, ChoosesAsItAlwaysDid) {
  uint64_t hash = 14695981039346656037ull;
  const auto mix = [&hash](uint64_t value) { hash = (hash ^ value) * 1099511628211ull; };
  for (uint64_t seed = 1; seed <= 4040; ++seed) {
    std::mt19937_64 random(seed);
    const World world = RandomWorld(random, seed <= 4000 ? 1 + random() % 40 : 400);
    const HandoffTerms terms = world.Terms();
    RouteQuestion question{world.workers, static_cast<uint32_t>(1 + random() % 200), &terms};
    constexpr std::string_view kSoFar[] = {"", "", "a", "b", "d"};
    question.numerics = {kSoFar[random() % 5], random() % 4 == 0};
    for (int i = 0; i < 3; ++i) {
      const auto chosen = CheapestOption(question, kLambda, random() % 1000);
      if (!chosen) {
        mix(~uint64_t{0});
        continue;
      }
      mix(chosen->worker);
      mix(chosen->prefill.value_or(99999));
      mix(chosen->local_prefill_tokens);
      mix(static_cast<uint64_t>(chosen->transfer_tokens_per_s));
      mix(static_cast<uint64_t>(chosen->handoff_ms * 8));
    }
  }
  EXPECT_EQ(hash, 0xcc228ce9b054f9eeull);
}

// `n` of each role, idle and alike.
World Alike(size_t n) {
  World world;
  for (size_t i = 0; i < 2 * n; ++i) {
    Candidate c;
    c.id = {static_cast<int32_t>(i)};
    c.role = i < n ? WorkerRole::kPrefill : WorkerRole::kDecode;
    c.max_num_seqs = 16, c.prefill_tokens_per_s = 1000, c.decode_step_ms = 10;
    world.workers.push_back(c);
  }
  world.met.resize(2 * n);
  return world;
}

// More of each side may be in the cheapest pair than are looked at closely, the cheapest of them anywhere among them.
TEST(CheapestOption, OfManyThatAllCostDifferentlyTheCheapestPairIsFound) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    constexpr size_t kEach = 100;
    static_assert(kEach > 2 * kCloseLook);
    World world = Alike(kEach);
    world.unmet_tokens_per_s = 1e4;
    world.local_prefill_max_tokens = 0;
    std::mt19937_64 random(seed);
    std::vector<int32_t> queues(kEach), answers(kEach);
    for (size_t i = 0; i < kEach; ++i) queues[i] = answers[i] = static_cast<int32_t>(i);
    std::ranges::shuffle(queues, random), std::ranges::shuffle(answers, random);
    if (seed % 2 == 0) {  // the first one that is looked at is not let go of
      std::swap(queues[0], *std::ranges::find(queues, 0));
      std::swap(answers[0], *std::ranges::find(answers, 0));
    }
    for (size_t i = 0; i < kEach; ++i) {
      world.workers[i].queued_tokens = queues[i];
      world.workers[kEach + i].running = answers[i], world.workers[kEach + i].max_num_seqs = 1000;
    }
    // Between the cheapest of both sides lies the slowest path.
    const auto prefill = static_cast<size_t>(std::ranges::find(queues, 0) - queues.begin());
    const auto decode = kEach + static_cast<size_t>(std::ranges::find(answers, 0) - answers.begin());
    world.met[prefill].push_back({decode, 1e3});
    const HandoffTerms terms = world.Terms();
    const RouteQuestion question{world.workers, 1000, &terms};
    const auto chosen = CheapestOption(question, kLambda, /*turn=*/0);
    ASSERT_TRUE(chosen.has_value());
    double least = std::numeric_limits<double>::infinity();
    for (const RouteOption& o : OptionsOf(question)) least = std::min(least, world.CostMs(o, 1000));
    EXPECT_DOUBLE_EQ(world.CostMs(*chosen, 1000), least) << "seed " << seed;
  }
}

TEST(CheapestOption, EqualWorkersComeInTurnOnBothSides) {
  for (const size_t n : {20, 32, 33, 100}) {
    const World world = Alike(n);
    const HandoffTerms terms = world.Terms();
    const auto scorer = MakePredictedTime(kLambda);
    std::vector<size_t> taken(2 * n);
    const size_t rounds = n > kCloseLook ? 10 * n : n * n;
    for (size_t i = 0; i < rounds; ++i) {
      const auto chosen = scorer->Answer({world.workers, 1000, &terms});
      ++taken[chosen->worker], ++taken[chosen->prefill.value()];
    }
    EXPECT_EQ(taken, std::vector<size_t>(2 * n, rounds / n)) << n;
  }
}

TEST(CheapestOption, AFewPairsAreCostedOneByOne) {
  World world = Alike(2);
  world.workers[1].queued_tokens = 1;
  HandoffTerms terms = world.Terms();
  bool asked = false;
  terms.met = [&asked](size_t) {
    asked = true;
    return absl::Span<const MetPeer>();
  };
  EXPECT_EQ(MakePredictedTime(kLambda)->Answer({world.workers, 1000, &terms})->prefill, 0u);
  EXPECT_FALSE(asked);
}

}  // namespace
}  // namespace baton::router
