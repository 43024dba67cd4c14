// A step's arrays, laid one after another for one copy to the device.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace baton::cuda {

/// Offsets are bytes from the start, 16-byte aligned. Thread: one.
class StepPacker {
 public:
  /// Appends the values, and zeroes up to `room` of them. Returns where they begin.
  template <typename T>
  size_t Add(const T* values, size_t n, size_t room = 0) {
    const size_t at = bytes_.size();
    const auto* from = reinterpret_cast<const char*>(values);
    bytes_.insert(bytes_.end(), from, from + n * sizeof(T));
    if (n > 0) used_ = bytes_.size();
    bytes_.resize((at + std::max(n, room) * sizeof(T) + 15) / 16 * 16);
    return at;
  }
  template <typename T>
  size_t Add(const std::vector<T>& values, size_t room = 0) {
    return Add(values.data(), values.size(), room);
  }
  /// Without room before it that has no values: where it begins depends on those.
  template <typename T>
  size_t AddBehind(const std::vector<T>& values) {
    bytes_.resize((used_ + 15) / 16 * 16);
    return Add(values);
  }
  /// Others instead of those at `at`, as many.
  template <typename T>
  void Replace(size_t at, const std::vector<T>& values) {
    std::copy_n(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T), bytes_.data() + at);
  }
  /// Room at the end that has no values is left out.
  std::span<const char> bytes() const { return {bytes_.data(), used_}; }
  size_t room() const { return bytes_.size(); }

 private:
  std::vector<char> bytes_;
  size_t used_ = 0;
};

template <typename T>
const T* At(const char* base, size_t offset) {
  return reinterpret_cast<const T*>(base + offset);
}

}  // namespace baton::cuda
