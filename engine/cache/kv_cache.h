// The block bookkeeping of all KV groups of a rank set: tables per group, prefix hits, copy-on-write, publishing.
// Numbers only; memory is KvMemory's. Pure; scheduler thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/kv_layout.h"
#include "common/prefix_hash.h"
#include "engine/cache/block_copy.h"
#include "engine/cache/block_pool.h"
#include "engine/cache/prefix_index.h"

namespace baton::engine {

/// A sequence's KV, or a pin on some: one table per group, and how far its prefix is published.
struct SequenceKv {
  std::vector<BlockTable> tables;  ///< [groups]; empty: holds nothing
  PrefixCursor cursor;
  /// Not 0: so many tokens were taken over from another worker. Units that no later position sees never came, though
  /// their block may be there: they are not published.
  int32_t handed_over_tokens = 0;
  SequenceKv Share() const;
  /// A pin on what is there now: the sequence may go on in the same blocks.
  SequenceKv ShareToRead() const;
  /// Returns all blocks and the cursor.
  void Clear();
};

/// The prefix that Match found; it owns its blocks. `copies` must run before the sequence's first step; keep
/// `copy_sources` until then.
struct PrefixMatch {
  int32_t tokens = 0;  ///< a multiple of kUnitTokens
  SequenceKv kv;
  std::vector<BlockCopy> copies;
  std::vector<BlockTable> copy_sources;
};

class KvCache final : private EvictionListener {
 public:
  struct Options {
    bool enable_prefix_caching = true;
    std::string model_digest;
  };
  /// `num_blocks` per group. `hasher` must outlive the cache.
  KvCache(const KvLayout& layout, std::vector<int32_t> num_blocks, const PrefixHasher& hasher, Options options);

  int32_t num_groups() const { return static_cast<int32_t>(pools_.size()); }
  const BlockPool& pool(int32_t group) const { return *pools_[static_cast<size_t>(group)]; }
  const KvLayout& layout() const { return layout_; }

  /// An empty sequence in the scope of `salt` and `lora_digest`.
  SequenceKv Start(std::string_view salt, std::string_view lora_digest);
  /// The longest published prefix of `tokens`, at most `max_tokens` long, taken as one more owner (a pin until it is
  /// moved into a sequence). Part of a block is copied, when the pool has a block for it; `whole_blocks`: such a part
  /// is left out instead, so that there is nothing to copy.
  PrefixMatch Match(std::string_view salt, std::string_view lora_digest, std::span<const int32_t> tokens,
                    int32_t max_tokens, bool whole_blocks = false);

  /// Blocks of `group` that growing to `tokens` would take.
  int32_t BlocksNeeded(const SequenceKv& kv, int32_t group, int32_t tokens) const;
  /// Makes room for positions [0, tokens) in every group; all or nothing.
  bool Grow(SequenceKv& kv, int32_t tokens);
  /// Makes the blocks of positions [from, to) writable: those of several writers are replaced, with a copy and its
  /// source's owner added. All or nothing; false: the pool has too few blocks.
  bool MakeWritable(SequenceKv& kv, int32_t from, int32_t to, std::vector<BlockCopy>& copies,
                    std::vector<BlockTable>& copy_sources);
  /// Puts the whole units of tokens [0, computed) that are not there yet into the index.
  void Publish(SequenceKv& kv, std::span<const int32_t> tokens, int32_t computed);
  /// Window groups: returns the blocks that no position ≥ `next_position` can see.
  void ReleaseBehindWindow(SequenceKv& kv, int32_t next_position);
  /// As ReleaseBehindWindow, and Grow will not take such blocks either: their entries are there from now on.
  void SkipBehindWindow(SequenceKv& kv, int32_t next_position);
  /// Blocks of `group` that growing to `tokens` would take after SkipBehindWindow(kv, next_position).
  int32_t BlocksNeededBeyond(const SequenceKv& kv, int32_t group, int32_t next_position, int32_t tokens) const;

  /// Blocks a sequence of `tokens` positions may hold at most in `group` when prefilled `chunk` at a time.
  int32_t MaxBlocksOf(int32_t group, int32_t tokens, int32_t chunk) const;
  KvEvents TakeEvents() { return index_.TakeEvents(); }
  std::vector<KvEvent> Snapshot() const { return index_.Snapshot(); }
  const PrefixIndex& index() const { return index_; }
  void CheckInvariants() const;

 private:
  void OnEvicted(int32_t group, BlockId block) override;
  PrefixHash RootHash(std::string_view salt, std::string_view lora_digest) const;
  std::vector<NodeId> FindPrefix(NodeId root, std::span<const int32_t> tokens, int32_t max_tokens,
                                 int32_t unit_multiple) const;
  bool SameBlockAsParent(int32_t group, NodeId node) const;
  bool PagedGroupsHold(NodeId node) const;
  bool WindowCovers(int32_t group, std::span<const NodeId> nodes) const;
  int32_t FirstVisible(int32_t group, int32_t next_position) const;
  int32_t units_per_block(int32_t group) const { return pool(group).tokens_per_block() / kUnitTokens; }
  bool TakeBlocks(std::span<const NodeId> nodes, PrefixMatch& match);
  void PublishUnit(SequenceKv& kv, int32_t group);

  KvLayout layout_;
  int32_t units_per_all_blocks_ = 1;  ///< least common multiple over groups
  const PrefixHasher& hasher_;
  Options options_;
  PrefixIndex index_;
  std::vector<std::unique_ptr<BlockPool>> pools_;
};

}  // namespace baton::engine
