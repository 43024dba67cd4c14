// What the router's process takes, under the names that Prometheus's client libraries give it.
#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "common/lost_log_lines.h"
#include "router/metrics/metric_families.h"

namespace baton::router {
namespace {

/// Of /proc/self/stat, after the name of the program: its fields from the third on.
struct Stat {
  double cpu_ticks = 0, start_ticks = 0, virtual_bytes = 0, resident_pages = 0;
};

Stat ReadStat() {
  std::ifstream file("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  Stat out;
  std::string field;
  for (int number = 3; fields >> field; ++number) {
    const double value = std::strtod(field.c_str(), nullptr);
    if (number == 14 || number == 15) out.cpu_ticks += value;  // utime, stime
    if (number == 22) out.start_ticks = value;
    if (number == 23) out.virtual_bytes = value;
    if (number == 24) out.resident_pages = value;
  }
  return out;
}

/// Unix seconds.
double BootTime() {
  std::ifstream file("/proc/stat");
  std::string word;
  double seconds = 0;
  while (file >> word) {
    if (word == "btime") file >> seconds;
  }
  return seconds;
}

double OpenFiles() {
  DIR* directory = opendir("/proc/self/fd");
  if (directory == nullptr) return 0;
  double files = -3;  // itself, "." and ".."
  while (readdir(directory) != nullptr) ++files;
  closedir(directory);
  return files;
}

}  // namespace

void RouterMetrics::Families::RenderProcess() {
  const Stat stat = ReadStat();
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  const auto set = [this](const char* name, const char* help, double value) { Gauge(name, help, {}).Set(value); };
  Grow("process_cpu_seconds_total", "CPU time of the router's process", {}, "", stat.cpu_ticks / ticks);
  set("process_resident_memory_bytes", "Memory of the process that is in RAM",
      stat.resident_pages * static_cast<double>(sysconf(_SC_PAGESIZE)));
  set("process_virtual_memory_bytes", "Address space of the process", stat.virtual_bytes);
  static const double boot = BootTime();
  set("process_start_time_seconds", "When the process started, Unix time", boot + stat.start_ticks / ticks);
  set("process_open_fds", "Open files", OpenFiles());
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  Grow("baton_log_lines_lost_total", "Lines of the log that could not be written", {}, "",
       static_cast<double>(LostLogLines()));
  set("process_max_fds", "At most so many open files", static_cast<double>(limit.rlim_cur));
}

}  // namespace baton::router
