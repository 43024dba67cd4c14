// Device memory as Ops::Allocate hands it out.
#pragma once

#include <utility>

#include "kernels/ops.h"
#include "kernels/runtime/runtime.h"

namespace baton::kernels {

/// Freed when the stream's work, which may still use it, is done.
class DeviceBuffer final : public Buffer {
 public:
  DeviceBuffer(gpu::Stream& stream, gpu::Memory memory, size_t bytes)
      : stream_(stream), memory_(std::move(memory)), bytes_(bytes) {}
  ~DeviceBuffer() override { stream_.Synchronize(); }
  void* data() const override { return memory_.data(); }
  size_t bytes() const override { return bytes_; }

 private:
  gpu::Stream& stream_;
  gpu::Memory memory_;
  size_t bytes_;
};

}  // namespace baton::kernels
