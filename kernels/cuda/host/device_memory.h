// What a device gives, or the reason why it does not.
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

/// ResourceExhausted when the device has not made it, a stream or an event.
template <typename Made>
absl::Status CheckMade(const Made& made) {
  return made.refusal().empty() ? absl::OkStatus() : absl::ResourceExhaustedError(made.refusal());
}

}  // namespace baton::cuda
