#include "kernels/cpu/cpu_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>

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

std::optional<size_t> NumberIn(const char* path) {
  std::ifstream in(path);
  size_t n;
  if (in >> n) return n;
  return std::nullopt;
}

// Page cache the control group would drop for us (a model file just read is most of it).
size_t InactiveFileBytes() {
  std::ifstream in("/sys/fs/cgroup/memory.stat");
  std::string key;
  for (size_t n; in >> key >> n;) {
    if (key == "inactive_file") return n;
  }
  return 0;
}

// Bytes that can be had without swapping: MemAvailable, or what the control group leaves when that is less.
std::optional<size_t> AvailableBytes() {
  std::ifstream in("/proc/meminfo");
  std::string key, unit;
  size_t kib = 0;
  std::optional<size_t> available;
  while (in >> key >> kib && std::getline(in, unit)) {
    if (key == "MemAvailable:") available = kib * 1024;
  }
  const auto limit = NumberIn("/sys/fs/cgroup/memory.max"), used = NumberIn("/sys/fs/cgroup/memory.current");
  if (limit && used) {
    const size_t held = *used - std::min(*used, InactiveFileBytes());
    const size_t left = *limit > held ? *limit - held : 0;
    available = available ? std::min(*available, left) : left;
  }
  return available;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Buffer>> AllocateHost(size_t bytes) {
  constexpr size_t kLarge = size_t{64} << 20;  // small ones are not worth reading /proc
  if (bytes >= kLarge) {
    const auto available = AvailableBytes();
    if (available && bytes > *available) {
      return absl::ResourceExhaustedError(StrCat("cannot allocate ", bytes, " bytes: ", *available, " bytes of memory are available"));
    }
  }
  const size_t page = bytes >= kHugePage ? kHugePage : 4096;
  const size_t mapped = std::max<size_t>((bytes + page - 1) / page * page, page);
  if (mapped < bytes) return absl::ResourceExhaustedError(StrCat("cannot allocate ", bytes, " bytes: more than an address space"));
  void* data = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(StrCat("cannot allocate ", bytes, " bytes: ", std::strerror(errno)));
  }
  madvise(data, mapped, MADV_HUGEPAGE);
  return std::make_unique<HostBuffer>(data, bytes, mapped);
}

}  // namespace baton::kernels::cpu
