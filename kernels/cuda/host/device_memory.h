// Device memory or the reason why there is none.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "common/status.h"
#include "kernels/runtime/runtime.h"

namespace baton::cuda {

/// ResourceExhausted with both numbers when the device has not `bytes` for `what`. The bytes are undefined.
inline absl::StatusOr<gpu::Memory> AllocateOnDevice(size_t bytes, std::string_view what,
                                                    gpu::MemoryKind kind = gpu::MemoryKind::kDevice) {
  gpu::Memory memory(bytes, kind);
  if (memory.data() != nullptr) return memory;
  return absl::ResourceExhaustedError(StrCat(what, " needs ", bytes, " bytes of device memory, ",
                                             gpu::CurrentDevice().free_bytes, " of ", gpu::CurrentDevice().total_bytes,
                                             " are free"));
}

}  // namespace baton::cuda
