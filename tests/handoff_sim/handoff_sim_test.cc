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

class PlantedBugs : public ::testing::TestWithParam<BugToFind> {};

TEST_P(PlantedBugs, IsFound) {
  if (Seeds() < kSeeds) GTEST_SKIP() << "some bugs need all " << kSeeds << " seeds";
  const auto run = [](uint64_t seed) { return World(Scenario::FromSeed(static_cast<uint32_t>(seed))).Run(); };
  const std::optional<uint64_t> at = FindsPlantedBug(GetParam(), Seeds(), PlantBug, run);
  ASSERT_TRUE(at) << "no seed noticed: " << GetParam().name;
  TellWhoNoticed(GetParam(), *at);
}

INSTANTIATE_TEST_SUITE_P(Handoff, PlantedBugs,
                         ::testing::Values(
                             // decode
                             BugToFind{"skip quarantine", 1}, BugToFind{"same slots at epoch+1", 3},
                             BugToFind{"same blocks at epoch+1", 1}, BugToFind{"blocks released at once", 1},
                             BugToFind{"blocks wait for the fence", 49}, BugToFind{"release on expiry", 186},
                             BugToFind{"ack early", 0}, BugToFind{"ignore bitmap", 0},
                             BugToFind{"count messages, not bitmap", 14}, BugToFind{"no digest", 2},
                             BugToFind{"Attach only in kReady", 0}, BugToFind{"second Attach without position", 62},
                             BugToFind{"no tombstone", 1}, BugToFind{"forget cancel on decode leg", 1},
                             BugToFind{"Finished forgets the ticket", 14}, BugToFind{"peer lost closes the ticket", 58},
                             BugToFind{"credits beyond the ring", 1}, BugToFind{"slots bound lane by lane", 1},
                             BugToFind{"renewal after clock", 104}, BugToFind{"fence answered early", 18},
                             BugToFind{"line never left", 1459}, BugToFind{"share ignored", 38},
                             BugToFind{"written off is free", 151},
                             // prefill
                             BugToFind{"credit is a bare increment", 22}, BugToFind{"notice without flush", 0},
                             BugToFind{"LaneDone is the only notice", 5}, BugToFind{"Closed before flush", 1},
                             BugToFind{"Closed after a failed flush", 1}, BugToFind{"Closed is sent once", 1246},
                             BugToFind{"Closed right after LaneDone", 0}, BugToFind{"forget cancel on prefill leg", 1},
                             // router and placer
                             BugToFind{"reuse epoch number", 38}, BugToFind{"attach_gen ignored", 3},
                             BugToFind{"attach_gen counted by each D", 3}, BugToFind{"digest not keyed by position", 8},
                             BugToFind{"router forgets decode", 50}, BugToFind{"router forgets prefill", 119}),
                         [](const auto& info) { return TestNameOf(info.param.name); });

}  // namespace
}  // namespace baton::sim
