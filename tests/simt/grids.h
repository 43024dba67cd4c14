// Helpers of the emulator's tests: run a kernel under a policy and get what happened.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "kernels/px/px.h"
#include "kernels/runtime/runtime.h"

namespace baton::simt_test {

#if !defined(__CUDACC__)
/// Runs one grid; returns the emulator's error, empty when it had none.
template <typename... Parameters, typename... Arguments>
std::string RunKernel(const simt::Policy& policy, gpu::LaunchConfig config, void (*kernel)(Parameters...),
                      Arguments... arguments) {
  gpu::Stream stream;
  stream.SetPolicy(policy);
  gpu::Launch(stream, config, kernel, arguments...);
  return stream.Synchronize();
}
#endif

/// Device memory of n elements, poisoned.
template <typename T>
class Array {
 public:
  explicit Array(size_t n) : memory_(n * sizeof(T), gpu::MemoryKind::kShared), size_(n) {}
  explicit Array(const std::vector<T>& values) : Array(values.size()) {
    for (size_t i = 0; i < size_; ++i) data()[i] = values[i];
  }
  T* data() const { return static_cast<T*>(memory_.data()); }
  T& operator[](size_t i) const { return data()[i]; }
  size_t size() const { return size_; }

 private:
  gpu::Memory memory_;
  size_t size_;
};

/// The same in the device's own memory, which the host reaches by copies only: whoever reads it otherwise, or gives a
/// kernel what is the host's, fails as on hardware.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t n) : memory_(n * sizeof(T)), size_(n) {}
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) { Write(values); }
  T* data() const { return static_cast<T*>(memory_.data()); }
  size_t size() const { return size_; }
  /// size() values.
  void Write(const std::vector<T>& values) const {
    gpu::Stream stream;
    stream.Upload(data(), values.data(), size_ * sizeof(T));
    stream.Synchronize();
  }
  std::vector<T> Read() const {
    std::vector<T> values(size_);
    gpu::Stream stream;
    stream.CopyAsync(values.data(), data(), size_ * sizeof(T));
    stream.Synchronize();
    return values;
  }
  /// Every byte becomes 0xFF, in the order of the stream: no number of any type.
  void Poison(gpu::Stream& stream) const { stream.FillAsync(data(), 0xFF, size_ * sizeof(T)); }

 private:
  gpu::Memory memory_;
  size_t size_;
};

}  // namespace baton::simt_test
