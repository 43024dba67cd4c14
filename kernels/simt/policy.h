// How a run of the emulator is scheduled, and what it reports.
//
// A missing barrier shows only when another thread happens to run first, a weak cp.async wait only when the copy is
// late, a buffer reused too early only when the copy is early: so every test runs all four policies.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

namespace baton::simt {

enum class Schedule : uint8_t {
  kRunToBlock,  ///< threads in order, each until it must wait
  kShuffled,    ///< warps in a random order, one step at a time
};
enum class AsyncCopies : uint8_t {
  kLazy,   ///< cp.async, TMA and wgmma take effect at the last allowed moment
  kEager,  ///< … at once; a PDL kernel starts as early as allowed
};

struct Policy {
  Schedule schedule = Schedule::kRunToBlock;
  AsyncCopies async = AsyncCopies::kLazy;
  uint64_t seed = 1;
  bool count = false;    ///< fill Counters' memory figures (slower)
  int odd_wgmma = 0;     ///< wgmma of so many columns adds from its last product on, as that of another GPU might
  bool odd_mma = false;  ///< so does mma.sync in rows 8 … 15 of its tile
  bool lazy() const { return async == AsyncCopies::kLazy; }
  bool shuffled() const { return schedule == Schedule::kShuffled; }
};

/// The four policies every kernel test runs.
inline std::array<Policy, 4> AllPolicies(uint64_t seed = 1) {
  return {
      Policy{Schedule::kRunToBlock, AsyncCopies::kLazy, seed}, Policy{Schedule::kShuffled, AsyncCopies::kLazy, seed},
      Policy{Schedule::kRunToBlock, AsyncCopies::kEager, seed}, Policy{Schedule::kShuffled, AsyncCopies::kEager, seed}};
}
inline std::string PolicyName(const Policy& p) {
  return std::string(p.shuffled() ? "shuffled" : "in-order") + (p.lazy() ? "/lazy" : "/eager");
}

/// What a grid did. Instruction counts are always kept; the memory figures only with Policy::count.
struct Counters {
  uint64_t mma = 0;       ///< warp-level mma and wgmma
  uint64_t ldmatrix = 0;  ///< warp-level
  uint64_t cp_async = 0;  ///< per thread
  uint64_t barriers = 0;  ///< block or named barriers completed
  uint64_t shuffles = 0;  ///< warp-level shuffles and votes
  // with Policy::count, over px::Load*/Store*, ldmatrix and cp.async (both of its sides):
  uint64_t global_requests = 0;       ///< warp-level global accesses
  uint64_t global_sectors = 0;        ///< 32-byte sectors they touched
  uint64_t global_ideal_sectors = 0;  ///< sectors that the same bytes, side by side, would fill
  uint64_t shared_requests = 0;       ///< warp-level shared accesses
  uint64_t bank_conflicts = 0;        ///< extra wavefronts beyond the ideal number
  uint64_t divergent_requests = 0;    ///< warp-level accesses made by only some of the warp's lanes
  std::string worst_site;             ///< file:line with the most extra wavefronts or sectors in one block
  uint64_t worst_extra = 0;           ///< how many
};

/// How a grid ended. `error` is empty when all went well; else it names block, thread, operation and source line.
struct Outcome {
  std::string error;
  Counters counters;
  /// With Policy::count: by the name of the function that called px::GridDependencyWait, which every kernel does.
  std::map<std::string, Counters> by_kernel;
  bool ok() const { return error.empty(); }
};

}  // namespace baton::simt
