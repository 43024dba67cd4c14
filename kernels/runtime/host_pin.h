// Memory of the host that others have allocated, pinned: a device copies from it without the host's help. The emulated
// half counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace baton::gpu {

/// While it lives; the memory stays longer. Of the calling thread's device; let go by any thread.
class HostPin {
 public:
  HostPin(void* memory, size_t bytes);
  ~HostPin();
  HostPin(const HostPin&) = delete;
  HostPin& operator=(const HostPin&) = delete;
  /// Why it is not pinned; empty: it is.
  const std::string& error() const { return error_; }

 private:
  void* memory_;
  std::string error_;
};

#if !defined(__CUDACC__)
/// Of this process, since its start.
struct EmulatedPins {
  int64_t live = 0;    ///< now
  int64_t copies = 0;  ///< that were asked for from pinned memory
};
EmulatedPins CountEmulatedPins();
/// As by BATON_EMULATED_PINS=refused: none is pinned from now on; empty: all are.
void RefuseEmulatedPins(const std::string& why);
/// A copy from `memory` was asked for.
void NoteEmulatedCopy(const void* memory, size_t bytes);
#endif

}  // namespace baton::gpu
