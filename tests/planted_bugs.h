// Whether a simulation notices a bug that was planted in the code it drives (common/planted_bug.h).
#pragma once

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cctype>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <iostream>
#include <optional>
#include <string>

namespace baton {

struct BugToFind {
  const char* name;
  /// A seed that noticed it when this was written. It is tried first: most of `seeds` would only be run to get to it.
  uint64_t noticed_by;
};

/// One of `seeds` seeds that breaks a promise because of `bug`: without it the same seed breaks none. `run`: a seed's
/// broken promise, or nothing; `plant`: puts a bug in force, "" none. In a child, because a bug may also end in a
/// failed check or an exception.
inline std::optional<uint64_t> FindsPlantedBug(const BugToFind& bug, uint64_t seeds,
                                               const std::function<void(std::string)>& plant,
                                               const std::function<std::string(uint64_t seed)>& run) {
  enum Exit { kUnnoticed, kFound, kNoChild };
  void* const shared = mmap(nullptr, sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return std::nullopt;
  auto* const seed = static_cast<uint64_t*>(shared);  // that the child is at
  const pid_t child = fork();
  if (child == 0) {
    if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(kNoChild);
    const auto breaks = [&run, seed] {
      try {
        return !run(*seed).empty();
      } catch (const std::exception&) {
        return true;
      }
    };
    const auto notices = [&](uint64_t tried) {
      *seed = tried;
      plant(bug.name);
      if (!breaks()) return false;
      plant("");
      return !breaks();
    };
    if (notices(bug.noticed_by)) _exit(kFound);
    for (uint64_t tried = 0; tried < seeds; ++tried) {
      if (tried != bug.noticed_by && notices(tried)) _exit(kFound);
    }
    _exit(kUnnoticed);
  }
  int status = 0;
  waitpid(child, &status, 0);
  const bool found = WIFSIGNALED(status) || WEXITSTATUS(status) == kFound;
  const std::optional<uint64_t> at = found ? std::optional(*seed) : std::nullopt;
  munmap(shared, sizeof(uint64_t));
  return at;
}

/// Says who noticed it, and what to write into the list of bugs when that is another seed than the list has.
inline void TellWhoNoticed(const BugToFind& bug, uint64_t seed) {
  std::cout << "noticed by seed " << seed;
  if (seed != bug.noticed_by) std::cout << "; the list of bugs says " << bug.noticed_by;
  std::cout << "\n";
}

/// A bug's name as that of a test.
inline std::string TestNameOf(std::string bug) {
  for (char& c : bug) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return bug;
}

}  // namespace baton
