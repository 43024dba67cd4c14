// WorkerSet: workers by their slots in the fleet, a bit for each. A value of 128 bytes.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace baton::router {

inline constexpr int kMaxWorkers = 1024;  ///< that one router knows at once

class WorkerSet {
 public:
  WorkerSet() = default;
  WorkerSet(std::initializer_list<int> slots) {
    for (const int slot : slots) Add(slot);
  }
  static WorkerSet All() {
    WorkerSet all;
    all.words_.fill(~uint64_t{0});
    return all;
  }

  void Add(int slot) { Word(slot) |= Bit(slot); }
  void Remove(int slot) { Word(slot) &= ~Bit(slot); }
  bool Has(int slot) const { return (words_[static_cast<size_t>(slot) / 64] & Bit(slot)) != 0; }
  bool Empty() const {
    uint64_t any = 0;
    for (const uint64_t word : words_) any |= word;
    return any == 0;
  }
  int Count() const {
    int count = 0;
    for (const uint64_t word : words_) count += std::popcount(word);
    return count;
  }
  /// `visit(slot)` for each, in order.
  template <class Visit>
  void ForEach(Visit visit) const {
    for (size_t i = 0; i < words_.size(); ++i) {
      for (uint64_t rest = words_[i]; rest != 0; rest &= rest - 1) {
        visit(static_cast<int>(64 * i) + std::countr_zero(rest));
      }
    }
  }

  WorkerSet& operator&=(const WorkerSet& other) {
    for (size_t i = 0; i < words_.size(); ++i) words_[i] &= other.words_[i];
    return *this;
  }
  WorkerSet& operator|=(const WorkerSet& other) {
    for (size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
    return *this;
  }
  /// Without those of `other`.
  WorkerSet& operator-=(const WorkerSet& other) {
    for (size_t i = 0; i < words_.size(); ++i) words_[i] &= ~other.words_[i];
    return *this;
  }
  bool operator==(const WorkerSet&) const = default;

 private:
  static uint64_t Bit(int slot) { return uint64_t{1} << (slot % 64); }
  uint64_t& Word(int slot) { return words_[static_cast<size_t>(slot) / 64]; }

  std::array<uint64_t, kMaxWorkers / 64> words_{};
};

}  // namespace baton::router
