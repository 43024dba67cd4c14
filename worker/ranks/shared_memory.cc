#include "worker/ranks/shared_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "common/errno_text.h"
#include "common/status.h"

namespace baton::worker {

absl::StatusOr<SharedMemory> SharedMemory::Create() {
  const int descriptor = memfd_create("baton-kv", MFD_CLOEXEC);
  if (descriptor >= 0) return SharedMemory(descriptor);
  return absl::ResourceExhaustedError(StrCat("no shared memory for a rank: ", ErrnoText()));
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), mapped_(std::exchange(other.mapped_, {})) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (!mapped_.empty()) munmap(mapped_.data(), mapped_.size());
  if (descriptor_ >= 0) close(descriptor_);
}

absl::StatusOr<std::span<std::byte>> SharedMemory::Map(int64_t bytes) {
  if (bytes == 0) return std::span<std::byte>();
  const auto size = static_cast<size_t>(bytes);
  void* at = MAP_FAILED;
  if (ftruncate(descriptor_, bytes) == 0) at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (at == MAP_FAILED) {
    return absl::ResourceExhaustedError(StrCat("no ", bytes, " bytes of shared memory for a rank's KV: ", ErrnoText()));
  }
  mapped_ = {static_cast<std::byte*>(at), size};
  return mapped_;
}

}  // namespace baton::worker
