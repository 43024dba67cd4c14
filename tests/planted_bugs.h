// Whether a simulation notices a bug that was planted in the code it drives (common/planted_bug.h).
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cctype>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <string>

namespace baton {

/// Whether one of `seeds` seeds breaks a promise because of `bug`: without it the same seed breaks none. `run`: a
/// seed's broken promise, or nothing; `plant`: puts a bug in force, "" none. In a child, because a bug may also end in
/// a failed check or an exception.
inline bool FindsPlantedBug(const std::string& bug, uint64_t seeds, const std::function<void(std::string)>& plant,
                            const std::function<std::string(uint64_t seed)>& run) {
  enum Exit { kUnnoticed, kFound, kNoChild };
  const pid_t child = fork();
  if (child == 0) {
    if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(kNoChild);
    const auto breaks = [&run](uint64_t seed) {
      try {
        return !run(seed).empty();
      } catch (const std::exception&) {
        return true;
      }
    };
    for (uint64_t seed = 0; seed < seeds; ++seed) {
      plant(bug);
      if (!breaks(seed)) continue;
      plant("");
      if (!breaks(seed)) _exit(kFound);
    }
    _exit(kUnnoticed);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) || WEXITSTATUS(status) == kFound;
}

/// A bug's name as that of a test.
inline std::string TestNameOf(std::string bug) {
  for (char& c : bug) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return bug;
}

}  // namespace baton
