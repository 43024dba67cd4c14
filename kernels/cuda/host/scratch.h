// Device memory that a call needs until the next call of its kind.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "common/check.h"
#include "common/device_failure.h"
#include "kernels/cuda/host/device_memory.h"
#include "kernels/runtime/runtime.h"

namespace baton::cuda {

/// Reserved once for the largest call, or growing by doubling: that waits for the stream, whose earlier work may still
/// read the old memory.
class Scratch {
 public:
  explicit Scratch(gpu::Stream& stream) : stream_(stream) {}

  /// Calls of up to `bytes` allocate nothing afterwards. ResourceExhausted with both numbers.
  absl::Status Reserve(size_t bytes, std::string_view what) {
    if (memory_ != nullptr && bytes <= memory_->bytes()) return absl::OkStatus();
    Drop();
    stream_.Bind();
    BATON_ASSIGN_OR_RETURN(gpu::Memory memory, AllocateOnDevice(bytes, what));
    memory_ = std::make_unique<gpu::Memory>(std::move(memory));
    return absl::OkStatus();
  }

  /// That are allocated.
  int64_t bytes() const { return memory_ != nullptr ? static_cast<int64_t>(memory_->bytes()) : 0; }

  void* Ensure(size_t bytes) {
    if (memory_ == nullptr || memory_->bytes() < bytes) {
      size_t size = memory_ == nullptr ? kSmallest : memory_->bytes();
      while (size < bytes) size *= 2;
      Drop();
      stream_.Bind();
      memory_ = std::make_unique<gpu::Memory>(size);
      BATON_CHECK(memory_->data() != nullptr, "a step needs ", size, " bytes of device memory, ",
                  gpu::CurrentDevice().free_bytes, " are free");
    }
    return memory_->data();
  }
  /// Room for n elements; contents are undefined.
  template <typename T>
  T* Room(size_t n) {
    return static_cast<T*>(Ensure(n * sizeof(T)));
  }
  /// The values on the device; overwritten, in stream order, by the next call.
  template <typename T>
  T* Upload(std::span<const T> values) {
    void* to = Ensure(values.size_bytes());
    stream_.Upload(to, values.data(), values.size_bytes());
    return static_cast<T*>(to);
  }

  static constexpr size_t kSmallest = 4096;  ///< bytes that the first call takes

 private:
  void Drop() {
    EndIfDeviceFailed(stream_.Synchronize());
    memory_.reset();
  }

  gpu::Stream& stream_;
  std::unique_ptr<gpu::Memory> memory_;
};

}  // namespace baton::cuda
