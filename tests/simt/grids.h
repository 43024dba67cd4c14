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

/// A DeviceArray beside its copy on the host, of which the newer one counts: what the host has changed goes to the
/// device when a kernel's pointer is asked for, and what the host looks at is copied back before. A pointer is asked
/// for again for whatever the host changes after it. The host looks at nothing while work is under way.
template <typename T>
class MirroredArray {
 public:
  explicit MirroredArray(size_t n) : there_(n), here_(n), newer_(Newer::kThere) {}
  explicit MirroredArray(const std::vector<T>& values) : there_(values.size()), here_(values), newer_(Newer::kHere) {}
  /// For kernels and copies.
  T* data() const {
    if (newer_ == Newer::kHere && size() > 0) there_.Write(here_);
    newer_ = Newer::kThere;
    return there_.data();
  }
  /// To where a pointer that was given leads: of a recorded launch.
  void Send() const { data(); }
  /// For the host.
  T* host() const {
    if (newer_ == Newer::kThere && size() > 0) here_ = there_.Read();
    newer_ = Newer::kHere;
    return here_.data();
  }
  T& operator[](size_t i) const { return host()[i]; }
  size_t size() const { return there_.size(); }

 private:
  enum class Newer { kHere, kThere };
  DeviceArray<T> there_;
  mutable std::vector<T> here_;
  mutable Newer newer_;
};

}  // namespace baton::simt_test
