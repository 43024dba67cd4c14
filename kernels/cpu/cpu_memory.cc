#include "kernels/cpu/cpu_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "common/errno_text.h"
#include "common/host_memory.h"
#include "common/str_cat.h"

namespace baton::kernels::cpu {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

class HostBuffer final : public Buffer {
 public:
  HostBuffer(void* data, size_t bytes, size_t mapped) : data_(data), bytes_(bytes), mapped_(mapped) {}
  ~HostBuffer() override { munmap(data_, mapped_); }
  void* data() const override { return data_; }
  size_t bytes() const override { return bytes_; }

 private:
  void* data_;
  size_t bytes_, mapped_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Buffer>> AllocateHost(size_t bytes) {
  constexpr size_t kLarge = size_t{64} << 20;  // small ones are not worth reading /proc
  if (bytes >= kLarge) {
    const std::optional<int64_t> available = AvailableMemoryBytes();
    if (available && bytes > static_cast<size_t>(*available)) {
      return absl::ResourceExhaustedError(
          StrCat("cannot allocate ", bytes, " bytes: ", *available, " bytes of memory are available"));
    }
  }
  const size_t page = bytes >= kHugePage ? kHugePage : 4096;
  const size_t mapped = std::max<size_t>((bytes + page - 1) / page * page, page);
  if (mapped < bytes)
    return absl::ResourceExhaustedError(StrCat("cannot allocate ", bytes, " bytes: more than an address space"));
  void* data = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(StrCat("cannot allocate ", bytes, " bytes: ", ErrnoText()));
  }
  madvise(data, mapped, MADV_HUGEPAGE);
  return std::make_unique<HostBuffer>(data, bytes, mapped);
}

}  // namespace baton::kernels::cpu
