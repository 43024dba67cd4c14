// Runs things of which one may crash or hang without ending the others: a kernel that faults takes its process's device
// context with it.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace baton::bench {

/// What became of one thing.
struct Attempt {
  std::string result;  ///< what it returned
  std::string death;   ///< empty; else how its process ended instead
};

/// run(0), run(1), … run(count − 1) in a child process; where one of them kills it, or takes more than `seconds`, a new
/// child goes on behind it. report(i, attempt) is called here, in order, as soon as i is done. Nothing of CUDA may have
/// been called in this process before: a child of fork cannot use its parent's device.
void RunEach(size_t count, unsigned seconds, const std::function<std::string(size_t)>& run,
             const std::function<void(size_t, const Attempt&)>& report);

/// What programs for a device end with.
enum ProgramExit : int {
  kAllRight = 0,
  kSomethingWrong = 1,
  kBadUsage = 2,
  kNoDevice = 3,  ///< said on stderr, and why
};

/// Prints why there is no device that runs what was built, as `program`; false when there is one.
bool SaysThereIsNoDevice(const char* program);

}  // namespace baton::bench
