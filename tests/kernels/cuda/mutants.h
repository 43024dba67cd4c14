// Every synchronizing call of a kernel is left out in turn; each such mutant must be found under some policy. A call
// that orders memory where the emulator's lanes meet anyhow is ThreadSanitizer's to find (make tsan-kernels): its line
// says so.
#pragma once

#include <fstream>
#include <functional>

#if !defined(__CUDACC__)
#include "kernels/simt/sync_sites.h"
#endif
#include "tests/kernels/cuda/device_test.h"

namespace baton::cuda_test {

#if !defined(__CUDACC__)  // a device has no policies and no mutants

#if defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define BATON_MUTANTS_END_TESTS
#endif
#endif

/// Whether the line of the call says that only ThreadSanitizer finds it.
inline bool OnlySanitizerFinds(const simt::SyncSites::Site& site) {
  std::ifstream source(site.first);
  std::string line;
  for (int i = 0; i < static_cast<int>(site.second); ++i) std::getline(source, line);
  return line.find("// only ThreadSanitizer finds it") != std::string::npos;
}

/// `run(policy)` does the whole case and returns what is wrong ("" when right). Prints one line per mutant.
inline void ExpectEveryMutantFound(const std::function<std::string(const simt::Policy&)>& run) {
#if defined(BATON_MUTANTS_END_TESTS)
  for (const simt::Policy& policy : simt::AllPolicies()) EXPECT_EQ(run(policy), "") << simt::PolicyName(policy);
  GTEST_SKIP()
      << "a missing barrier is a race, and a step or an index made of poison, which end a test under a sanitizer";
#endif
  std::set<simt::SyncSites::Site> sites;
  for (const simt::Policy& policy : simt::AllPolicies()) {
    simt::SyncSites recorder;
    ASSERT_EQ(run(policy), "") << simt::PolicyName(policy);
    sites.insert(recorder.seen().begin(), recorder.seen().end());
  }
  ASSERT_FALSE(sites.empty());
  for (const auto& site : sites) {
    simt::SyncSites mutant;
    mutant.LeaveOut(site);
    std::string found;
    for (const simt::Policy& policy : simt::AllPolicies()) {
      const std::string wrong = run(policy);
      if (!wrong.empty()) {
        found = simt::PolicyName(policy) + ": " + wrong.substr(0, 90);
        break;
      }
    }
    const std::string name = site.first.substr(site.first.rfind('/') + 1) + ":" + std::to_string(site.second);
    if (found.empty() && OnlySanitizerFinds(site)) found = "left to ThreadSanitizer";
    std::printf("  without %-28s %s\n", name.c_str(), found.empty() ? "NOT FOUND" : found.c_str());
    EXPECT_FALSE(found.empty()) << name << " left out, and every policy still gives the right answer";
  }
}

#endif

}  // namespace baton::cuda_test
