#include "engine/cache/prefix_index.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "common/check.h"

namespace baton::engine {
namespace {
// Nobody takes events (no engine above): keep memory bounded and say so.
constexpr size_t kMaxEvents = 1 << 16;
}  // namespace

PrefixCursor::PrefixCursor(PrefixIndex& index, NodeId node) : index_(&index), node_(node) { index.Reference(node); }

PrefixCursor::PrefixCursor(PrefixCursor&& other) noexcept
    : index_(other.index_), node_(std::exchange(other.node_, kNoNode)) {}

PrefixCursor& PrefixCursor::operator=(PrefixCursor&& other) noexcept {
  if (this == &other) return *this;
  if (node_ != kNoNode) index_->Unreference(node_);
  index_ = other.index_;
  node_ = std::exchange(other.node_, kNoNode);
  return *this;
}

PrefixCursor::~PrefixCursor() {
  if (node_ != kNoNode) index_->Unreference(node_);
}

PrefixCursor PrefixCursor::Share() const { return empty() ? PrefixCursor() : PrefixCursor(*index_, node_); }

PrefixIndex::PrefixIndex(std::vector<int32_t> blocks_of_group, std::vector<int32_t> units_per_block,
                         int32_t event_group)
    : units_per_block_(std::move(units_per_block)), event_group_(event_group) {
  for (size_t g = 0; g < units_per_block_.size(); ++g) {
    nodes_of_block_.emplace_back(static_cast<size_t>(blocks_of_group[g]) * static_cast<size_t>(units_per_block_[g]),
                                 kNoNode);
  }
}

NodeId PrefixIndex::MakeNode(const PrefixHash& hash, NodeId parent, std::span<const int32_t> unit) {
  NodeId id;
  if (free_nodes_.empty()) {
    id = static_cast<NodeId>(nodes_.size());
    nodes_.emplace_back();
  } else {
    id = free_nodes_.back();
    free_nodes_.pop_back();
  }
  Node& node = nodes_[Index(id)];
  node.hash = hash;
  node.parent = parent;
  node.units = parent == kNoNode ? 0 : units(parent) + 1;
  node.references = 0;
  std::copy(unit.begin(), unit.end(), node.tokens.begin());
  node.blocks.assign(units_per_block_.size(), kNoBlock);
  if (parent != kNoNode) Reference(parent);
  by_hash_[hash] = id;
  return id;
}

void PrefixIndex::Unreference(NodeId id) {
  // A node that dies may take its ancestors along; a loop, since prefixes are thousands of units long.
  while (id != kNoNode) {
    Node& node = nodes_[Index(id)];
    BATON_CHECK(node.references > 0);
    if (--node.references > 0) return;
    by_hash_.erase(node.hash);
    free_nodes_.push_back(id);
    id = node.parent;
  }
}

PrefixCursor PrefixIndex::Root(const PrefixHash& root) {
  const auto it = by_hash_.find(root);
  if (it == by_hash_.end()) return PrefixCursor(*this, MakeNode(root, kNoNode, {}));
  return units(it->second) == 0 ? PrefixCursor(*this, it->second) : PrefixCursor();
}

NodeId PrefixIndex::Find(NodeId parent, const PrefixHash& hash, std::span<const int32_t> unit) const {
  const auto it = by_hash_.find(hash);
  if (it == by_hash_.end()) return kNoNode;
  const Node& node = nodes_[Index(it->second)];
  if (node.parent != parent || !std::equal(unit.begin(), unit.end(), node.tokens.begin())) return kNoNode;
  return it->second;
}

PrefixCursor PrefixIndex::FindOrMake(const PrefixCursor& parent, const PrefixHash& hash,
                                     std::span<const int32_t> unit) {
  const NodeId found = Find(parent.node(), hash, unit);
  if (found != kNoNode) return PrefixCursor(*this, found);
  if (by_hash_.contains(hash)) return PrefixCursor();
  return PrefixCursor(*this, MakeNode(hash, parent.node(), unit));
}

NodeId& PrefixIndex::Back(NodeId id, int32_t group, BlockId block) {
  const int32_t k = units_per_block_[Index(group)];
  return nodes_of_block_[Index(group)][Index(block * k + (units(id) - 1) % k)];
}

bool PrefixIndex::Attach(NodeId id, int32_t group, BlockId block) {
  Node& node = nodes_[Index(id)];
  BlockId& slot = node.blocks[Index(group)];
  if (slot != kNoBlock) return slot == block;
  slot = block;
  NodeId& back = Back(id, group, block);
  BATON_CHECK(back == kNoNode, "block ", block, " of group ", group, " holds another unit");
  back = id;
  Reference(id);
  if (group == event_group_) Emit(KvEvent::Kind::kStored, id);
  return true;
}

BlockId PrefixIndex::Reassign(NodeId id, int32_t group, BlockId block) {
  const BlockId old = std::exchange(nodes_[Index(id)].blocks[Index(group)], block);
  BATON_CHECK(old != kNoBlock && old != block);
  Back(id, group, old) = kNoNode;
  NodeId& back = Back(id, group, block);
  BATON_CHECK(back == kNoNode, "block ", block, " of group ", group, " holds another unit");
  back = id;
  const int32_t k = units_per_block_[Index(group)];
  const auto first = nodes_of_block_[Index(group)].begin() + old * k;
  return std::all_of(first, first + k, [](NodeId n) { return n == kNoNode; }) ? old : kNoBlock;
}

void PrefixIndex::DetachBlock(int32_t group, BlockId block) {
  const int32_t k = units_per_block_[Index(group)];
  for (int32_t u = k; u-- > 0;) {
    const NodeId id = std::exchange(nodes_of_block_[Index(group)][Index(block * k + u)], kNoNode);
    if (id == kNoNode) continue;
    nodes_[Index(id)].blocks[Index(group)] = kNoBlock;
    if (group == event_group_) Emit(KvEvent::Kind::kRemoved, id);
    Unreference(id);
  }
}

void PrefixIndex::Emit(KvEvent::Kind kind, NodeId id) {
  if (events_.events.size() >= kMaxEvents) {
    events_.gap = true;
    return;
  }
  const Node& node = nodes_[Index(id)];
  events_.events.push_back({kind, node.hash, hash(node.parent), node.units - 1});
}

KvEvents PrefixIndex::TakeEvents() { return std::exchange(events_, {}); }

std::vector<KvEvent> PrefixIndex::Snapshot() const {
  std::vector<KvEvent> out;
  for (const auto& [node_hash, id] : by_hash_) {
    const Node& node = nodes_[Index(id)];
    if (node.units == 0 || node.blocks[Index(event_group_)] == kNoBlock) continue;
    out.push_back({KvEvent::Kind::kStored, node_hash, hash(node.parent), node.units - 1});
  }
  std::sort(out.begin(), out.end(), [](const KvEvent& a, const KvEvent& b) {
    return std::tie(a.unit_index, a.hash.hi, a.hash.lo) < std::tie(b.unit_index, b.hash.hi, b.hash.lo);
  });
  return out;
}

void PrefixIndex::CheckInvariants() const {
  std::vector<int32_t> references(nodes_.size(), 0);
  for (const auto& [node_hash, id] : by_hash_) {
    const Node& node = nodes_[Index(id)];
    BATON_CHECK(node.hash == node_hash);
    if (node.parent != kNoNode) ++references[Index(node.parent)];
    for (size_t g = 0; g < node.blocks.size(); ++g) {
      if (node.blocks[g] == kNoBlock) continue;
      ++references[Index(id)];
      const int32_t k = units_per_block_[g];
      BATON_CHECK(nodes_of_block_[g][Index(node.blocks[g] * k + (node.units - 1) % k)] == id);
    }
  }
  for (const auto& [node_hash, id] : by_hash_) {
    const Node& node = nodes_[Index(id)];
    BATON_CHECK(node.references >= references[Index(id)], "node ", id, ": ", node.references, " references kept, ",
                references[Index(id)], " counted without cursors");
    BATON_CHECK(node.references > 0, "node ", id, " should be gone");
  }
  BATON_CHECK(by_hash_.size() + free_nodes_.size() == nodes_.size());
}

}  // namespace baton::engine
