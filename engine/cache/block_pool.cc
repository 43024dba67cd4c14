#include "engine/cache/block_pool.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace baton::engine {

BlockTable::BlockTable(BlockTable&& other) noexcept
    : pool_(other.pool_),
      blocks_(std::move(other.blocks_)),
      released_front_(std::exchange(other.released_front_, 0)),
      reads_(other.reads_) {
  other.blocks_.clear();
}

BlockTable& BlockTable::operator=(BlockTable&& other) noexcept {
  if (this == &other) return *this;
  Clear();
  pool_ = other.pool_;
  blocks_ = std::move(other.blocks_);
  released_front_ = std::exchange(other.released_front_, 0);
  reads_ = other.reads_;
  other.blocks_.clear();
  return *this;
}

BlockTable BlockTable::Share() const {
  BlockTable copy;
  copy.pool_ = pool_;
  copy.blocks_ = blocks_;
  copy.released_front_ = released_front_;
  copy.reads_ = reads_;
  for (int32_t i = released_front_; i < size(); ++i) pool_->AddOwner(blocks_[static_cast<size_t>(i)], reads_);
  return copy;
}

BlockTable BlockTable::ShareToRead() const {
  BlockTable copy = Share();
  if (std::exchange(copy.reads_, true)) return copy;
  for (int32_t i = released_front_; i < size(); ++i)
    ++pool_->readers_[static_cast<size_t>(blocks_[static_cast<size_t>(i)])];
  return copy;
}

void BlockTable::Clear() {
  for (int32_t i = size(); i-- > released_front_;) pool_->DropOwner(blocks_[static_cast<size_t>(i)], reads_);
  blocks_.clear();
  released_front_ = 0;
}

BlockPool::BlockPool(int32_t group, int32_t num_blocks, int32_t tokens_per_block,
                     std::unique_ptr<EvictionPolicy> policy, EvictionListener* listener)
    : group_(group),
      tokens_per_block_(tokens_per_block),
      owners_(static_cast<size_t>(num_blocks), 0),
      readers_(static_cast<size_t>(num_blocks), 0),
      cached_(static_cast<size_t>(num_blocks), 0),
      policy_(std::move(policy)),
      listener_(listener) {
  empty_.reserve(static_cast<size_t>(num_blocks));
  for (BlockId b = num_blocks; b-- > 0;) empty_.push_back(b);
}

BlockPool::~BlockPool() { BATON_CHECK(used_ == 0, used_, " blocks of group ", group_, " still have owners"); }

BlockId BlockPool::Take() {
  if (!empty_.empty()) {
    const BlockId b = empty_.back();
    empty_.pop_back();
    return b;
  }
  const BlockId b = policy_->TakeVictim();
  if (b == kNoBlock) return kNoBlock;
  cached_[static_cast<size_t>(b)] = 0;
  if (listener_ != nullptr) listener_->OnEvicted(group_, b);
  return b;
}

void BlockPool::AddOwner(BlockId block, bool reads) {
  int32_t& n = owners_[static_cast<size_t>(block)];
  readers_[static_cast<size_t>(block)] += reads;
  if (n++ == 0) ++used_;
  if (n == 2) ++shared_;
  ++total_owners_;
}

void BlockPool::DropOwner(BlockId block, bool reads) {
  int32_t& n = owners_[static_cast<size_t>(block)];
  BATON_CHECK(n > 0, "block ", block, " of group ", group_, " has no owner");
  readers_[static_cast<size_t>(block)] -= reads;
  --total_owners_;
  if (n == 2) --shared_;
  if (--n > 0) return;
  --used_;
  if (cached_[static_cast<size_t>(block)] != 0) {
    policy_->Insert(block);
  } else {
    empty_.push_back(block);
  }
}

bool BlockPool::Append(BlockTable& table, int32_t count) {
  if (count > available_blocks()) return false;
  for (int32_t i = 0; i < count; ++i) {
    const BlockId b = Take();
    BATON_CHECK(b != kNoBlock, "group ", group_, ": ", available_blocks(), " blocks available, none found");
    AddOwner(b, table.reads_);
    table.blocks_.push_back(b);
  }
  return true;
}

void BlockPool::AppendShared(BlockTable& table, BlockId block) {
  if (owners(block) == 0) {
    BATON_CHECK(cached_[static_cast<size_t>(block)] != 0, "block ", block, " is neither owned nor cached");
    policy_->Remove(block);
  }
  AddOwner(block, table.reads_);
  table.blocks_.push_back(block);
}

void BlockPool::AppendReleased(BlockTable& table, int32_t count) {
  BATON_CHECK(table.owned() == 0, "only in front of owned blocks");
  table.blocks_.insert(table.blocks_.end(), static_cast<size_t>(count), kNoBlock);
  table.released_front_ += count;
}

void BlockPool::ReleaseFront(BlockTable& table, int32_t count) {
  BATON_CHECK(count <= table.size());
  for (int32_t i = count; i-- > table.released_front_;) {
    DropOwner(std::exchange(table.blocks_[static_cast<size_t>(i)], kNoBlock), table.reads_);
  }
  table.released_front_ = std::max(table.released_front_, count);
}

std::optional<BlockTable> BlockPool::Detach(BlockTable& table, int32_t index) {
  BATON_CHECK(index >= table.released_front_ && index < table.size() && !table.reads_);
  const BlockId fresh = Take();
  if (fresh == kNoBlock) return std::nullopt;
  AddOwner(fresh);
  BlockTable old(*this);
  old.reads_ = true;
  ++readers_[static_cast<size_t>(table.blocks_[static_cast<size_t>(index)])];
  old.blocks_.push_back(std::exchange(table.blocks_[static_cast<size_t>(index)], fresh));
  return old;
}

void BlockPool::SetCached(BlockId block, bool cached) {
  uint8_t& flag = cached_[static_cast<size_t>(block)];
  if ((flag != 0) == cached) return;
  flag = cached ? 1 : 0;
  if (owners(block) > 0) return;
  BATON_CHECK(!cached, "block ", block, " has no owner to cache it");
  policy_->Remove(block);
  empty_.push_back(block);
}

void BlockPool::CheckInvariants() const {
  int64_t total = 0;
  int32_t used = 0, cached_free = 0, shared = 0;
  for (size_t b = 0; b < owners_.size(); ++b) {
    BATON_CHECK(readers_[b] >= 0 && owners_[b] >= readers_[b], "block ", b, ": ", readers_[b], " of ", owners_[b],
                " owners read");
    total += owners_[b];
    used += owners_[b] > 0 ? 1 : 0;
    shared += owners_[b] > 1 ? 1 : 0;
    cached_free += owners_[b] == 0 && cached_[b] != 0 ? 1 : 0;
  }
  BATON_CHECK(total == total_owners_, total, " owners counted, ", total_owners_, " kept");
  BATON_CHECK(used == used_, used, " used blocks counted, ", used_, " kept");
  BATON_CHECK(shared == shared_, shared, " shared blocks counted, ", shared_, " kept");
  BATON_CHECK(cached_free == policy_->size(), cached_free, " free cached blocks, policy holds ", policy_->size());
  BATON_CHECK(used + cached_free + static_cast<int32_t>(empty_.size()) == num_blocks(), "a block is lost: ", used,
              " used, ", cached_free, " cached, ", empty_.size(), " empty of ", num_blocks());
}

}  // namespace baton::engine
