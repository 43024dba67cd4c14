#include "common/host_memory.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "absl/strings/str_split.h"
#include "common/str_cat.h"

namespace baton {
namespace {

// What the two versions of the interface call the same things.
struct GroupFiles {
  const char *limit, *used, *active_file, *inactive_file;
};
constexpr GroupFiles kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_active_file",
                               "total_inactive_file"};
constexpr GroupFiles kVersion2{"memory.max", "memory.current", "active_file", "inactive_file"};

// The number a file starts with; nothing when it is absent or says "max".
std::optional<int64_t> NumberIn(const std::string& path) {
  std::ifstream in(path);
  int64_t number = 0;
  if (in >> number) return number;
  return std::nullopt;
}

// The sum of these fields of a file of "field number" lines.
int64_t SumOf(const std::string& path, std::string_view first, std::string_view second) {
  std::ifstream in(path);
  int64_t sum = 0, number = 0;
  for (std::string name; in >> name >> number;) {
    if (name == first || name == second) sum += number;
  }
  return sum;
}

// What one group leaves; nothing when it has no limit.
std::optional<int64_t> LeftInGroup(const std::string& folder, const GroupFiles& names) {
  const auto limit = NumberIn(StrCat(folder, "/", names.limit)), used = NumberIn(StrCat(folder, "/", names.used));
  if (!limit || !used) return std::nullopt;
  // Not all of "file": that counts shared memory, which only swapping could free.
  const int64_t cache = SumOf(StrCat(folder, "/memory.stat"), names.active_file, names.inactive_file);
  return std::max<int64_t>(0, *limit - std::max<int64_t>(0, *used - cache));
}

void Lower(std::optional<int64_t>& least, std::optional<int64_t> value) {
  if (value && (!least || *value < *least)) least = value;
}

// The least that the group and those above it leave. Inside a container the group's own path may not be there: its
// files are then at the root, which the walk reaches too.
std::optional<int64_t> LeftInGroupsFrom(const std::string& root, std::string path, const GroupFiles& names) {
  std::optional<int64_t> least;
  for (;;) {
    while (path.ends_with('/')) path.pop_back();
    Lower(least, LeftInGroup(root + path, names));
    if (path.empty()) return least;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

}  // namespace

std::optional<int64_t> AvailableMemoryBytes(const MemoryFiles& files) {
  std::optional<int64_t> available = MemInfo("MemAvailable", files);
  std::ifstream groups(files.proc + "/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "0::/path" or "4:memory,cpu:/path"
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    if (parts[1].empty()) {
      Lower(available, LeftInGroupsFrom(files.cgroup, parts[2], kVersion2));
    } else if (std::find(controllers.begin(), controllers.end(), "memory") != controllers.end()) {
      Lower(available, LeftInGroupsFrom(files.cgroup + "/memory", parts[2], kVersion1));
    }
  }
  return available;
}

std::optional<int64_t> MemInfo(std::string_view field, const MemoryFiles& files) {
  std::ifstream in(files.proc + "/meminfo");
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string name, unit;
    int64_t number = 0;
    if (!(words >> name >> number) || name != StrCat(field, ":")) continue;
    return words >> unit && unit == "kB" ? number * 1024 : number;
  }
  return std::nullopt;
}

}  // namespace baton
