// Memory of the host that the device copies from and to while the host goes on.
#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "common/device_failure.h"
#include "common/status.h"
#include "kernels/runtime/runtime.h"

namespace baton::cuda {

/// With the event of the last copy. Thread: the executor's.
struct Pinned {
  explicit Pinned(gpu::Memory given) : memory(std::move(given)) {}
  /// ResourceExhausted with the number when the host has not `bytes` for `what`.
  static absl::StatusOr<std::unique_ptr<Pinned>> Make(const gpu::Stream& stream, size_t bytes, std::string_view what) {
    stream.Bind();
    gpu::Memory memory(bytes, gpu::MemoryKind::kShared);
    if (memory.data() != nullptr) return std::make_unique<Pinned>(std::move(memory));
    return absl::ResourceExhaustedError(
        StrCat(what, " needs ", bytes, " bytes of pinned memory of the host, which the system refuses"));
  }
  /// Until the last copy is done.
  void Await() { EndIfDeviceFailed(copied.Synchronize()); }

  gpu::Memory memory;
  gpu::Event copied;
};

}  // namespace baton::cuda
