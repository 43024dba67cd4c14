// What the environment decides about the emulated devices of a process: tests of whole processes have no other way.
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <string>

#include "kernels/runtime/device_refusal.h"
#include "kernels/runtime/emulated_device.h"

namespace baton::gpu {
namespace {

std::mutex names_mutex;
std::map<int, std::string> names;  ///< guarded by names_mutex
std::mutex fault_mutex;
std::string fault;  ///< guarded by fault_mutex; stays

/// Empty: it has none there.
std::string NameByEnvironment(int number) {
  const char* const listed = std::getenv("BATON_EMULATED_NAMES");
  std::istringstream in(listed == nullptr ? "" : listed);
  std::string name;
  for (int i = 0; i <= number; ++i)
    if (!std::getline(in, name, ',')) return {};
  return name;
}

}  // namespace

void SetEmulatedName(int number, const std::string& name) {
  std::lock_guard lock(names_mutex);
  names[number] = name;
}

std::string EmulatedName(int number) {
  std::lock_guard lock(names_mutex);
  std::string name = names[number];
  if (name.empty()) name = NameByEnvironment(number);
  return name.empty() ? "emulated GPU" : name;
}

size_t EmulatedBytesByEnvironment() {
  const char* const bytes = std::getenv("BATON_EMULATED_BYTES");
  return bytes == nullptr ? 0 : static_cast<size_t>(std::strtoull(bytes, nullptr, 10));
}

std::string EmulatedRefusal(int number, int count) {
  constexpr int kBuilt = 13000;
  const char* const version = std::getenv("BATON_EMULATED_DRIVER");
  const int driver = version == nullptr ? kBuilt : static_cast<int>(std::strtol(version, nullptr, 10));
  const std::string why = DriverRefusal(driver, kBuilt);
  return why.empty() ? NumberRefusal(number, count) : why;
}

void SetEmulatedFault(const std::string& error) {
  std::lock_guard lock(fault_mutex);
  fault = error;
}

std::string EmulatedFault(int device) {
  static const char* const folder = std::getenv("BATON_EMULATED_FAULTS");
  std::lock_guard lock(fault_mutex);
  if (fault.empty() && folder != nullptr) {
    std::ifstream file(std::string(folder) + "/" + std::to_string(getpid()));
    std::getline(file, fault);
  }
  return fault.empty() ? "" : fault + " (cuda:" + std::to_string(device) + ")";
}

}  // namespace baton::gpu
