// The emulated half of network_writes.h: what is written waits until it must be seen.
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/runtime/network_writes.h"
#include "kernels/simt/device_memory.h"

namespace baton::gpu {
namespace {

struct Unseen {
  void* to;
  std::vector<char> bytes;
};
std::mutex mutex;
std::vector<Unseen> unseen;  ///< guarded by mutex, as is `refused`
std::string refused;

}  // namespace

void WriteAsNetwork(void* to, const void* from, size_t bytes) {
  const simt::DeviceMemoryOpened network;
  const auto* begin = static_cast<const char*>(from);
  std::lock_guard lock(mutex);
  unseen.push_back({to, {begin, begin + bytes}});
}

std::string SeeNetworkWrites() {
  const simt::DeviceMemoryOpened network;
  std::lock_guard lock(mutex);
  if (!refused.empty()) return refused;
  for (const Unseen& one : std::exchange(unseen, {})) std::memcpy(one.to, one.bytes.data(), one.bytes.size());
  return {};
}

void RefuseNetworkWrites(const std::string& why) {
  std::lock_guard lock(mutex);
  refused = why;
}

}  // namespace baton::gpu
