// How much host memory this process may still take: the one place that reads /proc/meminfo and the control groups.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace baton {

/// Where the kernel's files are; tests give folders of their own.
struct MemoryFiles {
  std::string proc = "/proc";
  std::string cgroup = "/sys/fs/cgroup";
};

/// Bytes that can be had without swapping: MemAvailable, or what the memory control group of this process (version 1 or
/// 2) or a group above it leaves, when that is less. A group's file cache counts as free, shared memory does not.
/// Nothing when neither can be read. Reads files at every call; any thread.
std::optional<int64_t> AvailableMemoryBytes(const MemoryFiles& files = {});

/// A value of /proc/meminfo ("MemTotal"), in bytes where the file says kB; nothing when it is not there.
std::optional<int64_t> MemInfo(std::string_view field, const MemoryFiles& files = {});

/// For messages.
constexpr double GiB(int64_t bytes) { return static_cast<double>(bytes) / (int64_t{1} << 30); }

}  // namespace baton
