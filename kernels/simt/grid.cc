#include "kernels/simt/grid.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/simt/fault.h"

namespace baton::simt {
namespace {

constexpr size_t kEarlyBlocks = 3;  ///< blocks of a PDL kernel that are started early

std::string CheckShape(const GridShape& s) {
  CatchKernelFaults();
  const unsigned n = s.block.x * s.block.y * s.block.z;
  if (n == 0 || n > kMaxThreads) return "launch: " + std::to_string(n) + " threads per block";
  if (s.shared_bytes > kMaxSharedBytes)
    return "launch: " + std::to_string(s.shared_bytes) + " bytes of shared memory, at most " +
           std::to_string(kMaxSharedBytes);
  if (s.grid.x == 0 || s.grid.y == 0 || s.grid.z == 0) return "launch: empty grid";
  if (s.grid.y > 65535 || s.grid.z > 65535) return "launch: grid.y or grid.z above 65535";
  return {};
}

std::vector<Index3> BlockOrder(const GridShape& s, const Policy& policy) {
  std::vector<Index3> order;
  for (unsigned z = 0; z < s.grid.z; ++z)
    for (unsigned y = 0; y < s.grid.y; ++y)
      for (unsigned x = 0; x < s.grid.x; ++x) order.push_back({x, y, z});
  if (policy.shuffled()) {
    std::mt19937_64 rng(policy.seed);
    std::shuffle(order.begin(), order.end(), rng);
  }
  return order;
}

/// "void baton::cuda::RmsNormKernel(…) [with …]" → "RmsNormKernel".
std::string ShortName(const std::string& signature) {
  const std::string head = signature.substr(0, signature.find('('));
  return head.substr(head.find_last_of(": ") + 1);
}

void Add(Outcome& outcome, const Block& block) {
  outcome.error = block.error;
  AddCounters(outcome.counters, block.counters);
  if (block.policy.count) AddCounters(outcome.by_kernel[ShortName(block.kernel)], block.counters);
}

/// Runs order[first, last); stops at the first failure.
void RunBlocks(const GridShape& shape, const std::vector<Index3>& order, size_t first, size_t last,
               const Policy& policy, Outcome& outcome) {
  for (size_t i = first; i < last && outcome.ok(); ++i) {
    Block block(shape, order[i], policy, 0);
    block.Run(false);
    Add(outcome, block);
  }
}

void Finish(Block& block, Outcome& outcome) {
  if (!outcome.ok()) return;
  block.DependencyMet();
  if (block.alive > 0) block.Run(false);
  Add(outcome, block);
}

}  // namespace

void AddCounters(Counters& sum, const Counters& more) {
  sum.mma += more.mma;
  sum.ldmatrix += more.ldmatrix;
  sum.cp_async += more.cp_async;
  sum.barriers += more.barriers;
  sum.shuffles += more.shuffles;
  sum.global_requests += more.global_requests;
  sum.global_sectors += more.global_sectors;
  sum.global_ideal_sectors += more.global_ideal_sectors;
  sum.shared_requests += more.shared_requests;
  sum.bank_conflicts += more.bank_conflicts;
  sum.divergent_requests += more.divergent_requests;
  if (more.worst_extra > sum.worst_extra) {
    sum.worst_extra = more.worst_extra;
    sum.worst_site = more.worst_site;
  }
}

void AddCounters(std::map<std::string, Counters>& sum, const std::map<std::string, Counters>& more) {
  for (const auto& [kernel, counters] : more) AddCounters(sum[kernel], counters);
}

Outcome RunGrid(const GridShape& shape, const Policy& policy) {
  Outcome outcome;
  outcome.error = CheckShape(shape);
  if (!outcome.ok()) return outcome;
  const std::vector<Index3> order = BlockOrder(shape, policy);
  RunBlocks(shape, order, 0, order.size(), policy, outcome);
  return outcome;
}

Outcome RunGridPair(const GridShape& primary, const GridShape& secondary, const Policy& policy) {
  Outcome outcome;
  outcome.error = CheckShape(primary) + CheckShape(secondary);
  if (!outcome.ok()) return outcome;
  const std::vector<Index3> first = BlockOrder(primary, policy), second = BlockOrder(secondary, policy);
  RunBlocks(primary, first, 0, first.size() - 1, policy, outcome);
  if (!outcome.ok()) return outcome;

  const size_t stacks = primary.block.x * primary.block.y * primary.block.z;
  const size_t stacks_each = secondary.block.x * secondary.block.y * secondary.block.z;
  Block tail(primary, first.back(), policy, 0);
  std::vector<std::unique_ptr<Block>> early;
  if (tail.Run(!policy.lazy()) == Block::Stop::kDependentsReleased) {
    for (size_t i = 0; i < std::min(kEarlyBlocks, second.size()) && outcome.ok(); ++i) {
      early.push_back(std::make_unique<Block>(secondary, second[i], policy, stacks + i * stacks_each));
      early.back()->dependency_met = false;
      early.back()->Run(false);
      outcome.error = early.back()->error;
    }
  }
  Finish(tail, outcome);
  for (auto& block : early) Finish(*block, outcome);
  RunBlocks(secondary, second, early.size(), second.size(), policy, outcome);
  return outcome;
}

}  // namespace baton::simt
