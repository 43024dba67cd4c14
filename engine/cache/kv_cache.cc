#include "engine/cache/kv_cache.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/ceil_div.h"
#include "common/check.h"

namespace baton::engine {
namespace {

std::vector<int32_t> UnitsPerBlock(const KvLayout& layout) {
  std::vector<int32_t> units;
  for (const KvGroup& g : layout.groups) {
    BATON_CHECK(g.tokens_per_block > 0 && g.tokens_per_block % kUnitTokens == 0, g.tokens_per_block,
                " tokens per block");
    BATON_CHECK(g.kind != KvGroupKind::kState, "state groups are not known to this cache");
    units.push_back(g.tokens_per_block / kUnitTokens);
  }
  return units;
}

// The router's index follows the group that keeps everything; a hit there may still be shorter for want of a window.
int32_t EventGroup(const KvLayout& layout) {
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    if (layout.groups[g].kind == KvGroupKind::kPaged) return static_cast<int32_t>(g);
  }
  return 0;
}

SequenceKv ShareBy(BlockTable (BlockTable::*share)() const, const SequenceKv& kv) {
  SequenceKv copy;
  for (const BlockTable& t : kv.tables) copy.tables.push_back((t.*share)());
  copy.cursor = kv.cursor.Share();
  copy.handed_over_tokens = kv.handed_over_tokens;
  return copy;
}

}  // namespace

SequenceKv SequenceKv::Share() const { return ShareBy(&BlockTable::Share, *this); }
SequenceKv SequenceKv::ShareToRead() const { return ShareBy(&BlockTable::ShareToRead, *this); }

void SequenceKv::Clear() {
  tables.clear();
  cursor = PrefixCursor();
  handed_over_tokens = 0;
}

KvCache::KvCache(const KvLayout& layout, std::vector<int32_t> num_blocks, const PrefixHasher& hasher, Options options)
    : layout_(layout),
      hasher_(hasher),
      options_(std::move(options)),
      index_(num_blocks, UnitsPerBlock(layout), EventGroup(layout)) {
  BATON_CHECK(num_blocks.size() == layout.groups.size());
  for (size_t g = 0; g < num_blocks.size(); ++g) {
    const int32_t tokens = layout.groups[g].tokens_per_block;
    units_per_all_blocks_ = std::lcm(units_per_all_blocks_, tokens / kUnitTokens);
    EvictionListener* listener = this;
    pools_.push_back(std::make_unique<BlockPool>(static_cast<int32_t>(g), num_blocks[g], tokens,
                                                 MakeLruPolicy(num_blocks[g]), listener));
  }
}

void KvCache::OnEvicted(int32_t group, BlockId block) { index_.DetachBlock(group, block); }

PrefixHash KvCache::RootHash(std::string_view salt, std::string_view lora_digest) const {
  return hasher_.Root({options_.model_digest, salt, lora_digest});
}

SequenceKv KvCache::Start(std::string_view salt, std::string_view lora_digest) {
  SequenceKv kv;
  for (auto& pool : pools_) kv.tables.emplace_back(*pool);
  if (options_.enable_prefix_caching) kv.cursor = index_.Root(RootHash(salt, lora_digest));
  return kv;
}

int32_t KvCache::FirstVisible(int32_t group, int32_t next_position) const {
  const KvGroup& g = layout_.groups[static_cast<size_t>(group)];
  return g.kind == KvGroupKind::kWindow ? std::max(0, next_position - g.window_tokens + 1) : 0;
}

// A block of several units is of use only as a whole: its units must lie in one block.
bool KvCache::SameBlockAsParent(int32_t group, NodeId node) const {
  if ((index_.units(node) - 1) % units_per_block(group) == 0) return true;
  return index_.block(index_.parent(node), group) == index_.block(node, group);
}

bool KvCache::PagedGroupsHold(NodeId node) const {
  for (int32_t g = 0; g < num_groups(); ++g) {
    if (layout_.groups[static_cast<size_t>(g)].kind != KvGroupKind::kPaged) continue;
    if (index_.block(node, g) == kNoBlock || !SameBlockAsParent(g, node)) return false;
  }
  return true;
}

bool KvCache::WindowCovers(int32_t group, std::span<const NodeId> nodes) const {
  const int32_t first_token = FirstVisible(group, static_cast<int32_t>(nodes.size()) * kUnitTokens);
  for (size_t u = nodes.size(); u-- > static_cast<size_t>(first_token / kUnitTokens);) {
    if (index_.block(nodes[u], group) == kNoBlock) return false;
    const bool parent_visible = static_cast<int32_t>(u) > first_token / kUnitTokens;
    if (parent_visible && !SameBlockAsParent(group, nodes[u])) return false;
  }
  return true;
}

