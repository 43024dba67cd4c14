#include "cli/environment.h"

#include <cstdlib>

namespace baton::cli {

std::optional<std::string> Environment(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): see the header
  if (value == nullptr) return std::nullopt;
  return value;
}

void ForgetVariable(const std::string& name) {
  unsetenv(name.c_str());  // NOLINT(concurrency-mt-unsafe): see the header
}

std::optional<int> ParentPid() {
  const std::optional<std::string> pid = Environment("BATON_PARENT_PID");
  if (!pid) return std::nullopt;
  return std::atoi(pid->c_str());
}

}  // namespace baton::cli
