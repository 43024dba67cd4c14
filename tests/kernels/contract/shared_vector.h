// A vector that kernels may read and write: host memory, or memory that a device reaches too when the tests are
// compiled for one.
#pragma once

#include <vector>

#if defined(__CUDACC__)
#include <map>

#include "kernels/runtime/runtime.h"
#endif

namespace baton::kernels {

#if defined(__CUDACC__)
/// Thread: the test's.
template <typename T>
struct SharedAllocator {
  using value_type = T;
  SharedAllocator() = default;
  template <typename U>
  explicit SharedAllocator(const SharedAllocator<U>&) {}
  T* allocate(size_t n) {
    gpu::Memory memory(n * sizeof(T), gpu::MemoryKind::kShared);
    void* at = memory.data();
    Live().emplace(at, std::move(memory));
    return static_cast<T*>(at);
  }
  void deallocate(T* at, size_t) { Live().erase(at); }
  bool operator==(const SharedAllocator&) const { return true; }

 private:
  static std::map<void*, gpu::Memory>& Live() {
    static auto* live = new std::map<void*, gpu::Memory>;  // outlives every static vector
    return *live;
  }
};
template <typename T>
using SharedVector = std::vector<T, SharedAllocator<T>>;
#else
template <typename T>
using SharedVector = std::vector<T>;
#endif

}  // namespace baton::kernels
