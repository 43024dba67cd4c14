#include "kernels/simt/device_memory.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "kernels/simt/fiber.h"

namespace baton::simt {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<uintptr_t, DevicePages> by_address;  ///< by the address of `pages`
  std::map<int, size_t> bytes;                  ///< by device
  std::set<std::pair<int, int>> peers;          ///< a device, and one whose memory it reaches
  int running = 0;                              ///< DeviceMemoryOpened alive
  std::atomic<uint64_t> generation = 1;         ///< counts changes of by_address
};
Registry& Device() {
  static auto* registry = new Registry;  // outlives every static object that owns device memory
  return *registry;
}

/// The processor's protection key of device memory (pkeys(7)), by which a thread opens and closes all of it for itself
/// with one instruction. -1: this machine has none, and its pages are opened and closed one mapping after another, for
/// the whole process.
int DeviceKey() {
  static const int key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
  return key;
}

void Protect(const DevicePages& of, int protection, int key) {
  if (of.of_host || of.bytes == 0 || pkey_mprotect(of.pages, of.bytes, protection, key) == 0) return;
  std::perror("mprotect of emulated device memory");
  std::abort();
}
void OpenToProcess(const Registry& device) {
  for (const auto& [address, pages] : device.by_address) Protect(pages, PROT_READ | PROT_WRITE, -1);
}
void CloseToProcess(const Registry& device) {
  for (const auto& [address, pages] : device.by_address) Protect(pages, PROT_NONE, -1);
}

/// The ranges that this thread's kernels touched last: kernels touch the same few arrays again and again.
struct LastRanges {
  static constexpr size_t kRanges = 8;
  struct Range {
    uintptr_t begin = 0, end = 0;
  };
  uint64_t generation = 0;
  size_t next = 0;  ///< that is replaced
  Range ranges[kRanges];
  bool Hold(uintptr_t begin, uintptr_t end) const {
    for (const Range& range : ranges)
      if (begin >= range.begin && end <= range.end) return true;
    return false;
  }
};
constinit thread_local LastRanges last_ranges __attribute__((tls_model("initial-exec")));
thread_local int kernels_of __attribute__((tls_model("initial-exec"))) = 0;
thread_local int opened = 0;  ///< DeviceMemoryOpened of this thread, where there is a key

}  // namespace

void AddDevicePages(const DevicePages& added) {
  Registry& device = Device();
  std::lock_guard lock(device.mutex);
  device.by_address.emplace(reinterpret_cast<uintptr_t>(added.pages), added);
  if (!added.of_host) device.bytes[added.device] += added.bytes;
  ++device.generation;
  if (DeviceKey() >= 0)
    Protect(added, PROT_READ | PROT_WRITE, DeviceKey());
  else if (device.running == 0)
    Protect(added, PROT_NONE, -1);
}

void RemoveDevicePages(const void* pages) {
  Registry& device = Device();
  std::lock_guard lock(device.mutex);
  const auto found = device.by_address.find(reinterpret_cast<uintptr_t>(pages));
  if (found == device.by_address.end()) return;
  if (!found->second.of_host) device.bytes[found->second.device] -= found->second.bytes;
  device.by_address.erase(found);
  ++device.generation;
}

size_t DevicePageBytes(int number) {
  Registry& device = Device();
  std::lock_guard lock(device.mutex);
  return device.bytes[number];
}

void RunKernelsOf(int device) {
  if (std::exchange(kernels_of, device) != device) last_ranges = {};
}

DeviceMemoryOpened::DeviceMemoryOpened() {
  if (DeviceKey() >= 0) {
    ++opened;
    ReopenDeviceMemory();
    return;
  }
  Registry& device = Device();
  std::lock_guard lock(device.mutex);
  if (device.running++ == 0) OpenToProcess(device);
}
DeviceMemoryOpened::~DeviceMemoryOpened() {
  if (DeviceKey() >= 0) {
    if (--opened == 0) pkey_set(DeviceKey(), PKEY_DISABLE_ACCESS);
    return;
  }
  Registry& device = Device();
  std::lock_guard lock(device.mutex);
  if (--device.running == 0) CloseToProcess(device);
}
void ReopenDeviceMemory() {
  if (DeviceKey() >= 0 && opened > 0) pkey_set(DeviceKey(), 0);
}

std::atomic<bool> kernels_are_held = false;
void HoldKernelsToDeviceMemory(bool on) { kernels_are_held = on; }

bool IsDeviceMemory(const void* p, size_t bytes) {
  const Unwatched emulator;
  Registry& device = Device();
  const auto at = reinterpret_cast<uintptr_t>(p);
  LastRanges& last = last_ranges;
  if (const uint64_t generation = device.generation.load(); last.generation != generation) {
    last = {};
    last.generation = generation;
  }
  if (last.Hold(at, at + bytes)) return true;
  std::lock_guard lock(device.mutex);
  auto found = device.by_address.upper_bound(at);
  if (found == device.by_address.begin()) return false;
  const DevicePages& pages = (--found)->second;
  if (!pages.of_host && pages.device != kernels_of) return false;
  const auto begin = reinterpret_cast<uintptr_t>(pages.data), end = begin + pages.usable;
  if (at < begin || at + bytes > end) return false;
  last.ranges[last.next++ % LastRanges::kRanges] = {begin, end};
  return true;
}

void OpenToPeer(int device_number, int peer) {
  Registry& device = Device();
  std::lock_guard lock(device.mutex);
  device.peers.emplace(device_number, peer);
}

bool IsPeerMemory(const void* p, size_t bytes) {
  const Unwatched emulator;
  Registry& device = Device();
  const auto at = reinterpret_cast<uintptr_t>(p);
  std::lock_guard lock(device.mutex);
  auto found = device.by_address.upper_bound(at);
  if (found == device.by_address.begin()) return false;
  const DevicePages& pages = (--found)->second;
  const auto begin = reinterpret_cast<uintptr_t>(pages.data);
  if (pages.of_host || at < begin || at + bytes > begin + pages.usable) return false;
  if (pages.device == kOfAnotherProcess) return pages.opened_by == kernels_of;
  return pages.device == kernels_of || device.peers.contains({kernels_of, pages.device});
}

}  // namespace baton::simt
