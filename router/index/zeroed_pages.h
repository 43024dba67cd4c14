// ZeroedPages: a large array of zeros straight from the kernel, in huge pages where it gives them: a table that is read
// at random meets a page fault and a TLB entry per 2 MB instead of per 4 KB.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <utility>

namespace baton::router {

/// T must be all zeros when new, and need no destructor. Throws std::bad_alloc.
template <class T>
class ZeroedPages {
 public:
  explicit ZeroedPages(size_t count) : bytes_((count * sizeof(T) + kHugePage - 1) / kHugePage * kHugePage) {
    if (count * sizeof(T) < kHugePage) bytes_ = count * sizeof(T);
    void* at = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc();
    if (bytes_ >= kHugePage) madvise(at, bytes_, MADV_HUGEPAGE);  // refused: small pages do, too
    data_ = static_cast<T*>(at);
  }
  ~ZeroedPages() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  ZeroedPages(ZeroedPages&& other) noexcept : bytes_(other.bytes_), data_(std::exchange(other.data_, nullptr)) {}
  ZeroedPages& operator=(ZeroedPages&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(data_, other.data_);
    return *this;
  }
  T& operator[](size_t i) const { return data_[i]; }

 private:
  static constexpr size_t kHugePage = size_t{2} << 20;
  size_t bytes_;
  T* data_ = nullptr;
};

}  // namespace baton::router