std::vector<NodeId> KvCache::FindPrefix(NodeId root, std::span<const int32_t> tokens, int32_t max_tokens,
                                        int32_t unit_multiple) const {
  std::vector<NodeId> nodes;
  const int32_t max_units = std::min(static_cast<int32_t>(tokens.size()), max_tokens) / kUnitTokens;
  NodeId node = root;
  for (int32_t u = 0; u < max_units && node != kNoNode; ++u) {
    const auto unit = tokens.subspan(static_cast<size_t>(u) * kUnitTokens, kUnitTokens);
    node = index_.Find(node, hasher_.Next(index_.hash(node), unit), unit);
    if (node == kNoNode || !PagedGroupsHold(node)) break;
    nodes.push_back(node);
  }
  const auto usable = [&] {
    if (static_cast<int32_t>(nodes.size()) % unit_multiple != 0) return false;
    for (int32_t g = 0; g < num_groups(); ++g) {
      if (layout_.groups[static_cast<size_t>(g)].kind == KvGroupKind::kWindow && !WindowCovers(g, nodes)) return false;
    }
    return true;
  };
  while (!nodes.empty() && !usable()) nodes.pop_back();
  return nodes;
}

PrefixMatch KvCache::Match(std::string_view salt, std::string_view lora_digest, std::span<const int32_t> tokens,
                           int32_t max_tokens, bool whole_blocks) {
  PrefixMatch match;
  match.kv = Start(salt, lora_digest);
  if (match.kv.cursor.empty()) return match;
  const PrefixCursor root = match.kv.cursor.Share();
  // A prefix that ends inside a block needs a copy of it; when there is no block for that, whole blocks must do.
  for (const int32_t multiple : {whole_blocks ? units_per_all_blocks_ : 1, units_per_all_blocks_}) {
    const std::vector<NodeId> nodes = FindPrefix(root.node(), tokens, max_tokens, multiple);
    if (nodes.empty()) break;
    if (TakeBlocks(nodes, match)) {
      match.tokens = static_cast<int32_t>(nodes.size()) * kUnitTokens;
      match.kv.cursor = PrefixCursor(index_, nodes.back());
      break;
    }
    match = PrefixMatch();
    match.kv = Start(salt, lora_digest);
  }
  return match;
}

bool KvCache::TakeBlocks(std::span<const NodeId> nodes, PrefixMatch& match) {
  const int32_t units = static_cast<int32_t>(nodes.size());
  for (int32_t g = 0; g < num_groups(); ++g) {
    BlockPool& pool = *pools_[static_cast<size_t>(g)];
    BlockTable& table = match.kv.tables[static_cast<size_t>(g)];
    const int32_t k = units_per_block(g);
    const int32_t first_block = FirstVisible(g, units * kUnitTokens) / pool.tokens_per_block();
    pool.AppendReleased(table, std::min(first_block, CeilDiv(units, k)));
    for (int32_t b = first_block; b * k < units; ++b) {
      const int32_t last_unit = std::min(units, (b + 1) * k) - 1;
      pool.AppendShared(table, index_.block(nodes[static_cast<size_t>(last_unit)], g));
    }
  }
  for (int32_t g = 0; g < num_groups(); ++g) {
    BlockTable& table = match.kv.tables[static_cast<size_t>(g)];
    if (units % units_per_block(g) == 0 || table.owned() == 0) continue;
    std::optional<BlockTable> source = pools_[static_cast<size_t>(g)]->Detach(table, table.size() - 1);
    if (!source.has_value()) return false;
    match.copies.push_back({g, source->blocks()[0], table.blocks().back()});
    match.copy_sources.push_back(std::move(*source));
  }
  return true;
}

int32_t KvCache::BlocksNeeded(const SequenceKv& kv, int32_t group, int32_t tokens) const {
  const int32_t have = kv.tables[static_cast<size_t>(group)].size();
  return std::max(0, CeilDiv(tokens, pool(group).tokens_per_block()) - have);
}

bool KvCache::Grow(SequenceKv& kv, int32_t tokens) {
  for (int32_t g = 0; g < num_groups(); ++g) {
    if (BlocksNeeded(kv, g, tokens) > pool(g).available_blocks()) return false;
  }
  for (int32_t g = 0; g < num_groups(); ++g) {
    BATON_CHECK(pools_[static_cast<size_t>(g)]->Append(kv.tables[static_cast<size_t>(g)], BlocksNeeded(kv, g, tokens)));
  }
  return true;
}

