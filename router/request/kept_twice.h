// KeptTwice: what was found out about things that come again, kept the second time a thing comes: so what comes once,
// and every turn of a conversation does, fills nothing. Clients choose the things: hashes are under a seed of the
// process's own, and whoever asks compares the thing itself.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <list>
#include <memory>
#include <mutex>
#include <random>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace baton::router {

/// XXH3.
uint64_t SeededHash(std::string_view bytes, uint64_t seed);
/// `seed` for things that came with this salt of the prefix cache: those of another one are others.
inline uint64_t SaltedSeed(uint64_t seed, std::string_view salt) {
  return salt.empty() ? seed : SeededHash(salt, seed);
}

/// Any thread. The least recently used go when all would take more than its bytes.
template <class Kept>
class KeptTwice {
 public:
  /// 0 keeps nothing.
  explicit KeptTwice(size_t capacity_bytes)
      : capacity_(capacity_bytes), seed_((uint64_t{std::random_device()()} << 32) | std::random_device()()) {}

  /// Hashes start with it.
  uint64_t seed() const { return seed_; }
  bool keeps_nothing() const { return capacity_ == 0; }

  /// What has this hash, which may be another thing's. Null: nothing.
  std::shared_ptr<const Kept> Find(uint64_t hash) {
    std::lock_guard lock(mutex_);
    const auto found = by_hash_.find(hash);
    if (found == by_hash_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, found->second);
    return found->second->kept;
  }

  /// Whether a thing that comes now is to be kept: it came before.
  bool CameBefore(uint64_t hash) {
    std::lock_guard lock(mutex_);
    return std::exchange(once_[hash % once_.size()], hash) == hash;
  }

  /// `bytes`: those of the thing and of what is kept of it.
  void Keep(uint64_t hash, std::shared_ptr<const Kept> kept, size_t bytes) {
    bytes += kBookkeeping;
    if (bytes > capacity_ / 4) return;  // one must not drive out all others
    std::lock_guard lock(mutex_);
    if (const auto other = by_hash_.find(hash); other != by_hash_.end()) Drop(other->second);
    entries_.push_front({hash, bytes, std::move(kept)});
    by_hash_[hash] = entries_.begin();
    kept_bytes_ += bytes;
    while (kept_bytes_ > capacity_) Drop(std::prev(entries_.end()));
  }

  size_t kept_bytes() const {
    std::lock_guard lock(mutex_);
    return kept_bytes_;
  }

 private:
  static constexpr size_t kBookkeeping = 320;  // list node, map slot, counts
  struct Entry {
    uint64_t hash;
    size_t bytes;
    std::shared_ptr<const Kept> kept;
  };
  // With `mutex_` held.
  void Drop(typename std::list<Entry>::iterator entry) {
    kept_bytes_ -= entry->bytes;
    by_hash_.erase(entry->hash);
    entries_.erase(entry);
  }

  const size_t capacity_;
  const uint64_t seed_;
  mutable std::mutex mutex_;           // guards what follows
  std::array<uint64_t, 4096> once_{};  // hashes of what came once, each at its place by its low bits
  std::list<Entry> entries_;           // most recently used first
  absl::flat_hash_map<uint64_t, typename std::list<Entry>::iterator> by_hash_;
  size_t kept_bytes_ = 0;
};

}  // namespace baton::router
