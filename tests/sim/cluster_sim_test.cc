// Seeds of a whole cluster break no promise, and every planted bug is found. Fewer of them: CLUSTER_SIM_SEEDS=100; one:
// CLUSTER_SIM_SEED=17 (with a bug of the handoff in force: CLUSTER_SIM_BUG="skip quarantine").
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "common/check.h"
#include "common/log.h"
#include "common/planted_bug.h"
#include "sim/requests.h"
#include "tests/planted_bugs.h"
#include "tests/sim/checked_cluster.h"
#include "tests/sim/oracle.h"
#include "tests/sim/seeds.h"

namespace baton {

std::string_view PlantedBugInForce() { return sim::Planted(); }

namespace sim {
namespace {

constexpr uint64_t kSeeds = 1000;

TEST(ClusterSim, NoSeedBreaksAPromise) {
  const uint64_t one = Number("CLUSTER_SIM_SEED", ~0ull), seeds = Number("CLUSTER_SIM_SEEDS", kSeeds);
  const char* bug = std::getenv("CLUSTER_SIM_BUG");  // NOLINT(concurrency-mt-unsafe): one thread
  if (bug != nullptr) Planted() = bug;
  const char* level = std::getenv("CLUSTER_SIM_LOG");  // NOLINT(concurrency-mt-unsafe): one thread
  SetLogLevel(level != nullptr ? level : "error");
  FaultCounters sum;
  uint64_t broken = 0;
  int completed = 0, asked = 0, migrations = 0, deaths = 0;
  for (uint64_t seed = one != ~0ull ? one : 0;
       seed < (one != ~0ull ? one + 1 : seeds) && broken < Number("CLUSTER_SIM_BROKEN", 3); ++seed) {
    const ClusterScenario scenario = ClusterScenario::FromSeed(seed);
    CheckedCluster checked(scenario);
    const std::string promise = checked.Run();
    const Cluster& cluster = checked.cluster();
    broken += !promise.empty();
    EXPECT_EQ(promise, "") << scenario.Text() << "\nreplay: CLUSTER_SIM_SEED=" << seed << " cluster_sim_test";
    completed += cluster.completed(), asked += scenario.requests, deaths += cluster.deaths();
    migrations += cluster.wires().migrations;
    const FaultCounters& f = cluster.faults();
    sum.drop += f.drop, sum.duplicate += f.duplicate, sum.delay += f.delay, sum.reorder += f.reorder;
    sum.truncate += f.truncate, sum.corrupt += f.corrupt, sum.slots += f.slots;
  }
  std::cout << completed << " of " << asked << " requests answered; " << deaths << " deaths, " << migrations
            << " migrations; messages dropped " << sum.drop << ", doubled " << sum.duplicate << ", delayed "
            << sum.delay << ", reordered " << sum.reorder << ", truncated " << sum.truncate << ", corrupted "
            << sum.corrupt << "; slots damaged " << sum.slots << "\n";
  if (one != ~0ull || seeds < 100) return;
  EXPECT_GT(completed * 10, asked * 7) << "else little was seen";
  for (int often :
       {deaths, migrations, sum.drop, sum.duplicate, sum.delay, sum.reorder, sum.truncate, sum.corrupt, sum.slots})
    EXPECT_GT(often, 0);
}

/// What happens in a seed, and what its clients get.
std::string TraceOf(uint64_t seed) {
  std::string trace;
  CheckedCluster checked(ClusterScenario::FromSeed(seed));
  checked.WriteTo(trace);
  trace += checked.Run();
  for (const auto& client : checked.cluster().clients()) {
    for (const auto& [index, choice] : client->choices) trace += choice.tokens + choice.text + choice.end;
    trace += client->prompt_scores + client->failure.message;
  }
  return trace;
}

TEST(ClusterSim, ASeedIsReplayedToTheByte) {
  SetLogLevel("error");
  std::vector<uint64_t> seeds(32);
  std::iota(seeds.begin(), seeds.end(), 0);
  for (uint64_t with_canaries : {9, 12, 13}) seeds.push_back(kSeedsOfUpgrades + with_canaries);
  for (uint64_t with_canaries : {1, 78}) seeds.push_back(kSeedsOfOrders + with_canaries);
  for (uint64_t seed : seeds) {
    const std::string once = TraceOf(seed);
    EXPECT_GT(once.size(), 10'000u) << seed;
    EXPECT_TRUE(once == TraceOf(seed)) << "seed " << seed << " went another way the second time";
    EXPECT_FALSE(once == TraceOf(seed + 1)) << seed;
  }
}

/// With the same faults. Masks come before the step that wants them, and after it.
std::string RunWithGrammars(uint64_t seed) {
  return CheckedCluster(ClusterScenario::FromSeed(kSeedsWithGrammars + seed)).Run();
}

TEST(ClusterSim, NoSeedWithGrammarsBreaksAPromise) {
  SetLogLevel("error");
  for (uint64_t seed = 0, broken = 0; seed < Number("CLUSTER_SIM_GRAMMAR_SEEDS", 200) && broken < 3; ++seed) {
    const std::string promise = RunWithGrammars(seed);
    broken += !promise.empty();
    EXPECT_EQ(promise, "") << "replay: CLUSTER_SIM_SEED=" << kSeedsWithGrammars + seed << " cluster_sim_test";
  }
}

/// Workers change their roles while requests run and all else happens.
std::string RunWithChange(uint64_t seed) {
  return CheckedCluster(ClusterScenario::FromSeed(kSeedsOfChange + seed)).Run();
}

TEST(ClusterSim, NoSeedOfChangingRolesBreaksAPromise) {
  SetLogLevel("error");
  int done = 0;
  CheckSeeds(kSeedsOfChange, "CLUSTER_SIM_CHANGE_SEEDS", 200,
             [&](CheckedCluster& checked, const ClusterScenario&) { done += checked.cluster().flips_done(); });
  EXPECT_GT(done, 100) << "else little was seen";
}

/// Workers change their roles, and their releases: who shares no KV protocol is never paired. Canaries prove them.
TEST(ClusterSim, NoSeedOfUpgradesBreaksAPromise) {
  SetLogLevel("error");
  int64_t deaths = 0, flips = 0, prefills = 0, canaries = 0, failed_canaries = 0;
  CheckSeeds(kSeedsOfUpgrades, "CLUSTER_SIM_UPGRADE_SEEDS", 100, [&](CheckedCluster& checked, const ClusterScenario&) {
    const WireCounters wires = checked.cluster().wires();
    deaths += checked.cluster().deaths(), flips += checked.cluster().flips_done(), prefills += wires.prefills;
    canaries += wires.canaries, failed_canaries += wires.failed_canaries;
  });
  std::cout << deaths << " deaths, " << flips << " changes of roles, " << prefills << " prefill legs, " << canaries
            << " canaries answered and " << failed_canaries << " not\n";
  for (int64_t often : {deaths, flips, prefills, canaries}) EXPECT_GT(often, 20) << "else little was seen";
}

/// Workers of several ranks, whose KV goes from rank to rank; some lose one of them. `change`: of their roles, too.
void CheckRanks(uint64_t seeds_of, const char* how_many, bool change) {
  SetLogLevel("error");
  int64_t deaths = 0, flips = 0, prefills = 0, completed = 0, asked = 0;
  CheckSeeds(seeds_of, how_many, 100, [&](CheckedCluster& checked, const ClusterScenario& scenario) {
    const Cluster& cluster = checked.cluster();
    deaths += cluster.deaths(), flips += cluster.flips_done(), prefills += cluster.wires().prefills;
    completed += cluster.completed(), asked += scenario.requests;
  });
  std::cout << completed << " of " << asked << " requests answered; " << deaths << " deaths, " << flips
            << " changes of roles, " << prefills << " prefill legs\n";
  EXPECT_GT(completed * 10, asked * 6) << "else little was seen";
  for (int64_t often : {deaths, prefills}) EXPECT_GT(often, 20) << "else little was seen";
  EXPECT_EQ(flips > 20, change);
}

TEST(ClusterSim, NoSeedOfRanksBreaksAPromise) { CheckRanks(kSeedsOfRanks, "CLUSTER_SIM_RANK_SEEDS", false); }

TEST(ClusterSim, NoSeedOfRanksThatChangeTheirRolesBreaksAPromise) {
  CheckRanks(kSeedsOfRanksThatChange, "CLUSTER_SIM_RANK_CHANGE_SEEDS", true);
}

/// One rank of a worker dies or stands still, and nothing else happens: no client sees it, and nothing stays held.
TEST(ClusterSim, NoSeedOfOneRankBreaksAPromise) {
  SetLogLevel("error");
  std::map<std::string, int> befell;
  CheckSeeds(
      kSeedsOfOneRank, "CLUSTER_SIM_ONE_RANK_SEEDS", 200,
      [&](CheckedCluster& checked, const ClusterScenario& scenario) {
        const char* moment = checked.cluster().rank_moment();
        ++befell[StrCat(scenario.one_fault == OneFault::kLoseRank ? "killed" : "stopped",
                        scenario.rank_prefills ? ", prefill, " : ", decode, ", moment == nullptr ? "never" : moment)];
      });
  for (const char* fault : {"killed", "stopped"}) {
    for (const char* where :
         {"prefill, before", "prefill, during", "decode, before", "decode, during", "decode, after"}) {
      const std::string key = StrCat(fault, ", ", where);
      std::cout << key << " its KV travelled: " << befell[key] << " seeds\n";
      EXPECT_GT(befell[key], 0) << "else little was seen";
    }
  }
}

/// Workers of several ranks change their roles and their releases, two of which share no KV protocol.
TEST(ClusterSim, NoSeedOfRankUpgradesBreaksAPromise) {
  SetLogLevel("error");
  int64_t deaths = 0, flips = 0, prefills = 0, canaries = 0, completed = 0, asked = 0;
  CheckSeeds(kSeedsOfRankUpgrades, "CLUSTER_SIM_RANK_UPGRADE_SEEDS", 100,
             [&](CheckedCluster& checked, const ClusterScenario& scenario) {
               const WireCounters wires = checked.cluster().wires();
               deaths += checked.cluster().deaths(), flips += checked.cluster().flips_done();
               prefills += wires.prefills, canaries += wires.canaries;
               completed += checked.cluster().completed(), asked += scenario.requests;
             });
  std::cout << completed << " of " << asked << " requests answered; " << deaths << " deaths, " << flips
            << " changes of roles, " << prefills << " prefill legs, " << canaries << " canaries answered\n";
  for (int64_t often : {deaths, flips, prefills, canaries}) EXPECT_GT(often, 20) << "else little was seen";
}

/// Operators drain workers, change their roles and take both back in any order, and all else happens: what routers show
/// in the end is what was ordered last.
TEST(ClusterSim, NoSeedOfOrdersBreaksAPromise) {
  SetLogLevel("error");
  int64_t flips = 0, drains = 0;
  CheckSeeds(kSeedsOfOrders, "CLUSTER_SIM_ORDER_SEEDS", 100, [&](CheckedCluster& checked, const ClusterScenario&) {
    flips += checked.cluster().flips_done(), drains += checked.drains_held();
  });
  std::cout << flips << " changes of roles, " << drains << " drains in force at the end\n";
  for (int64_t often : {flips, drains}) EXPECT_GT(often, 20) << "else little was seen";
}

/// Operators take from a cluster all that decode, each one of them: some decode all the same, and who finds none of
/// them is told so.
TEST(ClusterSim, NoSeedOfRivalsBreaksAPromise) {
  SetLogLevel("error");
  int64_t flips = 0, turned_back = 0, completed = 0, asked = 0;
  CheckSeeds(kSeedsOfRivals, "CLUSTER_SIM_RIVAL_SEEDS", 60,
             [&](CheckedCluster& checked, const ClusterScenario& scenario) {
               flips += checked.cluster().flips_done();
               turned_back += checked.cluster().FailedFlips().find("it decodes again") != std::string::npos;
               completed += checked.cluster().completed(), asked += scenario.requests;
             });
  std::cout << completed << " of " << asked << " requests answered; " << flips << " changes of roles, in "
            << turned_back << " seeds one was taken back\n";
  for (int64_t often : {flips, turned_back}) EXPECT_GT(often, 5) << "else little was seen";
}

TEST(ClusterSim, AClusterInWhichNothingDecodesIsNoticed) {
  SetLogLevel("error");
  const auto plant = [](std::string bug) { Planted() = std::move(bug); };
  const auto run = [](uint64_t seed) { return CheckedCluster(ClusterScenario::FromSeed(kSeedsOfRivals + seed)).Run(); };
  EXPECT_TRUE(FindsPlantedBug({"no change is taken back", 0}, 60, plant, run));
}

/// Answers come to where no token is allowed, at their first token or later, and all else happens.
TEST(ClusterSim, NoSeedOfDeadEndsBreaksAPromise) {
  SetLogLevel("error");
  int64_t dead_ends = 0, migrations = 0;
  CheckSeeds(kSeedsOfDeadEnds, "CLUSTER_SIM_DEAD_END_SEEDS", 100, [&](CheckedCluster& checked, const ClusterScenario&) {
    migrations += checked.cluster().wires().migrations;
    for (const auto& client : checked.cluster().clients()) {
      dead_ends += std::ranges::count_if(client->choices, [](const auto& choice) {
        return choice.second.end.find("nothing allowed") != std::string::npos;
      });
    }
  });
  std::cout << dead_ends << " answers came to a dead end; " << migrations << " migrations\n";
  EXPECT_GT(dead_ends, 50) << "else little was seen";
  EXPECT_GT(migrations, 0);
}

/// Clients stop reading and go on, and all else happens.
TEST(ClusterSim, NoSeedOfReadersBreaksAPromise) {
  SetLogLevel("error");
  int unread = 0, several = 0, completed = 0;
  CheckSeeds(kSeedsOfReaders, "CLUSTER_SIM_READER_SEEDS", 100, [&](CheckedCluster& checked, const ClusterScenario&) {
    completed += checked.cluster().completed();
    unread += checked.cluster().most_unread() > 0, several += checked.cluster().most_unread() > 1;
  });
  std::cout << completed << " requests answered; sequences without credit in " << unread << " seeds, several in "
            << several << "\n";
  for (int often : {unread, several}) EXPECT_GT(often, 10) << "else little was seen";
}

/// Routers of few places are full of answers that nobody reads: those of a key that holds most give way, and no others.
TEST(ClusterSim, NoSeedOfKeysBreaksAPromise) {
  SetLogLevel("error");
  int gave_way = 0, completed = 0;
  CheckSeeds(kSeedsOfKeys, "CLUSTER_SIM_KEY_SEEDS", 100, [&](CheckedCluster& checked, const ClusterScenario&) {
    completed += checked.cluster().completed();
    gave_way += static_cast<int>(
        std::ranges::count_if(checked.cluster().clients(), [](const auto& client) { return GaveWay(*client); }));
  });
  std::cout << completed << " requests answered; " << gave_way << " answers gave way\n";
  EXPECT_GT(gave_way, 5) << "else little was seen";
}

std::string RunWithMeddlers(uint64_t seed) {
  return CheckedCluster(ClusterScenario::FromSeed(kSeedsOfMeddlers + seed)).Run();
}

/// Routers cancel, renew and attach legs of each other by their keys: nothing of another's changes.
TEST(ClusterSim, NoSeedOfMeddlersBreaksAPromise) {
  SetLogLevel("error");
  int meddled = 0, completed = 0;
  CheckSeeds(kSeedsOfMeddlers, "CLUSTER_SIM_MEDDLER_SEEDS", 40, [&](CheckedCluster& checked, const ClusterScenario&) {
    meddled += checked.cluster().wires().meddled, completed += checked.cluster().completed();
  });
  std::cout << completed << " requests answered; " << meddled << " words about others' legs\n";
  EXPECT_GT(meddled, 1000) << "else little was seen";
}

/// Seeds that were red, and why.
struct OnceRed {
  uint64_t seed;
  const char* showed;
};
constexpr OnceRed kOnceRed[] = {
    {kSeedsWithGrammars + 1087, "a beam search started over, and what it had done before was not allowed for"},
    {kSeedsOfChange + 1629,
     "a choice of a guided prompt had its first mask late, and computed KV again that was being sent"},
    {kSeedsOfChange + 1940, "the worker that was to decode died, and came back to prefill like all others"},
    {kSeedsOfChange + 2176, "one choice of a prefill leg was preempted, and another was held for ever"},
    {kSeedsOfChange + 3336, "the same"},
    {kSeedsOfChange + 3442, "a worker changed its role when all memory had just to be back"},
    {kSeedsOfUpgrades + 296, "a request lost as many workers to upgrades as it may try, and no upgrade was a fault"},
    {kSeedsOfUpgrades + 1214, "a leg ran in a life of its worker that its router did not know of"},
    {kSeedsOfOrders + 169, "a router that stood still was to have obeyed in the moment in which it went on"}};

TEST(ClusterSim, SeedsThatWereRedAreGreen) {
  SetLogLevel("error");
  for (const OnceRed& once : kOnceRed)
    EXPECT_EQ(CheckedCluster(ClusterScenario::FromSeed(once.seed)).Run(), "") << once.seed << ": " << once.showed;
}

TEST(ClusterSim, AnAnswerThatGoesOnWithoutItsGrammarIsNoticed) {
  SetLogLevel("error");
  const auto plant = [](std::string bug) { Planted() = std::move(bug); };
  EXPECT_TRUE(FindsPlantedBug({"an answer that goes on has no grammar", 0}, 200, plant, RunWithGrammars));
}

class PlantedBugsOfChange : public ::testing::TestWithParam<BugToFind> {};

TEST_P(PlantedBugsOfChange, IsFound) { ExpectFound(GetParam(), RunWithChange); }

INSTANTIATE_TEST_SUITE_P(Cluster, PlantedBugsOfChange,
                         ::testing::Values(BugToFind{"the role goes while its legs run", 2},
                                           BugToFind{"a changed worker is released before it is seen", 171}),
                         [](const auto& info) { return TestNameOf(info.param.name); });

class PlantedBugsOfUpgrades : public ::testing::TestWithParam<BugToFind> {};

TEST_P(PlantedBugsOfUpgrades, IsFound) {
  ExpectFound(GetParam(),
              [](uint64_t seed) { return CheckedCluster(ClusterScenario::FromSeed(kSeedsOfUpgrades + seed)).Run(); });
}

INSTANTIATE_TEST_SUITE_P(Cluster, PlantedBugsOfUpgrades,
                         ::testing::Values(BugToFind{"legs of another incarnation are taken", 1214}),
                         [](const auto& info) { return TestNameOf(info.param.name); });

class PlantedBugsOfMeddlers : public ::testing::TestWithParam<BugToFind> {};

TEST_P(PlantedBugsOfMeddlers, IsFound) { ExpectFound(GetParam(), RunWithMeddlers); }

INSTANTIATE_TEST_SUITE_P(Cluster, PlantedBugsOfMeddlers,
                         ::testing::Values(BugToFind{"tickets are not told apart by their routers", 1},
                                           BugToFind{"prefill legs are not told apart by their routers", 1},
                                           BugToFind{"requests are not told apart by their routers", 1}),
                         [](const auto& info) { return TestNameOf(info.param.name); });

/// The same bugs where each rank carries its own KV.
class PlantedBugsOfRanks : public ::testing::TestWithParam<BugToFind> {};

TEST_P(PlantedBugsOfRanks, IsFound) {
  ExpectFound(GetParam(), [](uint64_t seed) {
    return CheckedCluster(ClusterScenario::FromSeed(kSeedsOfRanksThatChange + seed)).Run();
  });
}

INSTANTIATE_TEST_SUITE_P(Cluster, PlantedBugsOfRanks,
                         ::testing::Values(BugToFind{"ignore bitmap", 1}, BugToFind{"ack early", 1},
                                           BugToFind{"the role goes while its legs run", 12},
                                           BugToFind{"sources that were left are let go", 50}),
                         [](const auto& info) { return TestNameOf(info.param.name); });

class PlantedBugs : public ::testing::TestWithParam<BugToFind> {};

TEST_P(PlantedBugs, IsFound) {
  const uint64_t seeds = Number("CLUSTER_SIM_SEEDS", kSeeds);
  if (seeds < kSeeds) GTEST_SKIP() << "some bugs need all " << kSeeds << " seeds";
  SetLogLevel("error");
  const auto run = [](uint64_t seed) { return CheckedCluster(ClusterScenario::FromSeed(seed)).Run(); };
  const std::optional<uint64_t> at =
      FindsPlantedBug(GetParam(), seeds, [](std::string bug) { Planted() = std::move(bug); }, run);
  ASSERT_TRUE(at) << "no seed noticed: " << GetParam().name;
  TellWhoNoticed(GetParam(), *at);
}

TEST(ClusterSim, WorkersThatAreTakenForAlikeAreNoticedBesideOneFault) {
  SetLogLevel("error");
  const auto run = [](uint64_t i) {  // every fourth seed has one fault
    const ClusterScenario scenario = ClusterScenario::FromSeed(4 * i + 3);
    if (scenario.one_numerics()) return std::string();
    BATON_CHECK(scenario.one_fault != OneFault::kNone);
    return CheckedCluster(scenario).Run();
  };
  EXPECT_TRUE(FindsPlantedBug(
      {"every worker counts as alike", 0}, 200, [](std::string bug) { Planted() = std::move(bug); }, run));
}

INSTANTIATE_TEST_SUITE_P(
    Cluster, PlantedBugs,
    ::testing::Values(BugToFind{"skip quarantine", 6}, BugToFind{"same blocks at epoch+1", 603},
                      BugToFind{"same slots at epoch+1", 141}, BugToFind{"blocks released at once", 341},
                      BugToFind{"ack early", 2}, BugToFind{"reuse epoch number", 141}, BugToFind{"ignore bitmap", 1},
                      BugToFind{"forget cancel on decode leg", 28}, BugToFind{"forget cancel on prefill leg", 69},
                      BugToFind{"release on expiry", 553}, BugToFind{"count messages, not bitmap", 33},
                      BugToFind{"lease never expires", 27}, BugToFind{"sources that were left are let go", 126},
                      BugToFind{"copies are named before they are made", 126}, BugToFind{"stale answer taken", 379},
                      BugToFind{"liveness without own-stall rule", 19}, BugToFind{"retry budget held to the end", 27},
                      BugToFind{"prefill leg not renewed", 59}, BugToFind{"renewal after clock", 19},
                      BugToFind{"fence answered early", 284}, BugToFind{"bounce buffer returned early", 211},
                      BugToFind{"foreign KV is published", 8}, BugToFind{"every worker counts as alike", 8}),
    [](const auto& info) { return TestNameOf(info.param.name); });

}  // namespace
}  // namespace sim
}  // namespace baton