bool KvCache::MakeWritable(SequenceKv& kv, int32_t from, int32_t to, std::vector<BlockCopy>& copies,
                           std::vector<BlockTable>& copy_sources) {
  const auto for_each_shared = [&](int32_t g, auto&& visit) {
    const BlockTable& table = kv.tables[static_cast<size_t>(g)];
    const int32_t end = std::min(table.size(), CeilDiv(to, pool(g).tokens_per_block()));
    for (int32_t b = from / pool(g).tokens_per_block(); b < end; ++b) {
      const BlockId block = table.blocks()[static_cast<size_t>(b)];
      BATON_CHECK(block != kNoBlock, "position ", from, " is behind the window of group ", g);
      if (pool(g).writers(block) > 1) visit(b, block);
    }
  };
  for (int32_t g = 0; g < num_groups(); ++g) {
    int32_t shared = 0;
    for_each_shared(g, [&](int32_t, BlockId) { ++shared; });
    if (shared > pool(g).available_blocks()) return false;
  }
  for (int32_t g = 0; g < num_groups(); ++g) {
    for_each_shared(g, [&](int32_t b, BlockId block) {
      BlockTable& table = kv.tables[static_cast<size_t>(g)];
      std::optional<BlockTable> source = pools_[static_cast<size_t>(g)]->Detach(table, b);
      BATON_CHECK(source.has_value());
      copies.push_back({g, block, table.blocks()[static_cast<size_t>(b)]});
      copy_sources.push_back(std::move(*source));
    });
  }
  return true;
}

void KvCache::Publish(SequenceKv& kv, std::span<const int32_t> tokens, int32_t computed) {
  if (kv.cursor.empty()) return;
  for (int32_t u = index_.units(kv.cursor.node()); (u + 1) * kUnitTokens <= computed; ++u) {
    const auto unit = tokens.subspan(static_cast<size_t>(u) * kUnitTokens, kUnitTokens);
    kv.cursor = index_.FindOrMake(kv.cursor, hasher_.Next(index_.hash(kv.cursor.node()), unit), unit);
    if (kv.cursor.empty()) return;
    for (int32_t g = 0; g < num_groups(); ++g) PublishUnit(kv, g);
  }
}

// The unit at kv.cursor, in one group. Another block may hold it already: the first stays.
void KvCache::PublishUnit(SequenceKv& kv, int32_t group) {
  const NodeId node = kv.cursor.node();
  const int32_t slot = (index_.units(node) - 1) / units_per_block(group);
  const BlockId block = kv.tables[static_cast<size_t>(group)].blocks()[static_cast<size_t>(slot)];
  if (block == kNoBlock || index_.block(node, group) != kNoBlock) return;
  const auto came = [&](NodeId unit) {
    return index_.units(unit) * kUnitTokens > FirstVisible(group, kv.handed_over_tokens);
  };
  if (!came(node)) return;
  BlockPool& pool = *pools_[static_cast<size_t>(group)];
  // Units before it in this block may be known by another block that ends there: this one holds more, so it takes over.
  NodeId before = index_.parent(node);
  for (int32_t i = (index_.units(node) - 1) % units_per_block(group); i-- > 0; before = index_.parent(before)) {
    const BlockId other = index_.block(before, group);
    if (!came(before)) break;
    if (other == kNoBlock || other == block) continue;
    const BlockId emptied = index_.Reassign(before, group, block);
    if (emptied != kNoBlock) pool.SetCached(emptied, false);
  }
  index_.Attach(node, group, block);
  pool.SetCached(block, true);
}

void KvCache::ReleaseBehindWindow(SequenceKv& kv, int32_t next_position) {
  for (int32_t g = 0; g < num_groups(); ++g) {
    BlockPool& pool = *pools_[static_cast<size_t>(g)];
    BlockTable& table = kv.tables[static_cast<size_t>(g)];
    pool.ReleaseFront(table, std::min(table.size(), FirstVisible(g, next_position) / pool.tokens_per_block()));
  }
}

void KvCache::SkipBehindWindow(SequenceKv& kv, int32_t next_position) {
  ReleaseBehindWindow(kv, next_position);
  for (int32_t g = 0; g < num_groups(); ++g) {
    BlockPool& pool = *pools_[static_cast<size_t>(g)];
    BlockTable& table = kv.tables[static_cast<size_t>(g)];
    const int32_t behind = FirstVisible(g, next_position) / pool.tokens_per_block() - table.size();
    if (behind > 0) pool.AppendReleased(table, behind);
  }
}

int32_t KvCache::BlocksNeededBeyond(const SequenceKv& kv, int32_t group, int32_t next_position, int32_t tokens) const {
  const int32_t tokens_per_block = pool(group).tokens_per_block();
  const int32_t have =
      std::max(kv.tables[static_cast<size_t>(group)].size(), FirstVisible(group, next_position) / tokens_per_block);
  return std::max(0, CeilDiv(tokens, tokens_per_block) - have);
}

int32_t KvCache::MaxBlocksOf(int32_t group, int32_t tokens, int32_t chunk) const {
  const KvGroup& g = layout_.groups[static_cast<size_t>(group)];
  int32_t blocks = CeilDiv(tokens, g.tokens_per_block);
  // The window, the chunk, and the two ends that need not meet block borders (the unit kept for a cancelled step too).
  if (g.kind == KvGroupKind::kWindow) {
    blocks = std::min(blocks, CeilDiv(g.window_tokens + chunk + kUnitTokens, g.tokens_per_block) + 1);
  }
  return blocks;
}

void KvCache::CheckInvariants() const {
  for (const auto& pool : pools_) pool->CheckInvariants();
  index_.CheckInvariants();
}

}  // namespace baton::engine
