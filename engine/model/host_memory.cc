#include "engine/model/host_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace baton::engine {
namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

// The number after `field` in a file of "field number" lines; kUnknown when absent.
int64_t FieldOf(const char* path, const std::string& field) {
  std::ifstream in(path);
  for (std::string name, rest; in >> name; std::getline(in, rest)) {
    int64_t value = 0;
    if (name == field && in >> value) return value;
  }
  return kUnknown;
}

// The file's only number; kUnknown when it is absent or says "max".
int64_t NumberIn(const char* path) {
  std::ifstream in(path);
  int64_t value = 0;
  return in >> value ? value : kUnknown;
}

}  // namespace

int64_t AvailableHostBytes() {
  const int64_t kb = FieldOf("/proc/meminfo", "MemAvailable:");
  int64_t available = kb == kUnknown ? kUnknown : kb * 1024;
  const int64_t limit = NumberIn("/sys/fs/cgroup/memory.max"), used = NumberIn("/sys/fs/cgroup/memory.current");
  if (limit == kUnknown || used == kUnknown) return available;
  const int64_t cache = FieldOf("/sys/fs/cgroup/memory.stat", "file");
  const int64_t pinned = used - std::min(used, cache == kUnknown ? 0 : cache);
  return std::min(available, std::max<int64_t>(0, limit - pinned));
}

}  // namespace baton::engine
