// Which blocks hold which prefixes: a tree of 16-token units, found by chained hash, verified by token ids.
//
// A node is a prefix (its parent node and the 16 token ids after it) and says, per KV group, which block holds that
// unit. A lookup follows verified parents only, so not even a 128-bit collision can give wrong KV. A node lives while
// it has a block in some group, a child or a cursor; what sliding-window groups need of a long prefix is found through
// nodes that hold no block of theirs any more. Pure; scheduler thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "common/kv_layout.h"
#include "common/prefix_hash.h"
#include "engine/cache/block_pool.h"
#include "engine/cache/kv_event.h"

namespace baton::engine {

using NodeId = int32_t;
inline constexpr NodeId kNoNode = -1;

class PrefixIndex;

/// Holds a node alive: the deepest unit a sequence has published. Move-only. Empty: publishes nothing more.
class PrefixCursor {
 public:
  PrefixCursor() = default;
  PrefixCursor(PrefixIndex& index, NodeId node);
  PrefixCursor(PrefixCursor&& other) noexcept;
  PrefixCursor& operator=(PrefixCursor&& other) noexcept;
  ~PrefixCursor();
  PrefixCursor Share() const;
  bool empty() const { return node_ == kNoNode; }
  NodeId node() const { return node_; }

 private:
  PrefixIndex* index_ = nullptr;
  NodeId node_ = kNoNode;
};

class PrefixIndex {
 public:
  /// `blocks_of_group` and `units_per_block` per KV group; `event_group` is the group whose blocks make events.
  PrefixIndex(std::vector<int32_t> blocks_of_group, std::vector<int32_t> units_per_block, int32_t event_group);

  /// The node of the empty prefix with that root hash, made if need be.
  PrefixCursor Root(const PrefixHash& root);
  /// The child of `parent` with exactly these tokens, or kNoNode. `hash` is the chained hash of that prefix.
  NodeId Find(NodeId parent, const PrefixHash& hash, std::span<const int32_t> unit) const;
  /// Find, or make it. Empty when another prefix has that hash (a collision): then nothing may be published.
  PrefixCursor FindOrMake(const PrefixCursor& parent, const PrefixHash& hash, std::span<const int32_t> unit);

  /// `block` of `group` holds the node's unit. False when another block does already.
  bool Attach(NodeId node, int32_t group, BlockId block);
  /// The node's unit, held by another block, is held by `block` from now on. Returns the other block when that has no
  /// unit left, else kNoBlock. No event: the unit stays readable.
  BlockId Reassign(NodeId node, int32_t group, BlockId block);
  /// `block`'s content is given up.
  void DetachBlock(int32_t group, BlockId block);

  BlockId block(NodeId node, int32_t group) const { return nodes_[Index(node)].blocks[Index(group)]; }
  const PrefixHash& hash(NodeId node) const { return nodes_[Index(node)].hash; }
  NodeId parent(NodeId node) const { return nodes_[Index(node)].parent; }
  /// Units of the prefix: 0 for a root.
  int32_t units(NodeId node) const { return nodes_[Index(node)].units; }
  int32_t num_nodes() const { return static_cast<int32_t>(by_hash_.size()); }

  /// Events since the last call, in order.
  KvEvents TakeEvents();
  /// Everything stored now, parents before children.
  std::vector<KvEvent> Snapshot() const;
  /// Dies when references and maps disagree. O(nodes); for tests.
  void CheckInvariants() const;

 private:
  friend class PrefixCursor;
  struct Node {
    PrefixHash hash;
    NodeId parent = kNoNode;
    int32_t units = 0;
    int32_t references = 0;  ///< children, blocks and cursors
    std::array<int32_t, kUnitTokens> tokens{};
    absl::InlinedVector<BlockId, 2> blocks;  ///< per group
  };
  static size_t Index(int32_t i) { return static_cast<size_t>(i); }
  NodeId MakeNode(const PrefixHash& hash, NodeId parent, std::span<const int32_t> unit);
  void Reference(NodeId node) { ++nodes_[Index(node)].references; }
  void Unreference(NodeId node);
  NodeId& Back(NodeId node, int32_t group, BlockId block);
  void Emit(KvEvent::Kind kind, NodeId node);

  std::vector<int32_t> units_per_block_;
  int32_t event_group_;
  std::vector<Node> nodes_;
  std::vector<NodeId> free_nodes_;
  absl::flat_hash_map<PrefixHash, NodeId> by_hash_;
  std::vector<std::vector<NodeId>> nodes_of_block_;  ///< per group: [blocks · units_per_block]
  KvEvents events_;
};

}  // namespace baton::engine
