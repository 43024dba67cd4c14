#include "engine/cache/eviction.h"

#include "common/check.h"

namespace baton::engine {
namespace {

// A doubly linked list threaded through two arrays; entry num_blocks is the sentinel.
class LruPolicy final : public EvictionPolicy {
 public:
  explicit LruPolicy(int32_t num_blocks)
      : sentinel_(num_blocks), next_(static_cast<size_t>(num_blocks) + 1, kNoBlock), prev_(next_) {
    Next(sentinel_) = Prev(sentinel_) = sentinel_;
  }

  void Insert(BlockId b) override {
    BATON_DCHECK(Next(b) == kNoBlock, "block ", b, " is held already");
    const BlockId last = Prev(sentinel_);
    Next(last) = b;
    Prev(b) = last;
    Next(b) = sentinel_;
    Prev(sentinel_) = b;
    ++size_;
  }

  void Remove(BlockId b) override {
    BATON_CHECK(Next(b) != kNoBlock, "block ", b, " is not held");
    Next(Prev(b)) = Next(b);
    Prev(Next(b)) = Prev(b);
    Next(b) = Prev(b) = kNoBlock;
    --size_;
  }

  BlockId TakeVictim() override {
    const BlockId oldest = Next(sentinel_);
    if (oldest == sentinel_) return kNoBlock;
    Remove(oldest);
    return oldest;
  }

  int32_t size() const override { return size_; }

 private:
  BlockId& Next(BlockId b) { return next_[static_cast<size_t>(b)]; }
  BlockId& Prev(BlockId b) { return prev_[static_cast<size_t>(b)]; }

  const BlockId sentinel_;
  std::vector<BlockId> next_, prev_;
  int32_t size_ = 0;
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeLruPolicy(int32_t num_blocks) { return std::make_unique<LruPolicy>(num_blocks); }

}  // namespace baton::engine
