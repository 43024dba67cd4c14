// Blocks of one KV group: reference counts, move-only tables that return their blocks, free cached blocks that stay
// readable until evicted. Knows numbers only; memory is KvMemory's. Pure; scheduler thread.
//
// A block is  unowned and empty (free list) · unowned and cached (eviction policy) · owned by ≥ 1 table entries (used).
// A pin is a table like any other, so it counts as an owner: Σ owners = Σ reference counts, always. A table of a reader
// keeps blocks for what they hold now: the only owner that may write into a block may go on behind them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/cache/eviction.h"

namespace baton::engine {

class BlockPool;

/// Told that a cached block's content is given up, before the block gets a new owner.
class EvictionListener {
 public:
  virtual ~EvictionListener() = default;
  virtual void OnEvicted(int32_t group, BlockId block) = 0;
};

/// A sequence's (or a pin's) blocks in order of position. Entries behind a sliding window are kNoBlock. Move-only; the
/// destructor returns the blocks, last first, so that the head of a prefix is evicted last. Must not outlive its pool.
class BlockTable {
 public:
  BlockTable() = default;
  explicit BlockTable(BlockPool& pool) : pool_(&pool) {}
  BlockTable(BlockTable&& other) noexcept;
  BlockTable& operator=(BlockTable&& other) noexcept;
  ~BlockTable() { Clear(); }

  std::span<const BlockId> blocks() const { return blocks_; }
  int32_t size() const { return static_cast<int32_t>(blocks_.size()); }
  /// Blocks it owns: size() less the released front.
  int32_t owned() const { return size() - released_front_; }
  /// Of its pool; -1 without one.
  int32_t group() const;
  /// Another owner of the same blocks.
  BlockTable Share() const;
  /// Another owner that reads what is in them now, and nothing that comes later.
  BlockTable ShareToRead() const;
  /// Returns every block.
  void Clear();

 private:
  friend class BlockPool;
  BlockPool* pool_ = nullptr;
  std::vector<BlockId> blocks_;
  int32_t released_front_ = 0;
  bool reads_ = false;  ///< its owner is a reader
};

class BlockPool {
 public:
  /// `listener` may be null; it must outlive the pool.
  BlockPool(int32_t group, int32_t num_blocks, int32_t tokens_per_block, std::unique_ptr<EvictionPolicy> policy,
            EvictionListener* listener);
  /// Dies (our bug) when blocks are still owned.
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  /// Appends `count` fresh blocks, evicting cached ones as needed; all or nothing.
  bool Append(BlockTable& table, int32_t count);
  /// Appends `block`, used or cached, as one more owner.
  void AppendShared(BlockTable& table, BlockId block);
  /// Appends `count` entries that stand for blocks behind the window.
  void AppendReleased(BlockTable& table, int32_t count);
  /// Returns the blocks of the first `count` entries (sliding window); the entries become kNoBlock.
  void ReleaseFront(BlockTable& table, int32_t count);
  /// Makes entry `index` a fresh block that only this table owns and returns the one it had, still owned by the
  /// returned one-entry table, a reader's (keep it until the copy ran). Nothing when the pool is exhausted.
  std::optional<BlockTable> Detach(BlockTable& table, int32_t index);

  /// Whether `block`'s content is in the prefix index, which decides where it goes when its last owner leaves.
  void SetCached(BlockId block, bool cached);
  int32_t owners(BlockId block) const { return owners_[static_cast<size_t>(block)]; }
  /// Owners that are no readers. More than one: who writes into it needs a copy.
  int32_t writers(BlockId block) const { return owners(block) - readers_[static_cast<size_t>(block)]; }

  int32_t group() const { return group_; }
  int32_t tokens_per_block() const { return tokens_per_block_; }
  int32_t num_blocks() const { return static_cast<int32_t>(owners_.size()); }
  int32_t used_blocks() const { return used_; }
  /// Used blocks that have more than one owner.
  int32_t shared_blocks() const { return shared_; }
  /// Free, cached or not: what Append can give.
  int32_t available_blocks() const { return num_blocks() - used_; }
  int32_t cached_free_blocks() const { return policy_->size(); }
  /// Σ reference counts: equals the number of owned entries over all tables.
  int64_t total_owners() const { return total_owners_; }
  /// Dies when the counts disagree. O(blocks); for tests and the leak gauge.
  void CheckInvariants() const;

 private:
  friend class BlockTable;
  BlockId Take();
  void AddOwner(BlockId block, bool reads = false);
  void DropOwner(BlockId block, bool reads);

  const int32_t group_;
  const int32_t tokens_per_block_;
  std::vector<int32_t> owners_, readers_;  ///< [blocks]; readers are owners too
  std::vector<uint8_t> cached_;
  std::vector<BlockId> empty_;  ///< free list, last in first out
  std::unique_ptr<EvictionPolicy> policy_;
  EvictionListener* listener_;
  int32_t used_ = 0;
  int32_t shared_ = 0;
  int64_t total_owners_ = 0;
};

inline int32_t BlockTable::group() const { return pool_ == nullptr ? -1 : pool_->group(); }

}  // namespace baton::engine
