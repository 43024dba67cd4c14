// Contexts, streams and events that an emulated device does not make.
#include <atomic>
#include <cstdlib>

#include "kernels/runtime/device_refusal.h"
#include "kernels/runtime/emulated_device.h"
#include "kernels/runtime/runtime.h"

namespace baton::gpu {
namespace {

int64_t UnmadeByEnvironment() {
  const char* const number = std::getenv("BATON_EMULATED_UNMADE");
  return number == nullptr ? 0 : std::strtoll(number, nullptr, 10);
}
std::atomic<int64_t> made = 0, unmade = UnmadeByEnvironment();

}  // namespace

void RefuseMaking(int64_t n) {
  made = 0;
  unmade = n;
}
int64_t MakingCount() { return made; }

std::string EmulatedMaking(const std::string& what) {
  if (++made != unmade) return {};
  const DeviceInfo device = CurrentDevice();
  constexpr char kWords[] = "out of memory";
  if (what == "a context") return ContextRefusal(EmulatedDevice(), kWords, device.total_bytes);
  return MakingRefusal(EmulatedDevice(), what, kWords, device.free_bytes, device.total_bytes);
}

}  // namespace baton::gpu
