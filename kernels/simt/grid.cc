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

/// See RunGridChain. At most kResident grids have blocks at once.
class GridChain {
 public:
  GridChain(std::span<const GridShape> grids, const Policy& policy)
      : grids_(grids), policy_(policy), begun_(grids.size()) {
    for (const GridShape& grid : grids) {
      outcome_.error += CheckShape(grid);
      order_.push_back(outcome_.ok() ? BlockOrder(grid, policy) : std::vector<Index3>());
      stacks_ = std::max<size_t>(stacks_, grid.block.x * grid.block.y * grid.block.z);
    }
  }
  Outcome Run() {
    for (size_t g = 0; g < grids_.size() && outcome_.ok(); ++g) RunGridOf(g);
    return std::move(outcome_);
  }

 private:
  static constexpr size_t kResident = 3;

  // Those before it have ended.
  void RunGridOf(size_t g) {
    auto& begun = begun_[g];
    const size_t blocks = order_[g].size();
    const bool tail_begun = begun.size() == blocks, has_next = g + 1 < grids_.size();
    for (auto& block : begun) block->DependencyMet();
    for (size_t k = 0; k < begun.size() - tail_begun; ++k) Finish(*begun[k], outcome_);
    RunBlocks(grids_[g], order_[g], begun.size(), blocks - 1, policy_, outcome_);
    if (!outcome_.ok()) return;
    if (!tail_begun) begun.push_back(std::make_unique<Block>(grids_[g], order_[g].back(), policy_, 0));
    Block& tail = *begun.back();
    if (tail.alive > 0 && tail.Run(has_next && !policy_.lazy()) == Block::Stop::kDependentsReleased) Begin(g + 1, g);
    Finish(tail, outcome_);
    begun.clear();
  }

  // The first blocks of a grid, while the last block of grid `running` has not ended.
  void Begin(size_t g, size_t running) {
    if (g >= grids_.size() || g >= running + kResident || !begun_[g].empty()) return;
    auto& begun = begun_[g];
    bool released = order_[g].size() <= kEarlyBlocks;
    for (size_t k = 0; k < std::min(kEarlyBlocks, order_[g].size()) && outcome_.ok(); ++k) {
      const size_t place = g % kResident * kEarlyBlocks + k;
      begun.push_back(std::make_unique<Block>(grids_[g], order_[g][k], policy_, (1 + place) * stacks_));
      begun.back()->dependency_met = false;
      const Block::Stop stop = begun.back()->Run(true);
      released &= stop == Block::Stop::kDependentsReleased || stop == Block::Stop::kDone;
      outcome_.error = begun.back()->error;
    }
    if (released && outcome_.ok()) Begin(g + 1, running);
    for (size_t k = 0; k < begun.size() && outcome_.ok(); ++k) {
      if (begun[k]->alive > 0) begun[k]->Run(false);
      outcome_.error = begun[k]->error;
    }
  }

  std::span<const GridShape> grids_;
  const Policy& policy_;
  size_t stacks_ = 0;  ///< of the largest block: the first are those of blocks that run alone
  std::vector<std::vector<Index3>> order_;
  std::vector<std::vector<std::unique_ptr<Block>>> begun_;  ///< by grid: its first blocks
  Outcome outcome_;
};

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

Outcome RunGridChain(std::span<const GridShape> grids, const Policy& policy) { return GridChain(grids, policy).Run(); }

}  // namespace baton::simt
