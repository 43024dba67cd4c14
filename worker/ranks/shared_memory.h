// Memory that several processes of a worker see: a rank keeps its KV in it, and rank 0, which hands KV over and takes
// it, reads and writes there.
#pragma once

#include <cstddef>
#include <span>

#include "absl/status/statusor.h"

namespace baton::worker {

/// A file without a name and this process's view of it. Move-only; one thread.
class SharedMemory {
 public:
  /// Empty until Map. ResourceExhausted: no descriptors left.
  static absl::StatusOr<SharedMemory> Create();
  /// Of another process, or thread: takes `descriptor` over.
  static SharedMemory Of(int descriptor) { return SharedMemory(descriptor); }
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  int descriptor() const { return descriptor_; }
  /// The memory, zeroed where nobody has written. Everybody asks for the same size. Once. ResourceExhausted: not so
  /// much.
  absl::StatusOr<std::span<std::byte>> Map(int64_t bytes);

 private:
  explicit SharedMemory(int descriptor) : descriptor_(descriptor) {}
  int descriptor_ = -1;
  std::span<std::byte> mapped_;
};

}  // namespace baton::worker
