// The sender's buffers: a slot is packed into one and leaves from there, so that source blocks are free of the network.
// A buffer stays taken until the transport is done with it, whatever has become of the lane. Nobody holds more of them
// than are left: a peer that takes nothing off us has half of them at most, a second one a quarter, and there is always
// one for the next. Not thread-safe; the
// transfer thread's. `memory` is the caller's (registered with the transport where that helps) and must outlive the
// pool; the pool must outlive its buffers. Of a device's outbox only the numbers of buffers count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/check.h"

namespace baton {

class BouncePool {
 public:
  /// One buffer; comes back when it is destroyed. Move-only.
  class Buffer {
   public:
    Buffer(Buffer&& other) noexcept
        : pool_(std::exchange(other.pool_, nullptr)), number_(other.number_), holder_(other.holder_) {}
    Buffer& operator=(Buffer&& other) noexcept {
      std::swap(pool_, other.pool_);
      std::swap(number_, other.number_);
      std::swap(holder_, other.holder_);
      return *this;
    }
    ~Buffer() {
      if (pool_ != nullptr) pool_->Return(number_, holder_);
    }
    std::span<std::byte> bytes() const {
      return pool_->memory_.subspan(number_ * pool_->bytes_each_, pool_->bytes_each_);
    }
    size_t number() const { return number_; }

   private:
    friend class BouncePool;
    Buffer(BouncePool* pool, size_t number, uint64_t holder) : pool_(pool), number_(number), holder_(holder) {}
    BouncePool* pool_;
    size_t number_;
    uint64_t holder_;
  };

  BouncePool(std::span<std::byte> memory, size_t bytes_each)
      : memory_(memory), bytes_each_(bytes_each), size_(memory.size() / bytes_each) {
    for (size_t i = size_; i > 0; --i) free_.push_back(i - 1);
  }
  /// Of buffers whose bytes are not the host's to touch.
  explicit BouncePool(size_t buffers) : bytes_each_(0), size_(buffers) {
    for (size_t i = size_; i > 0; --i) free_.push_back(i - 1);
  }
  ~BouncePool() {
    BATON_CHECK(free_.size() == size_, size_ - free_.size(), " of ", size_, " bounce buffers are still out");
  }
  BouncePool(const BouncePool&) = delete;
  BouncePool& operator=(const BouncePool&) = delete;

  /// Nothing when all are taken, or `holder` (a peer) has its share: the segment waits in its blocks.
  std::optional<Buffer> Take(uint64_t holder) {
    const auto held = held_.find(holder);
    if ((held == held_.end() ? 0 : held->second) >= free_.size()) return std::nullopt;
    ++held_[holder];
    const size_t number = free_.back();
    free_.pop_back();
    return Buffer(this, number, holder);
  }
  bool Holds(uint64_t holder) const { return held_.contains(holder); }
  size_t size() const { return size_; }
  size_t free_buffers() const { return free_.size(); }

 private:
  void Return(size_t number, uint64_t holder) {
    free_.push_back(number);
    if (const auto held = held_.find(holder); --held->second == 0) held_.erase(held);
  }

  const std::span<std::byte> memory_;
  const size_t bytes_each_, size_;
  std::vector<size_t> free_;
  std::map<uint64_t, size_t> held_;  ///< by holder; never 0
};

}  // namespace baton
