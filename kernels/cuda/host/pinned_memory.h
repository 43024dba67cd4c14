// Memory of the host that the device copies from and to while the host goes on.
#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "common/device_failure.h"
#include "common/status.h"
#include "kernels/cuda/host/device_memory.h"
#include "kernels/runtime/runtime.h"

namespace baton::cuda {

/// With the event of the last copy. Thread: the executor's.
struct Pinned {
  explicit Pinned(gpu::Memory given) : memory(std::move(given)) {}
  /// ResourceExhausted with the number when the host has not `bytes` for `what`, or when the device makes no event.
  static absl::StatusOr<std::unique_ptr<Pinned>> Make(const gpu::Stream& stream, size_t bytes, std::string_view what) {
    stream.Bind();
    gpu::Memory memory(bytes, gpu::MemoryKind::kShared);
    if (memory.data() == nullptr)
      return absl::ResourceExhaustedError(
          StrCat(what, " needs ", bytes, " bytes of pinned memory of the host, which the system refuses"));
    auto made = std::make_unique<Pinned>(std::move(memory));
    BATON_RETURN_IF_ERROR(CheckMade(made->copied));
    return made;
  }
  /// Until the last copy is done.
  void Await() { EndIfDeviceFailed(copied.Synchronize()); }

  gpu::Memory memory;
  gpu::Event copied;
};

}  // namespace baton::cuda
