// Runs of many seeds, with a planted bug or without, for the tests of the simulated cluster.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "common/log.h"
#include "tests/planted_bugs.h"
#include "tests/sim/checked_cluster.h"

namespace baton::sim {

/// The name of the bug that is in force.
inline std::string& Planted() {
  static std::string bug;
  return bug;
}

/// What the environment says.
inline uint64_t Number(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): one thread
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

/// As many scenarios of `seeds_of` as the environment's `how_many` says, or `usual`; `look` sees each that was run.
template <class Look>
void CheckSeeds(uint64_t seeds_of, const char* how_many, uint64_t usual, Look look) {
  const uint64_t first = Number("CLUSTER_SIM_FIRST", 0), end = first + Number(how_many, usual);
  for (uint64_t seed = first, broken = 0; seed < end && broken < Number("CLUSTER_SIM_BROKEN", 3); ++seed) {
    const ClusterScenario scenario = ClusterScenario::FromSeed(seeds_of + seed);
    CheckedCluster checked(scenario);
    const std::string promise = checked.Run();
    broken += !promise.empty();
    EXPECT_EQ(promise, "") << scenario.Text() << "\nreplay: CLUSTER_SIM_SEED=" << seeds_of + seed
                           << " cluster_sim_test";
    look(checked, scenario);
  }
}

/// That one of 200 runs notices it, each the run of a seed.
template <class Run>
void ExpectFound(const BugToFind& bug, const Run& run) {
  SetLogLevel("error");
  const std::optional<uint64_t> at =
      FindsPlantedBug(bug, 200, [](std::string name) { Planted() = std::move(name); }, run);
  ASSERT_TRUE(at) << "no seed noticed: " << bug.name;
  TellWhoNoticed(bug, *at);
}

}  // namespace baton::sim
