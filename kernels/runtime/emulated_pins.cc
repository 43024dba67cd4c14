// The emulated half of host_pin.h.
#include <cstdlib>
#include <map>
#include <mutex>

#include "kernels/runtime/host_pin.h"

namespace baton::gpu {
namespace {

struct Pins {
  std::mutex mutex;
  std::map<const void*, size_t> live;
  int64_t copies = 0;
  std::string refused;
};
Pins& All() {
  static Pins& pins = *new Pins;  // threads may outlive main
  static const bool asked = [] {
    const char* const value = std::getenv("BATON_EMULATED_PINS");
    if (value != nullptr && value == std::string("refused")) pins.refused = "operation not supported (emulated)";
    return true;
  }();
  static_cast<void>(asked);
  return pins;
}

}  // namespace

HostPin::HostPin(void* memory, size_t bytes) : memory_(memory) {
  Pins& all = All();
  std::lock_guard lock(all.mutex);
  error_ = all.refused;
  if (error_.empty() && !all.live.emplace(memory, bytes).second)
    error_ = "part or all of the requested memory range is already mapped (emulated)";
}
HostPin::~HostPin() {
  Pins& all = All();
  std::lock_guard lock(all.mutex);
  if (error_.empty()) all.live.erase(memory_);
}

EmulatedPins CountEmulatedPins() {
  Pins& all = All();
  std::lock_guard lock(all.mutex);
  return {static_cast<int64_t>(all.live.size()), all.copies};
}
void RefuseEmulatedPins(const std::string& why) {
  Pins& all = All();
  std::lock_guard lock(all.mutex);
  all.refused = why;
}
void NoteEmulatedCopy(const void* memory, size_t bytes) {
  Pins& all = All();
  std::lock_guard lock(all.mutex);
  const auto after = all.live.upper_bound(memory);
  if (after == all.live.begin()) return;
  const auto& [begin, size] = *std::prev(after);
  const auto at = static_cast<size_t>(static_cast<const char*>(memory) - static_cast<const char*>(begin));
  all.copies += at <= size && bytes <= size - at;
}

}  // namespace baton::gpu
