// Which addresses are the emulated devices', and who may touch them. The host may not, outside of kernels and copies: a
// device pointer that it dereferences faults, as on hardware. Kernels may be held to these addresses alone.
//
// Thread: any. Bytes are whole pages, as a device hands out memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace baton::simt {

constexpr int kOfAnotherProcess = -1;
/// Memory of `usable` bytes (the multiple of 16 that ends at its last page) in pages that nobody can touch yet.
struct DevicePages {
  void* pages = nullptr;  ///< page-aligned
  size_t bytes = 0;       ///< of the pages; a multiple of the page's size
  void* data = nullptr;   ///< the first usable byte
  size_t usable = 0;
  bool of_host = false;  ///< pinned memory of the host: never closed, no memory of the device
  int device = 0;        ///< whose it is; kOfAnotherProcess: opened by `opened_by`
  int opened_by = -1;
};
/// Registers pages that are readable and writable, and closes them unless work is running.
void AddDevicePages(const DevicePages& added);
void RemoveDevicePages(const void* pages);
size_t DevicePageBytes(int device);  ///< of all of it that is registered and not the host's

/// Kernels that this thread runs are those of `device` from now on: memory of another is not theirs to touch.
void RunKernelsOf(int device);

/// Kernels of `device` may store to all memory of device `peer` from now on.
void OpenToPeer(int device, int peer);
/// Whether [p, p + bytes) is of a device, and reached by the one that RunKernelsOf named: its own, opened to it.
bool IsPeerMemory(const void* p, size_t bytes);

/// While one lives, kernels and copies of some stream run: device memory is open to this thread, and where the
/// processor has no protection keys to the whole process. Made and ended by one thread.
class DeviceMemoryOpened {
 public:
  DeviceMemoryOpened();
  ~DeviceMemoryOpened();
  DeviceMemoryOpened(const DeviceMemoryOpened&) = delete;
  DeviceMemoryOpened& operator=(const DeviceMemoryOpened&) = delete;
};

/// Opens again what the kernel closed to a signal's handler that does not return.
void ReopenDeviceMemory();

/// From now on a kernel that loads or stores global memory that is not the device's fails. Off at first: the tests of
/// kernels give them vectors.
void HoldKernelsToDeviceMemory(bool on);
extern std::atomic<bool> kernels_are_held;
bool IsDeviceMemory(const void* p, size_t bytes);  ///< of the device that RunKernelsOf named, or pinned
/// Whether a kernel may touch [p, p + bytes).
inline bool KernelMayTouch(const void* p, size_t bytes) {
  return !kernels_are_held.load(std::memory_order_relaxed) || IsDeviceMemory(p, bytes);
}

}  // namespace baton::simt
