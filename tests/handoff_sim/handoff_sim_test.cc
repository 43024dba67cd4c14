// Thousands of seeds find no broken promise; every planted bug is found. One seed: HANDOFF_SIM_SEED=17 (and, with a bug
// in force, HANDOFF_SIM_BUG="skip quarantine").
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/planted_bugs.h"
#include "world.h"

namespace baton::sim {
namespace {

constexpr uint32_t kSeeds = 2000;

uint32_t Seeds() {
  const char* text = std::getenv("HANDOFF_SIM_SEEDS");
  return text != nullptr ? static_cast<uint32_t>(std::atoi(text)) : kSeeds;
}

TEST(HandoffSim, NoSeedBreaksAPromise) {
  const char* one = std::getenv("HANDOFF_SIM_SEED");
  const char* bug = std::getenv("HANDOFF_SIM_BUG");
  PlantBug(bug != nullptr ? bug : "");
  const uint32_t first = one != nullptr ? static_cast<uint32_t>(std::atoi(one)) : 0,
                 last = one != nullptr ? first + 1 : Seeds();
  int broken = 0;
  for (uint32_t seed = first; seed < last && broken < 5; ++seed) {
    World world(Scenario::FromSeed(seed));
    const std::string promise = world.Run();
    if (!promise.empty()) ++broken;
    EXPECT_EQ(promise, "") << world.scenario.Text() << "\nreplay: HANDOFF_SIM_SEED=" << seed << " handoff_sim_test";
  }
  PlantBug("");
}

class PlantedBugs : public ::testing::TestWithParam<const char*> {};

TEST_P(PlantedBugs, IsFound) {
  if (Seeds() < kSeeds) GTEST_SKIP() << "some bugs need all " << kSeeds << " seeds";
  const auto run = [](uint64_t seed) { return World(Scenario::FromSeed(static_cast<uint32_t>(seed))).Run(); };
  EXPECT_TRUE(FindsPlantedBug(GetParam(), Seeds(), PlantBug, run)) << "no seed noticed: " << GetParam();
}

INSTANTIATE_TEST_SUITE_P(Handoff, PlantedBugs,
                         ::testing::Values(
                             // decode
                             "skip quarantine", "same slots at epoch+1", "same blocks at epoch+1",
                             "blocks released at once", "blocks wait for the fence", "release on expiry", "ack early",
                             "ignore bitmap", "count messages, not bitmap", "no digest", "Attach only in kReady",
                             "second Attach without position", "no tombstone", "forget cancel on decode leg",
                             "Finished forgets the ticket", "peer lost closes the ticket", "credits beyond the ring",
                             "slots bound lane by lane", "renewal after clock", "fence answered early",
                             "line never left", "share ignored", "written off is free",
                             // prefill
                             "credit is a bare increment", "notice without flush", "LaneDone is the only notice",
                             "Closed before flush", "Closed after a failed flush", "Closed is sent once",
                             "Closed right after LaneDone", "forget cancel on prefill leg",
                             // router and placer
                             "reuse epoch number", "attach_gen ignored", "attach_gen counted by each D",
                             "digest not keyed by position", "router forgets decode", "router forgets prefill"),
                         [](const auto& info) { return TestNameOf(info.param); });

}  // namespace
}  // namespace baton::sim
