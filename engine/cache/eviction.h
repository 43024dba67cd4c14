// Which free cached block is given up first. One policy object per block pool; scheduler thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace baton::engine {

using BlockId = int32_t;
inline constexpr BlockId kNoBlock = -1;

/// Holds the blocks that nobody owns but whose content can still be read.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  /// `block` lost its last owner.
  virtual void Insert(BlockId block) = 0;
  /// `block`, held by the policy, found an owner again.
  virtual void Remove(BlockId block) = 0;
  /// Takes the block to give up first, kNoBlock when empty.
  virtual BlockId TakeVictim() = 0;
  virtual int32_t size() const = 0;
};

/// Least recently used first. O(1), no allocation after construction.
std::unique_ptr<EvictionPolicy> MakeLruPolicy(int32_t num_blocks);

}  // namespace baton::engine
