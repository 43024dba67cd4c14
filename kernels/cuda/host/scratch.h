// Device memory that a call needs until the next call of its kind.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "common/check.h"
#include "kernels/runtime/runtime.h"

namespace baton::cuda {

/// Grows by doubling. Growing waits for the stream, whose earlier work may still read the old memory.
class Scratch {
 public:
  explicit Scratch(gpu::Stream& stream) : stream_(stream) {}

  void* Ensure(size_t bytes) {
    if (memory_ == nullptr || memory_->bytes() < bytes) {
      const std::string error = stream_.Synchronize();
      BATON_CHECK(error.empty(), error);
      size_t size = memory_ == nullptr ? 4096 : memory_->bytes();
      while (size < bytes) size *= 2;
      memory_.reset();
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

 private:
  gpu::Stream& stream_;
  std::unique_ptr<gpu::Memory> memory_;
};

}  // namespace baton::cuda
