// Names of this machine and of this process that no other has.
#pragma once

#include <cstdint>
#include <fstream>
#include <random>
#include <string>

namespace baton::gpu {

/// The number that the kernel drew when the machine started, the same in all of its containers.
inline std::string ThisMachine() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}
/// Drawn once; process numbers are the same in two containers.
inline uint64_t ThisProcess() {
  static const uint64_t number = [] {
    std::random_device random;
    return static_cast<uint64_t>(random()) << 32 | random();
  }();
  return number;
}

}  // namespace baton::gpu
