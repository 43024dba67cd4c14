// Where all that ends does so by an order, routers count no lost connection and no other life of a worker, and warn of
// none. That is checked of every seed of which it may be said (LosesNothing); here it is seen that there are some.
#include <gtest/gtest.h>

#include <iostream>

#include "tests/sim/seeds.h"

namespace baton::sim {
namespace {

TEST(ClusterSimLosses, AreNoneWhereRolesChangeAndNothingElseHappens) {
  SetLogLevel("error");
  int64_t seen = 0, flips = 0;
  for (uint64_t seeds_of : {kSeedsOfChange, kSeedsOfUpgrades, kSeedsOfRanksThatChange}) {
    for (uint64_t seed = 1000; seed < 1000 + Number("CLUSTER_SIM_LOSS_SEEDS", 120); ++seed) {
      const ClusterScenario scenario = ClusterScenario::FromSeed(seeds_of + seed);
      if (!LosesNothing(scenario)) continue;
      CheckedCluster checked(scenario);
      EXPECT_EQ(checked.Run(), "") << scenario.Text() << "\nreplay: CLUSTER_SIM_SEED=" << seeds_of + seed
                                   << " cluster_sim_test";
      ++seen, flips += checked.cluster().flips_done();
    }
  }
  std::cout << flips << " changes of roles in " << seen << " seeds\n";
  EXPECT_GT(flips, seen / 2) << "else little was seen";
}

TEST(ClusterSimLosses, AreNoneWhereAWorkerIsDrainedAndNothingElseHappens) {
  SetLogLevel("error");
  int64_t seen = 0;
  for (uint64_t seed = 1003; seed < 1003 + 4 * Number("CLUSTER_SIM_LOSS_SEEDS", 120); seed += 4) {  // of one fault
    const ClusterScenario scenario = ClusterScenario::FromSeed(seed);
    if (scenario.one_fault != OneFault::kDrain) continue;
    EXPECT_TRUE(LosesNothing(scenario)) << scenario.Text();
    EXPECT_EQ(CheckedCluster(scenario).Run(), "") << "replay: CLUSTER_SIM_SEED=" << seed << " cluster_sim_test";
    ++seen;
  }
  EXPECT_GT(seen, 5) << "else little was seen";
}

class PlantedBugsOfOrders : public ::testing::TestWithParam<BugToFind> {};

TEST_P(PlantedBugsOfOrders, IsFound) {
  ExpectFound(GetParam(), [](uint64_t seed) {
    const ClusterScenario scenario = ClusterScenario::FromSeed(kSeedsOfChange + seed);
    return LosesNothing(scenario) ? CheckedCluster(scenario).Run() : "";
  });
}

INSTANTIATE_TEST_SUITE_P(Cluster, PlantedBugsOfOrders, ::testing::Values(BugToFind{"who leaves in order is lost", 16}),
                         [](const auto& info) { return TestNameOf(info.param.name); });

}  // namespace
}  // namespace baton::sim
