// The end of a process whose GPU has failed: the error stays, whatever is asked of the GPU next.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace baton {

inline constexpr int kDeviceFailureExitCode = 8;

/// One line on stderr, and the exit code above. No destructor runs: each would ask the GPU again. Whoever supervises
/// the process starts it anew. Thread: any; of several that find out the first ends the process, and the others wait.
[[noreturn]] inline void EndForDevice(const std::string& what) {
  static std::atomic_flag ending;
  while (ending.test_and_set()) pause();
  std::fflush(stdout);
  std::fprintf(stderr, "baton: the GPU failed: %s\n", what.c_str());
  std::fflush(stderr);
  std::_Exit(kDeviceFailureExitCode);
}

/// `error`: what a stream or an event says of the work that was waited for; empty: all is well.
inline void EndIfDeviceFailed(const std::string& error) {
  if (!error.empty()) EndForDevice(error);
}

}  // namespace baton
